"""The little world tiny-sd is trained on: flat pictures of coloured shapes, drawn by this file.

A `Scene` is the ground truth (what is where); `draw` turns it into pixels and `captions` turns it
into words. Nothing is downloaded and nothing is licensed from anybody: every training picture of
the embedded model comes out of the functions below, from a seed. Only numpy and Pillow are needed,
so tests and demos can draw reference pictures too.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

SIDE = 128  # pictures are SIDE x SIDE; all lengths below are pixels of such a picture
SUPERSAMPLE = 4  # masks are drawn this much larger and averaged down, for smooth edges
MARGIN = 4  # no shape comes closer than this to the edge of the picture

Point = tuple[float, float]
Rgb = tuple[int, int, int]

#: Object colours are saturated, background colours are not (navy is simply very dark), so no
#: object can hide in its background and a checker can always tell the two families apart.
COLOURS: dict[str, Rgb] = {
    "red": (220, 30, 35),
    "orange": (250, 140, 20),
    "yellow": (245, 220, 30),
    "green": (35, 160, 60),
    "cyan": (30, 205, 215),
    "blue": (35, 75, 225),
    "purple": (125, 40, 175),
    "pink": (250, 110, 180),
}
BACKGROUNDS: dict[str, Rgb] = {
    "white": (250, 250, 250),
    "gray": (140, 140, 140),
    "black": (15, 15, 15),
    "beige": (238, 220, 185),
    "navy": (15, 25, 70),
    "lavender": (215, 205, 240),
}
#: Radius range by size name. "medium" is never put into words: it is what silence means.
SIZES: dict[str, tuple[int, int]] = {"small": (17, 19), "medium": (25, 28), "large": (35, 39)}
#: Anchor of each place name, in parts of the picture's side.
PLACES: dict[str, Point] = {
    "centre": (0.5, 0.5),
    "left": (0.27, 0.5),
    "right": (0.73, 0.5),
    "top": (0.5, 0.27),
    "bottom": (0.5, 0.73),
    "top left": (0.27, 0.27),
    "top right": (0.73, 0.27),
    "bottom left": (0.27, 0.73),
    "bottom right": (0.73, 0.73),
}
#: How the second object of a pair lies relative to the first: unit step from first to second.
RELATIONS: dict[str, Point] = {
    "left of": (1, 0),
    "right of": (-1, 0),
    "above": (0, 1),
    "below": (0, -1),
}
SHAPES = ("circle", "square", "triangle", "star", "heart", "cross")

#: Never drawn during training, alone or in a pair: what the held-out prompts ask for.
#: Every colour and every shape is missing at most twice, so each word is still well known.
HELD_OUT: frozenset[tuple[str, str]] = frozenset(
    {
        ("red", "star"),
        ("orange", "heart"),
        ("yellow", "square"),
        ("green", "triangle"),
        ("cyan", "cross"),
        ("blue", "circle"),
        ("purple", "square"),
        ("pink", "triangle"),
        ("blue", "heart"),
        ("green", "circle"),
    }
)


@dataclass(frozen=True)
class Thing:
    """One coloured shape. `x`, `y` is the centre of its box, `radius` half its extent."""

    shape: str
    colour: str
    size: str
    x: float
    y: float
    radius: float
    striped: bool = False


@dataclass(frozen=True)
class Scene:
    """Everything there is to know about a picture.

    `place` is set for a single thing, `relation` (of the first thing to the second) for a
    pair.
    """

    background: str
    things: tuple[Thing, ...]
    place: str | None = None
    relation: str | None = None


@lru_cache
def outline(shape: str) -> tuple[Point, ...]:
    """The shape as a polygon that just fits the box from -1 to 1 (y pointing down)."""
    turn = [math.tau * i / 72 for i in range(72)]
    if shape == "circle":
        points = [(math.cos(t), math.sin(t)) for t in turn]
    elif shape == "square":
        points = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
    elif shape == "triangle":
        points = [(0, -1), (1, 1), (-1, 1)]
    elif shape == "star":
        radii = [1.0 if i % 2 == 0 else 0.42 for i in range(10)]
        points = [
            (r * math.sin(math.tau * i / 10), -r * math.cos(math.tau * i / 10))
            for i, r in enumerate(radii)
        ]
    elif shape == "heart":
        points = [
            (
                16 * math.sin(t) ** 3,
                -13 * math.cos(t) + 5 * math.cos(2 * t) + 2 * math.cos(3 * t) + math.cos(4 * t),
            )
            for t in turn
        ]
    elif shape == "cross":
        a, b = 0.36, 1.0
        corner = [(-a, -b), (a, -b), (a, -a), (b, -a), (b, a), (a, a)]
        points = corner + [(-x, -y) for x, y in corner]
    else:
        raise ValueError(f"unknown shape {shape!r}; known: {', '.join(SHAPES)}")
    # Stretch to fill the box, so that a radius means the same for every shape.
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    return tuple(
        (
            2 * (x - min(xs)) / (max(xs) - min(xs)) - 1,
            2 * (y - min(ys)) / (max(ys) - min(ys)) - 1,
        )
        for x, y in points
    )


def coverage(shape: str, x: float, y: float, radius: float, side: int = SIDE) -> np.ndarray:
    """How much of each pixel the shape covers: float32 in 0..1, `side` x `side`."""
    big = Image.new("L", (side * SUPERSAMPLE, side * SUPERSAMPLE))
    polygon = [
        ((x + radius * px) * SUPERSAMPLE, (y + radius * py) * SUPERSAMPLE)
        for px, py in outline(shape)
    ]
    ImageDraw.Draw(big).polygon(polygon, fill=255)
    return np.asarray(big.reduce(SUPERSAMPLE), dtype=np.float32) / 255


def draw(scene: Scene) -> Image.Image:
    """The picture of a scene, RGB, `SIDE` x `SIDE`."""
    canvas = np.empty((SIDE, SIDE, 3), np.float32)
    canvas[:] = BACKGROUNDS[scene.background]
    for thing in scene.things:
        paint = np.empty_like(canvas)
        paint[:] = COLOURS[thing.colour]
        if thing.striped:
            # Darker bands of the same hue: 16 pixels a period, soft enough for the autoencoder.
            down = np.arange(SIDE) - thing.y
            bands = 0.5 - 0.5 * np.clip(2 * np.cos(math.tau * down / 16), -1, 1)
            paint *= (1 - 0.45 * bands)[:, None, None]
        cover = coverage(thing.shape, thing.x, thing.y, thing.radius)[..., None]
        canvas += cover * (paint - canvas)
    return Image.fromarray(np.round(canvas).astype(np.uint8))


def is_held_out(colour: str, shape: str) -> bool:
    return (colour, shape) in HELD_OUT


def place_thing(
    rng: random.Random, shape: str, colour: str, size: str, at: Point, striped: bool = False
) -> Thing:
    """A thing near the anchor `at`, wholly inside the picture, size and place jittered."""
    radius = rng.uniform(*SIZES[size])
    low, high = MARGIN + radius, SIDE - MARGIN - radius
    x, y = (min(max(a * SIDE + rng.uniform(-4, 4), low), high) for a in at)
    return Thing(shape, colour, size, x, y, radius, striped)


def single(
    rng: random.Random,
    shape: str,
    colour: str,
    *,
    size: str | None = None,
    place: str | None = None,
    background: str | None = None,
    striped: bool = False,
) -> Scene:
    """A scene of one thing; what is not given is drawn by lot."""
    size = size or rng.choice(list(SIZES))
    place = place or rng.choice(list(PLACES))
    background = background or rng.choice(list(BACKGROUNDS))
    thing = place_thing(rng, shape, colour, size, PLACES[place], striped)
    return Scene(background, (thing,), place=place)


def pair(
    rng: random.Random,
    first: tuple[str, str],
    second: tuple[str, str],
    *,
    relation: str | None = None,
    background: str | None = None,
) -> Scene:
    """Two (colour, shape) things that do not touch, related as asked or by lot."""
    relation = relation or rng.choice(list(RELATIONS))
    background = background or rng.choice(list(BACKGROUNDS))
    dx, dy = RELATIONS[relation]
    # Along the axis of the relation the two sit in their own halves; across it they share a line.
    cross = rng.uniform(0.35, 0.65)
    sizes = rng.choice([("small", "small"), ("small", "medium"), ("medium", "small")])
    things = []
    for (colour, shape), side, size in zip((first, second), (-1, 1), sizes, strict=True):
        at = (0.5 + side * dx * 0.24, cross) if dx else (cross, 0.5 + side * dy * 0.24)
        things.append(place_thing(rng, shape, colour, size, at))
    return Scene(background, tuple(things), relation=relation)


#: What part of the training scenes are pairs, and what part of the single things are striped.
PAIR_SHARE, STRIPED_SHARE = 0.10, 0.06

_TRAINABLE = tuple((c, s) for c in COLOURS for s in SHAPES if not is_held_out(c, s))


def training_scene(rng: random.Random) -> Scene:
    """One scene of the training distribution: never with a held-out combination."""
    if rng.random() < PAIR_SHARE:
        while True:
            first, second = rng.sample(_TRAINABLE, 2)
            # Two things alike in colour or shape would make "which is which" ambiguous.
            if first[0] != second[0] and first[1] != second[1]:
                return pair(rng, first, second)
    colour, shape = rng.choice(_TRAINABLE)
    return single(rng, shape, colour, striped=rng.random() < STRIPED_SHARE)
