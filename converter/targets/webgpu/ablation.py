"""Each optimisation added in turn to an honest baseline: real plans, run on the same adapter.

The baseline has the same register-blocked products and convolutions as everything after it; only
what the row names is missing. Rows take turns in every round, so that all meet the same machine.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch.export import ExportedProgram

from converter.components import ComponentSpec, Geometry
from converter.targets.webgpu.lower import lower
from converter.targets.webgpu.tuning import BASELINE, Tuning
from runtime_py.quality import psnr
from runtime_py.webgpu.executor import Executor

STEPS: dict[str, Tuning] = {
    "baseline": BASELINE,
    "+ partially fused softmax": (step := replace(BASELINE, softmax="partial")),
    "+ fused GroupNorm, GELU": (step := replace(step, fused_norm=True, fused_gelu=True)),
    "+ FlashAttention": (step := replace(step, flash=True)),
    "+ Winograd, as shipped": (step := replace(step, winograd=True)),
    "+ Winograd wherever it is faster": replace(step, winograd_price=0),
}


@dataclass
class Row:
    name: str
    dispatches: int
    arena: int  # bytes
    weights: int  # bytes
    seconds: list[float]  # a run in every round
    quality: float  # dB against the reference

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def cut(self, baseline: Row) -> list[float]:
        """How much less than the baseline's in the same round, in percent."""
        pairs = zip(self.seconds, baseline.seconds, strict=True)
        return [100 * (1 - mine / theirs) for mine, theirs in pairs]


def ablate(
    device: Any,
    spec: ComponentSpec,
    geometry: Geometry,
    program: Callable[[], ExportedProgram],
    inputs: Mapping[str, NDArray[Any]],
    expected: NDArray[Any],
    *,
    arithmetic: str = "f16",
    rounds: int = 3,
    steps: Mapping[str, Tuning] = STEPS,
    announce: Callable[[str], None] = lambda what: None,
) -> list[Row]:
    """`announce` hears every step before it begins: one for each row and one for each run."""
    rows, executors, pool = [], [], {}  # type: ignore[var-annotated]
    with tempfile.TemporaryDirectory() as folder:
        for index, (name, tuning) in enumerate(steps.items()):
            announce(f"planning {name}")
            plan, weights = lower(
                spec.name,
                program(),
                spec.inputs(geometry),
                spec.outputs(geometry),
                arithmetic,
                tuning=tuning,
            )
            file = Path(folder) / f"{index}.safetensors"
            save_file(weights, file)
            del weights
            executor = Executor(device, plan, file, pool)
            file.unlink()
            (y,) = executor.run(inputs).values()  # compiles, too
            executors.append(executor)
            stored = sum(plan.weights.values())
            rows.append(Row(name, len(plan.dispatches), plan.arena, stored, [], psnr(expected, y)))
        for turn in range(rounds):
            for row, executor in zip(rows, executors, strict=True):
                announce(f"round {turn + 1}: {row.name}")
                started = time.perf_counter()
                executor.run(inputs)
                row.seconds.append(time.perf_counter() - started)
        for executor in executors:
            executor.close()
    return rows


def table(rows: list[Row]) -> str:
    lines = [
        "| | latency s | cut % (spread) | arena MiB | weights MiB | kernels | dB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cut = row.cut(rows[0])
        spread = f"{np.median(cut):.1f} ({min(cut):.1f} to {max(cut):.1f})"
        lines.append(
            f"| {row.name} | {row.median:.3f} | {spread} | {row.arena / 2**20:.1f}"
            f" | {row.weights / 2**20:.0f} | {row.dispatches} | {row.quality:.1f} |"
        )
    return "\n".join(lines)
