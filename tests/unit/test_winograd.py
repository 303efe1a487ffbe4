"""Winograd's matrices against the convolution that they stand for, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import correlate2d

from converter.targets.webgpu.winograd import TILES, transformed, winograd


@pytest.mark.parametrize("tile", TILES)
def test_a_tile_equals_scipys_convolution(tile: int) -> None:
    w = winograd(tile)
    generator = np.random.default_rng(tile)
    d, g = generator.standard_normal((w.side, w.side)), generator.standard_normal((3, 3))
    kernel = transformed(g[None, None], tile)[:, 0, 0].reshape(w.side, w.side)
    y = w.a @ (kernel * (w.b @ d @ w.b.T)) @ w.a.T
    assert np.allclose(y, correlate2d(d, g, mode="valid"), rtol=0, atol=1e-9)


def test_what_a_tile_saves_and_costs() -> None:
    """The published trade-off, by tile: products, memory of tensors, memory of weights."""
    published = {
        2: (2.25, 4.00, 1.78), 4: (4.00, 2.25, 4.00), 6: (5.06, 1.78, 7.11), 8: (5.76, 1.56, 11.11),
    }  # fmt: skip
    for tile, figures in published.items():
        w = winograd(tile)
        assert np.allclose((w.saving, w.memory, w.weights), figures, atol=0.005)


@pytest.mark.parametrize("tile", TILES)
def test_the_matrices_scale_by_powers_of_two(tile: int) -> None:
    """So that a kernel of ordinary weights stays far from both ends of f16's range."""
    spread = np.abs(transformed(np.full((1, 1, 3, 3), 0.02), tile))
    assert 0.001 < spread.max() < 0.1
    assert np.abs(winograd(tile).b).sum(axis=1).max() < 4
