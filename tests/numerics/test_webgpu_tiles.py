"""The table of Winograd's tiles, measured on the software GPU."""

from __future__ import annotations

import pytest

from converter.targets.webgpu.tiles import tile_rows, tile_table
from tests.support.webgpu import device, has_f16, needs_webgpu

pytestmark = [needs_webgpu, pytest.mark.xdist_group("webgpu")]


def test_larger_tiles_save_more_and_are_less_exact() -> None:
    rows = list(tile_rows(device(), "f16" if has_f16() else "f32"))
    assert [row.tile for row in rows] == [0, 2, 4, 6, 8]
    savings, errors = [row.costs[0] for row in rows], [row.error for row in rows]
    assert savings == sorted(savings)
    # What f16 allows: 1e-5. Tiles of 6 and 8 are past it, which is why they are not used.
    assert errors[1:] == sorted(errors[1:]) and errors[2] < 1e-5 < errors[4]
    assert tile_table(rows).count("\n") == 6
