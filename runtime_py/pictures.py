"""Pictures on their way to and from the network: files, sizes, masks, canvases, previews."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from runtime_py.errors import PocketSDError
from runtime_py.files import atomic_file

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
SIDES = ("left", "right", "top", "bottom")


def read(path: Path, mode: str = "RGB") -> Pixels:
    """A picture file as [h, w, 3], or [h, w] for mode "L"."""
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert(mode), np.uint8)
    except FileNotFoundError:
        raise PocketSDError("no such picture", where=path) from None
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise PocketSDError(f"not a readable picture, {error}", where=path) from None


def require_writable(path: Path) -> None:
    """Refuse a file name that no picture can be written under, before one is made."""
    if path.suffix.lower() not in Image.registered_extensions():
        raise PocketSDError("unknown kind of picture", where=path, mend="use .png, .jpg or .webp")


def write(path: Path, pixels: Pixels) -> None:
    require_writable(path)
    with atomic_file(path) as temporary:
        Image.fromarray(pixels).save(temporary, Image.registered_extensions()[path.suffix.lower()])


def fit(pixels: Pixels, height: int, width: int) -> Pixels:
    """Scale to a size; pictures and masks are given at any size."""
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))


def to_network(pixels: Pixels) -> Floats:
    """[h, w, 3] in 0..255 -> [3, h, w] in -1..1"""
    return (pixels.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)


def from_network(decoded: Floats) -> Pixels:
    """[b, 3, h, w] around -1..1 -> [b, h, w, 3] in 0..255"""
    if not np.isfinite(decoded).all():
        raise PocketSDError("the decoder's picture holds NaN or infinity: an overflow in fp16?")
    scaled = (decoded.clip(-1, 1) + 1) * 127.5
    return scaled.round().astype(np.uint8).transpose(0, 2, 3, 1)


def to_latent_mask(mask: Pixels, height: int, width: int, shrink: int) -> Floats:
    """[h, w] -> [h / shrink, w / shrink], 1 wherever a cell touches what is to be drawn anew."""
    cells = binary(mask, height, width).reshape(height // shrink, shrink, width // shrink, shrink)
    touched: Floats = cells.max(axis=(1, 3)).astype(np.float32)
    return touched


def binary(mask: Pixels, height: int, width: int) -> NDArray[np.bool_]:
    return fit(mask, height, width) >= 128


def paste_outside(decoded: Pixels, image: Pixels, mask: Pixels) -> Pixels:
    """Put the known picture back, to the last bit, wherever the mask does not ask for new."""
    height, width = decoded.shape[1:3]
    new = binary(mask, height, width)[None, :, :, None]
    return np.where(new, decoded, fit(image, height, width)[None])


def outpaint_canvas(
    pixels: Pixels, margins: Mapping[str, int], height: int, width: int
) -> tuple[Pixels, Pixels]:
    """A picture with margins, and the mask that asks for them, both fitted to height x width.

    The margins continue the border's colours, which gives the first steps something to hold on to.
    """
    left, right, top, bottom = (margins.get(side, 0) for side in SIDES)
    if min(left, right, top, bottom) < 0 or not any((left, right, top, bottom)):
        raise PocketSDError("outpainting needs at least one margin above 0")
    edges = ((top, bottom), (left, right))
    canvas = np.pad(pixels, (*edges, (0, 0)), mode="edge")
    mask = np.pad(np.zeros(pixels.shape[:2], np.uint8), edges, constant_values=255)
    return fit(canvas, height, width), fit(mask, height, width)


def preview(latents: Floats, matrix: tuple[tuple[float, ...], ...]) -> Pixels:
    """A small picture straight from latents: RGB = matrix @ (channels, 1). [n, 4, h, w]"""
    weights = np.asarray(matrix, np.float32)  # [3, channels + 1]
    rgb = np.einsum("rc,nchw->nrhw", weights[:, :-1], latents) + weights[:, -1, None, None]
    return from_network(np.nan_to_num(rgb))


def contact_sheet(cells: list[tuple[str, Pixels]], columns: int, scale: int = 1) -> Pixels:
    """Captioned pictures of one size in a grid."""
    from PIL import ImageDraw, ImageFont

    height, width = (n * scale for n in cells[0][1].shape[:2])
    caption, gap = 30, 8
    rows = -(-len(cells) // columns)
    size = (columns * (width + gap) + gap, rows * (height + caption + gap) + gap)
    sheet = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(11)
    for index, (text, pixels) in enumerate(cells):
        x = gap + index % columns * (width + gap)
        y = gap + index // columns * (height + caption + gap)
        sheet.paste(
            Image.fromarray(pixels).resize((width, height), Image.Resampling.NEAREST), (x, y)
        )
        pen.multiline_text((x, y + height + 2), _wrap(text, width, font), "black", font, spacing=1)
    return np.asarray(sheet)


def _wrap(text: str, width: int, font: object) -> str:
    """At most two lines of words that fit."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) > width and lines[-1]:  # type: ignore[attr-defined]
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines[:2])
