"""A fused op alone on the GPU: exported, lowered to a plan, run from its files."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor, nn

from converter import ops
from converter.graph import export
from converter.targets.webgpu.lower import lower
from converter.targets.webgpu.tuning import Tuning
from runtime_py.package import TensorSpec
from runtime_py.webgpu.adapters import adapters, choose, open_device
from runtime_py.webgpu.executor import Executor
from runtime_py.webgpu.plan import Plan, check_plan
from tests.support.gpu import both_drivers, vulkan_driver

needs_webgpu = pytest.mark.skipif(
    not vulkan_driver(), reason="no Vulkan driver; tools/software_gpu.py fetches one"
)
LAYOUTS = {1: "N", 2: "NLC", 3: "NLC", 4: "NCHW"}
#: How many leading arguments of an op are activations; one unless named here.
ACTIVATIONS = {"attention": 3, "join": 2}
ADAPTER = os.environ.get("POCKETSD_TEST_ADAPTER")


# wgpu looks which drivers there are once: it shall know SwiftShader from the start. Others, which
# would take SwiftShader where both are shown, look later and see what they always see.
if vulkan_driver():
    with patch.dict(os.environ, both_drivers()):
        adapters()


@cache
def device(adapter: str | None = ADAPTER) -> Any:
    return open_device(choose(adapter), {"shader-f16", "subgroup", "timestamp-query"})


def has_f16() -> bool:
    return bool(adapters()) and "shader-f16" in choose(ADAPTER).features


class Alone(nn.Module):
    def __init__(self, op: ops.FusedOp, rest: tuple[Any, ...]) -> None:
        super().__init__()
        self.op, self.rest = op, rest
        for index, value in enumerate(rest):
            if isinstance(value, Tensor):
                self.register_buffer(f"w{index}.weight".replace(".", "_"), value)

    def forward(self, *inputs: Tensor) -> tuple[Tensor]:
        rest = [
            getattr(self, f"w{index}_weight") if isinstance(value, Tensor) else value
            for index, value in enumerate(self.rest)
        ]
        return (self.op(*inputs, *rest),)


def run_op(
    op: ops.FusedOp,
    arguments: tuple[Any, ...],
    arithmetic: str,
    folder: Path,
    *,
    int8: bool = False,
    tuning: Tuning | None = None,
    **how: Any,
) -> NDArray[Any]:
    count = ACTIVATIONS.get(op.name, 1)
    return run_module(
        Alone(op, arguments[count:]), arguments[:count], arithmetic, folder, int8, tuning, **how
    )


def run_module(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    arithmetic: str,
    folder: Path,
    int8: bool = False,
    tuning: Tuning | None = None,
    *,
    subgroups: bool = True,
    adapter: str | None = ADAPTER,
) -> NDArray[Any]:
    plan, weights = lowered(module, inputs, arithmetic, int8, tuning)
    save_file(weights, folder / "weights.safetensors")
    executor = Executor(device(adapter), plan, folder / "weights.safetensors", subgroups=subgroups)
    y = executor.run({f"x{i}": x.numpy() for i, x in enumerate(inputs)})["y"]
    executor.close()
    return y


def lowered(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    arithmetic: str,
    int8: bool = False,
    tuning: Tuning | None = None,
) -> tuple[Plan, dict[str, NDArray[Any]]]:
    with torch.no_grad():
        expected = module(*inputs)[0]
        program = export(module, inputs)
        ins = [_spec(f"x{i}", x) for i, x in enumerate(inputs)]
        plan, weights = lower(
            "alone", program, ins, [_spec("y", expected)], arithmetic, int8=int8, tuning=tuning
        )
    check_plan(plan)
    return plan, weights


def _spec(name: str, x: Tensor) -> TensorSpec:
    dtype = "int32" if x.dtype == torch.int32 else "float32"
    layout = "NL" if dtype == "int32" else LAYOUTS[x.ndim]
    return TensorSpec(name, tuple(x.shape), dtype, layout)


def normalised_error(expected: Tensor, result: NDArray[Any]) -> float:
    """Mean square of the error over the mean square of what was expected."""
    exact = expected.double().numpy()
    return float(np.mean((result - exact) ** 2) / np.mean(exact**2))
