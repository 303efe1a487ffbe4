"""The drawn world: what it draws, what it says about it, and what it keeps from training."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_py.prompt_score.captions import caption
from runtime_py.prompt_score.prompts import held_out_prompts, pair_prompts
from runtime_py.prompt_score.scenes import (
    BACKGROUNDS,
    COLOURS,
    HELD_OUT,
    MARGIN,
    SHAPES,
    SIDE,
    coverage,
    draw,
    outline,
    training_scene,
)

SEEDS = st.integers(0, 2**32)


def scenes(count: int, seed: int = 0):
    rng = random.Random(seed)
    return [training_scene(rng) for _ in range(count)]


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_a_seed_fixes_scene_caption_and_picture(seed):
    first, second = random.Random(seed), random.Random(seed)
    scene, again = training_scene(first), training_scene(second)
    assert scene == again
    assert caption(scene, first) == caption(again, second)
    assert np.array_equal(np.asarray(draw(scene)), np.asarray(draw(again)))


def test_held_out_combinations_never_occur_in_training():
    for scene in scenes(5000):
        assert all((t.colour, t.shape) not in HELD_OUT for t in scene.things)


def test_every_other_combination_does_occur():
    seen = {(t.colour, t.shape) for scene in scenes(2000) for t in scene.things}
    assert seen == {(c, s) for c in COLOURS for s in SHAPES} - HELD_OUT


def test_no_word_is_held_out_too_often():
    for part, known in ((0, COLOURS), (1, SHAPES)):
        counts = [sum(pair[part] == name for pair in HELD_OUT) for name in known]
        assert max(counts) <= 2


def test_captions_name_colour_and_shape_and_never_a_held_out_pair():
    rng = random.Random(3)
    for scene in scenes(1000):
        text = caption(scene, rng)
        assert all(f"{t.colour} {t.shape}" in text for t in scene.things)
        assert not any(f"{c} {s}" in text for c, s in HELD_OUT)
        assert "a orange" not in text and "  " not in text


def test_captions_of_one_scene_vary():
    rng = random.Random(4)
    scene = scenes(1)[0]
    assert len({caption(scene, rng) for _ in range(50)}) > 10


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_things_lie_inside_the_picture_and_apart(seed):
    scene = training_scene(random.Random(seed))
    covers = []
    for thing in scene.things:
        for at in (thing.x, thing.y):
            assert at - thing.radius + 1e-6 >= MARGIN and at + thing.radius <= SIDE - MARGIN + 1e-6
        covers.append(coverage(thing.shape, thing.x, thing.y, thing.radius) > 0)
    if len(covers) == 2:
        assert not (covers[0] & covers[1]).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_outlines_fill_their_box(shape):
    points = np.array(outline(shape))
    assert np.allclose(points.min(axis=0), -1) and np.allclose(points.max(axis=0), 1)


def test_unknown_shapes_are_refused():
    with pytest.raises(ValueError, match="unknown shape 'blob'"):
        outline("blob")


def test_a_picture_has_the_colours_of_its_scene():
    for scene in scenes(20):
        picture = np.asarray(draw(scene))
        assert picture.shape == (SIDE, SIDE, 3) and picture.dtype == np.uint8
        assert tuple(picture[0, 0]) == BACKGROUNDS[scene.background]
        for thing in scene.things:
            if not thing.striped:
                # The stars' and hearts' centres are filled too.
                assert tuple(picture[round(thing.y), round(thing.x)]) == COLOURS[thing.colour]


def test_the_exam_is_fixed_and_held_out():
    prompts = held_out_prompts()
    assert len({p.text for p in prompts}) == 200
    assert prompts == held_out_prompts()
    assert all((p.scene.things[0].colour, p.scene.things[0].shape) in HELD_OUT for p in prompts)
    rng = random.Random(5)
    trained = {caption(scene, rng) for scene in scenes(5000)}
    assert not trained & {p.text for p in prompts}
    assert len({p.text for p in pair_prompts()}) == 50
