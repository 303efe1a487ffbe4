"""Pictures: ranges, masks, canvases, previews."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runtime_py import pictures
from runtime_py.errors import PocketSDError
from runtime_py.quality import psnr

RGB = hnp.arrays(np.uint8, st.tuples(st.integers(1, 20), st.integers(1, 20), st.just(3)))


@given(RGB)
def test_to_the_network_and_back(pixels: np.ndarray) -> None:
    assert np.array_equal(pictures.from_network(pictures.to_network(pixels)[None])[0], pixels)


def test_a_broken_decoding_is_told() -> None:
    with pytest.raises(PocketSDError, match="NaN or infinity"):
        pictures.from_network(np.full((1, 3, 8, 8), np.nan, np.float32))


@given(hnp.arrays(np.bool_, (32, 48)))
def test_a_latent_mask_covers_every_pixel_of_the_mask(mask: np.ndarray) -> None:
    cells = pictures.to_latent_mask(mask.astype(np.uint8) * 255, 32, 48, 8)
    assert cells.shape == (4, 6) and set(np.unique(cells)) <= {0.0, 1.0}
    grown = cells.repeat(8, 0).repeat(8, 1).astype(bool)
    assert (grown >= mask).all()  # nothing that should change is held fast
    assert mask.any() == cells.any()


@given(RGB, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(1, 9))
def test_outpainting_keeps_the_picture_in_its_place(
    pixels: np.ndarray, left: int, right: int, top: int, bottom: int
) -> None:
    h, w = pixels.shape[:2]
    margins = {"left": left, "right": right, "top": top, "bottom": bottom}
    height, width = h + top + bottom, w + left + right
    canvas, mask = pictures.outpaint_canvas(pixels, margins, height, width)
    assert np.array_equal(canvas[top : top + h, left : left + w], pixels)
    assert (mask[top : top + h, left : left + w] == 0).all()
    assert (mask == 255).sum() == height * width - h * w


def test_outpainting_needs_a_margin() -> None:
    with pytest.raises(PocketSDError, match="at least one margin"):
        pictures.outpaint_canvas(np.zeros((8, 8, 3), np.uint8), {}, 8, 8)


def test_preview_is_the_matrix() -> None:
    latents = np.random.default_rng(0).normal(size=(2, 4, 5, 6)).astype(np.float32) * 0.1
    matrix = ((1.0, 0, 0, 0, 0.0), (0, 1.0, 0, 0, 0.5), (0, 0, 0, 0, -1.0))
    seen = pictures.preview(latents, matrix)
    assert seen.shape == (2, 5, 6, 3) and (seen[..., 2] == 0).all()
    assert np.abs(seen[..., 0] - (latents[:, 0] + 1) * 127.5).max() <= 0.5001


def test_contact_sheet_holds_every_picture() -> None:
    cells = [(f"picture {i}", np.full((16, 16, 3), i * 20, np.uint8)) for i in range(5)]
    sheet = pictures.contact_sheet(cells, columns=3, scale=2)
    for i in range(5):
        assert (sheet == i * 20).all(axis=-1).sum() >= 32 * 32


def test_files(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    pictures.write(tmp_path / "a.png", pixels)
    assert np.array_equal(pictures.read(tmp_path / "a.png"), pixels)
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    with pytest.raises(PocketSDError, match="not a readable picture"):
        pictures.read(tmp_path / "b.png")
    with pytest.raises(PocketSDError, match="no such picture"):
        pictures.read(tmp_path / "c.png")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "b.png"]


def test_psnr() -> None:
    a = np.array([1.0, -2.0, 0.5])
    assert psnr(a, a) == np.inf
    assert psnr(a, a + 0.02) == pytest.approx(40)  # the peak is 2
    assert psnr(a, [1.0, np.nan, 0.5]) == -np.inf
    with pytest.raises(ValueError, match="shapes differ"):
        psnr(a, [1.0])
