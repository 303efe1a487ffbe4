"""What each size of Winograd's tiles saves, what it costs, and how exact it is on this adapter."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file
from torch import Tensor

from converter.targets.webgpu.builder import Value
from converter.targets.webgpu.kernels import Kernels
from converter.targets.webgpu.lower import pack, unpack
from converter.targets.webgpu.tuning import Tuning
from converter.targets.webgpu.winograd import TILES, winograd
from runtime_py.package import TensorSpec
from runtime_py.webgpu.executor import Executor
from runtime_py.webgpu.plan import Port

CHANNELS, SIZE = 64, 24


@dataclass(frozen=True)
class TileRow:
    tile: int  # 0: the direct kernel
    error: float  # mean square, of the result's mean square

    @property
    def costs(self) -> tuple[float, float, float]:
        """Products saved, and how much larger tensors and weights are."""
        if not self.tile:
            return 1.0, 1.0, 1.0
        form = winograd(self.tile)
        return form.saving, form.memory, form.weights


def tile_rows(device: Any, arithmetic: str) -> Iterator[TileRow]:
    """The direct kernel first, then every tile, on one 3x3 convolution of random numbers."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1, CHANNELS, SIZE, SIZE, generator=g)
    weight = torch.randn(CHANNELS, CHANNELS, 3, 3, generator=g) / (3 * CHANNELS**0.5)
    exact = torch.nn.functional.conv2d(x.double(), weight.double(), padding=1)
    for tile in (0, *TILES):
        forced = replace(Tuning(), winograd=tile > 0, winograd_tiles=(tile,), winograd_price=-1e9)
        found = _convolved(device, x, weight, arithmetic, forced).double()
        yield TileRow(tile, float(((found - exact) ** 2).mean() / (exact**2).mean()))


def _convolved(device: Any, x: Tensor, weight: Tensor, arithmetic: str, tuning: Tuning) -> Tensor:
    spec = TensorSpec("x", tuple(x.shape), "float32", "NCHW")
    ports = Port("input:x", tuple(x.shape), "float32"), Port("output:x", tuple(x.shape), "float32")
    builder = Kernels("tile", arithmetic, tuning)
    inside = pack(builder, spec, ports[0])
    assert isinstance(inside, Value)
    y = builder.convolve(inside, weight, torch.zeros(len(weight)), 1, [1, 1, 1, 1], 1)
    unpack(builder, y, spec, ports[1])
    plan = builder.plan({"x": ports[0]}, {"x": ports[1]})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights.safetensors"
        save_file(builder.arrays, file)
        executor = Executor(device, plan, file)
    try:
        return torch.from_numpy(executor.run({"x": x.numpy()})["x"].copy())
    finally:
        executor.close()


def tile_table(rows: list[TileRow]) -> str:
    lines = [
        "| tile | products saved | tensors | weights | error |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        name = f"F({row.tile}x{row.tile})" if row.tile else "direct"
        saving, memory, weights = row.costs
        lines.append(f"| {name} | {saving:.2f} | {memory:.2f} | {weights:.2f} | {row.error:.0e} |")
    return "\n".join(lines)
