"""The judge of the model must itself be right: it reads back what was drawn."""

import random

import numpy as np
import pytest
from PIL import Image, ImageFilter

from runtime_py.prompt_score.checker import judge, pieces, read_background, read_picture, related
from runtime_py.prompt_score.prompts import held_out_prompts, pair_prompts
from runtime_py.prompt_score.scenes import COLOURS, SHAPES, SIDE, draw, pair, single, training_scene

ALL_RIGHT = (True,) * 6


def worn(image: Image.Image, seed: int) -> Image.Image:
    """What a mediocre autoencoder does to a picture: blur and a little noise."""
    pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(1.0)), dtype=np.float32)
    pixels += np.random.default_rng(seed).normal(0, 8, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def parts(verdict) -> tuple[bool, ...]:
    return tuple(vars(verdict).values())


@pytest.mark.parametrize("wear", [False, True])
def test_reads_back_fresh_scenes(wear):
    rng = random.Random(11)
    count = 200
    wrong = 0
    for seed in range(count):
        scene = training_scene(rng)
        image = worn(draw(scene), seed) if wear else draw(scene)
        wrong += parts(judge(scene, image)) != ALL_RIGHT
    assert wrong <= count // 100


def test_the_exam_can_be_passed():
    prompts = held_out_prompts()[::5] + pair_prompts()[::5]
    assert all(prompt.judge(draw(prompt.scene)).right for prompt in prompts)


def test_sees_a_wrong_colour_and_a_wrong_shape():
    colours, shapes = list(COLOURS), list(SHAPES)
    for i in range(24):
        colour, shape = colours[i % 8], shapes[i % 6]
        scene = single(random.Random(i), shape, colour)
        recoloured = single(random.Random(i), shape, colours[(i + 1 + i % 7) % 8])
        reshaped = single(random.Random(i), shapes[(i + 1 + i % 5) % 6], colour)
        seen = judge(scene, draw(recoloured))
        assert (seen.colour, seen.shape) == (False, True)
        seen = judge(scene, draw(reshaped))
        assert (seen.colour, seen.shape) == (True, False)


def test_sees_wrong_details():
    rng = random.Random(0)
    scene = single(rng, "star", "pink", size="small", place="left", background="white")
    other = single(rng, "star", "pink", size="large", place="top right", background="navy")
    seen = judge(scene, draw(other))
    assert seen.right
    assert not (seen.size or seen.place or seen.background)
    unasked = judge(scene, draw(other), size=False, place=False, background=False)
    assert parts(unasked) == ALL_RIGHT


@pytest.mark.parametrize("relation", ["left of", "right of", "above", "below"])
def test_tells_relations_apart(relation):
    scene = pair(random.Random(1), ("red", "circle"), ("blue", "cross"), relation=relation)
    assert judge(scene, draw(scene)).relation
    found = sorted(read_picture(draw(scene)), key=lambda f: f.colour, reverse=True)
    assert related(*found) == relation
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    turned = pair(
        random.Random(1), ("red", "circle"), ("blue", "cross"), relation=opposite[relation]
    )
    seen = judge(scene, draw(turned))
    assert seen.right and not seen.relation


def test_a_missing_or_extra_thing_is_wrong():
    rng = random.Random(2)
    one = single(rng, "circle", "red", size="small", place="left", background="white")
    two = pair(rng, ("red", "circle"), ("blue", "cross"), relation="left of")
    assert not judge(one, draw(two)).right
    assert not judge(two, draw(one)).right


def test_an_empty_or_noisy_picture_shows_nothing_wanted():
    scene = single(random.Random(3), "square", "green")
    flat = Image.new("RGB", (SIDE, SIDE), "white")
    assert read_picture(flat) == [] and read_background(flat) == "white"
    noise = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    for image in (flat, Image.fromarray(noise)):
        assert not judge(scene, image).right


def test_a_bar_is_not_a_square():
    picture = np.full((SIDE, SIDE, 3), 250, np.uint8)
    picture[20:100, 50:80] = COLOURS["red"]
    (seen,) = read_picture(picture)
    assert (seen.colour, seen.shape) == ("red", "unknown")


def test_grey_blobs_have_no_colour():
    picture = np.full((SIDE, SIDE, 3), 250, np.uint8)
    picture[40:90, 40:90] = 120
    (seen,) = read_picture(picture)
    assert (seen.colour, seen.shape) == ("unknown", "square")


def test_pieces_are_connected_and_sorted():
    mask = np.zeros((12, 12), bool)
    mask[1:4, 1:4] = True
    mask[6:11, 2] = mask[10, 2:10] = mask[6:11, 9] = True  # a U: one piece, round two corners
    mask[4, 4] = True  # touches the first only diagonally
    found = pieces(mask)
    assert [piece.sum() for piece in found] == [16, 9, 1]
    assert not (found[0] & found[1]).any()
