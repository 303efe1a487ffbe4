"""Reads a picture of the training world: which shapes, in which colours and sizes, where.

This is the judge of the model, so it knows nothing of how a picture came about: it finds the
background on the border, takes what differs from it apart into connected pieces, and compares
each piece's silhouette with the six outlines. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from runtime_py.prompt_score.scenes import (
    BACKGROUNDS,
    COLOURS,
    PLACES,
    RELATIONS,
    SHAPES,
    SIDE,
    SIZES,
    Rgb,
    Scene,
    coverage,
)

#: A pixel is foreground if it is this far (in RGB) from the background ...
FAR = 60.0
#: ... and a piece counts from this many pixels on (the smallest true shape has over 300).
SMALLEST = 120
#: Side of the little squares in which silhouettes are compared, and the least overlap
#: (intersection over union) with the best outline for a piece to be called that shape.
GRID, LEAST_OVERLAP = 32, 0.70
#: A mean border colour further than this from every background is no known background.
BACKGROUND_SLACK = 60.0
#: The same for colours of things, with the brightest channel scaled to 255; and how bright that
#: channel must have been for there to be a colour at all.
COLOUR_SLACK, DARKEST = 90.0, 70.0


@dataclass(frozen=True)
class Found:
    """One thing seen. `shape` is "unknown" if no outline fits; `overlap` says how well."""

    shape: str
    colour: str
    size: str
    place: str
    x: float
    y: float
    radius: float
    overlap: float


@dataclass(frozen=True)
class Verdict:
    """Which parts of a scene a picture shows; a detail that was not asked for is True."""

    colour: bool
    shape: bool
    size: bool = True
    place: bool = True
    background: bool = True
    relation: bool = True

    @property
    def right(self) -> bool:
        """The headline score: every thing is there in its colour and shape."""
        return self.colour and self.shape


def _array(image: Image.Image | np.ndarray) -> np.ndarray:
    if isinstance(image, Image.Image):
        image = np.asarray(image.convert("RGB"))
    return image.astype(np.float32)


def _nearest(colour: np.ndarray, palette: dict[str, Rgb]) -> tuple[str, float]:
    names = list(palette)
    distance = np.linalg.norm(np.array([palette[n] for n in names]) - colour, axis=1)
    best = int(distance.argmin())
    return names[best], float(distance[best])


def _border_colour(pixels: np.ndarray) -> np.ndarray:
    ring = np.concatenate(
        [pixels[:2], pixels[-2:], pixels[:, :2].swapaxes(0, 1), pixels[:, -2:].swapaxes(0, 1)],
        axis=None,
    ).reshape(-1, 3)
    middle: np.ndarray = np.median(ring, axis=0)
    return middle


def read_background(image: Image.Image | np.ndarray) -> str:
    """Name of the background colour, or "unknown"."""
    name, distance = _nearest(_border_colour(_array(image)), BACKGROUNDS)
    return name if distance < BACKGROUND_SLACK else "unknown"


def pieces(mask: np.ndarray) -> list[np.ndarray]:
    """The connected pieces (4-neighbourhood) of a boolean picture, largest first.

    Labels spread to their neighbours as running maxima along rows and columns until nothing
    changes: a handful of whole-picture operations instead of a walk over the pixels.
    """
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        before = labels
        for flip in (False, True):
            for _ in range(2):  # along rows, then along columns
                labels = _spread(labels[:, ::-1] if flip else labels)
                labels = (labels[:, ::-1] if flip else labels).T
        if np.array_equal(labels, before):
            break
    names, sizes = np.unique(labels[labels > 0], return_counts=True)
    return [labels == names[i] for i in np.argsort(-sizes, kind="stable")]


def _spread(labels: np.ndarray) -> np.ndarray:
    """Running maximum along each row that starts afresh at every gap (label 0)."""
    gaps = np.cumsum(labels == 0, axis=1)
    # Adding a step that grows with each gap lets one accumulate call restart by itself.
    step = labels.size + 1
    run = np.maximum.accumulate(labels + gaps * step, axis=1) - gaps * step
    return np.where(labels > 0, run, 0)


def _extent(mask: np.ndarray) -> tuple[int, int, int, int]:
    """First row, last row + 1, first column, last column + 1 of a piece."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


def silhouette(mask: np.ndarray) -> np.ndarray:
    """A piece stretched to fill a GRID x GRID square, as 0/1 numbers."""
    top, bottom, left, right = _extent(mask)
    box = mask[top:bottom, left:right]
    little = Image.fromarray(box.astype(np.uint8) * 255).resize((GRID, GRID), Image.Resampling.BOX)
    return np.asarray(little) > 127


@lru_cache
def _outlines() -> np.ndarray:
    return np.stack([silhouette(coverage(s, SIDE / 2, SIDE / 2, SIDE / 3) > 0.5) for s in SHAPES])


def read_shape(mask: np.ndarray) -> tuple[str, float]:
    """Best outline for a piece and its overlap; the shape is "unknown" if nothing fits."""
    top, bottom, left, right = _extent(mask)
    height, width = bottom - top, right - left
    own, known = silhouette(mask), _outlines()
    overlap = (own & known).sum(axis=(1, 2)) / (own | known).sum(axis=(1, 2))
    best = int(overlap.argmax())
    # All outlines are as high as wide; stretching must not turn a bar into a square.
    if overlap[best] < LEAST_OVERLAP or max(height, width) > 1.5 * min(height, width):
        return "unknown", float(overlap[best])
    return SHAPES[best], float(overlap[best])


def _inside(mask: np.ndarray) -> np.ndarray:
    """The piece without its edge, whose pixels are blended with the background."""
    inner = mask.copy()
    for _ in range(2):
        inner[1:-1, 1:-1] &= inner[:-2, 1:-1] & inner[2:, 1:-1] & inner[1:-1, :-2] & inner[1:-1, 2:]
    return inner if inner.any() else mask


def _read_colour(pixels: np.ndarray) -> str:
    """Name of the colour of some pixels, bright or (in dark stripes) less so."""
    bright = 255 * pixels / np.maximum(pixels.max(axis=1, keepdims=True), 1)
    if np.median(pixels.max(axis=1)) < DARKEST:
        return "unknown"
    scaled = {name: tuple(255 * c / max(rgb) for c in rgb) for name, rgb in COLOURS.items()}
    name, distance = _nearest(np.median(bright, axis=0), scaled)  # type: ignore[arg-type]
    return name if distance < COLOUR_SLACK else "unknown"


def _size(radius: float) -> str:
    """Size name whose range is nearest to the radius."""
    return min(SIZES, key=lambda name: abs(sum(SIZES[name]) / 2 - radius))


def _place(x: float, y: float) -> str:
    # A large thing "on the left" is kept inside the picture, hence nearer to the middle than the
    # anchor says; 0.41 lies halfway between where such a thing ends up and the true middle.
    across = "left" if x < 0.41 * SIDE else "right" if x > 0.59 * SIDE else ""
    down = "top" if y < 0.41 * SIDE else "bottom" if y > 0.59 * SIDE else ""
    return f"{down} {across}".strip() or "centre"


def read_picture(image: Image.Image | np.ndarray) -> list[Found]:
    """Everything in a picture that is not background, largest first."""
    pixels = _array(image)
    away = np.linalg.norm(pixels - _border_colour(pixels), axis=2)
    found = []
    for piece in pieces(away > FAR):
        if piece.sum() < SMALLEST:
            break
        top, bottom, left, right = _extent(piece)
        x, y = (left + right) / 2, (top + bottom) / 2
        radius = (bottom - top + right - left) / 4
        colour = _read_colour(pixels[_inside(piece)])
        shape, overlap = read_shape(piece)
        found.append(Found(shape, colour, _size(radius), _place(x, y), x, y, radius, overlap))
    assert set(PLACES) >= {thing.place for thing in found}
    return found


def related(first: Found, second: Found) -> str:
    """The relation of the first thing to the second, by the longer of the two distances."""
    dx, dy = second.x - first.x, second.y - first.y
    return max(RELATIONS, key=lambda name: RELATIONS[name][0] * dx + RELATIONS[name][1] * dy)


def judge(
    scene: Scene,
    image: Image.Image | np.ndarray,
    *,
    size: bool = True,
    place: bool = True,
    background: bool = True,
    relation: bool = True,
) -> Verdict:
    """Compare a picture with a scene; the flags say which details to ask for.

    A single thing is sought in the largest piece; for a pair exactly the two largest pieces must
    be the two things. Extra pieces beyond that make shape and colour wrong.
    """
    found = read_picture(image)
    ground = not background or read_background(image) == scene.background
    wanted = scene.things
    if len(found) != len(wanted):
        return Verdict(False, False, not size, not place, ground, not relation)
    order = list(found)
    if len(wanted) == 2:
        # Match by whichever order agrees more.
        agreement = [
            sum(
                (f.colour == w.colour) + (f.shape == w.shape)
                for f, w in zip(o, wanted, strict=True)
            )
            for o in (found, found[::-1])
        ]
        order = found if agreement[0] >= agreement[1] else found[::-1]
    both = list(zip(order, wanted, strict=True))
    return Verdict(
        colour=all(f.colour == w.colour for f, w in both),
        shape=all(f.shape == w.shape for f, w in both),
        size=not size or all(f.size == w.size for f, w in both),
        place=not place or scene.place is None or order[0].place == scene.place,
        background=ground,
        relation=(not relation or scene.relation is None or related(*order) == scene.relation),
    )
