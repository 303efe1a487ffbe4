"""The kernels on a second implementation of Vulkan: what one driver forgives, another may not.

SwiftShader has no f16 and subgroups of four: on it run the plain shaders, in f32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from converter import ops
from converter.targets.webgpu.tuning import Tuning
from runtime_py.engines import open_engine
from runtime_py.package import Package
from runtime_py.pipeline import run_component
from runtime_py.quality import psnr
from runtime_py.recording import record
from runtime_py.webgpu.adapters import adapters, choose
from runtime_py.webgpu.subgroups import shares_rows
from tests.numerics.test_webgpu_kernels import LIMIT, exact
from tests.numerics.test_webgpu_packages import GATES
from tests.support.gpu import needs_swiftshader
from tests.support.webgpu import ACTIVATIONS, device, normalised_error, run_op

pytestmark = [needs_swiftshader, pytest.mark.xdist_group("swiftshader")]

ADAPTER = "swiftshader"
#: SwiftShader is several times slower than lavapipe: so many tokens of a sequence are enough.
TOKENS = 256


def smaller(op: ops.FusedOp, case: ops.Case) -> tuple[Any, ...]:
    """The case's arguments with sequences cut: a row of the result needs no other one's."""
    arguments = list(case.arguments())
    for index in range(ACTIVATIONS.get(op.name, 1)):
        x = arguments[index]
        if isinstance(x, Tensor) and x.ndim == 3:
            arguments[index] = x[:, :TOKENS].contiguous()
    return tuple(arguments)


@pytest.mark.parametrize(
    ("op", "case"),
    [pytest.param(o, c, id=f"{o.name}: {c.label}") for o in ops.all_ops() for c in o.cases],
)
def test_kernels(op: ops.FusedOp, case: ops.Case, tmp_path: Path) -> None:
    arguments = smaller(op, case)
    result = run_op(op, arguments, "f32", tmp_path, adapter=ADAPTER)
    assert normalised_error(exact(op, arguments), result) <= LIMIT["f32"]


def test_winograd(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(4)
    weight = torch.randn(72, 64, 3, 3, generator=g) / 24
    x, bias = torch.randn(2, 64, 13, 7, generator=g), torch.randn(72, generator=g)
    tuning = Tuning(winograd_tiles=(4,), winograd_price=-1e9)
    arguments = (x, weight, bias, 1, [1, 1, 1, 1], 1)
    result = run_op(ops.conv2d, arguments, "f32", tmp_path, tuning=tuning, adapter=ADAPTER)
    assert normalised_error(exact(ops.conv2d, arguments), result) <= LIMIT["f32"]


def test_it_is_not_what_one_gets_unasked() -> None:
    assert "SwiftShader" in choose(ADAPTER).name and "shader-f16" not in choose(ADAPTER).features
    others = [adapter for adapter in adapters() if "shader-f16" in adapter.features]
    assert not others or choose().name == others[0].name


def test_its_subgroups_are_too_small() -> None:
    assert not shares_rows(device(ADAPTER))


def test_components_agree_with_torch(tiny_package: Package, webgpu_package: Any) -> None:
    """As closely as on lavapipe: rounding alone."""
    table = tiny_package.table("dpm++-2m", 4)
    assert table is not None
    reference = open_engine(tiny_package)
    recording = record(reference, tiny_package, table, ["a red circle"], guidance=2, per_picture=1)
    package = webgpu_package("fp32")
    engine = open_engine(package, adapter=ADAPTER)
    found = {}
    for component in package.manifest.components:
        sample = recording.of(component.name)[0]
        (expected,) = sample.outputs.values()
        result = run_component(engine, package, component.name, **sample.inputs)
        found[component.name] = psnr(expected, result)
    engine.close()
    print(found)
    assert min(found.values()) >= GATES["fp32"], found
