"""A GPU that is lost, too small or without f16, on the command line: one line, nothing written."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime_py.package import Package
from runtime_py.webgpu.adapters import choose
from runtime_py.webgpu.plan import ARENA, read_plan
from tests.e2e.test_cli import pocketsd
from tests.e2e.test_webgpu_cli import PRECISION, one_line
from tests.numerics.test_webgpu_packages import with_plan
from tests.support.gpu import both_drivers, needs_swiftshader
from tests.support.webgpu import needs_webgpu

pytestmark = [needs_webgpu, pytest.mark.xdist_group("webgpu")]

Tree = Callable[[Path], dict[str, bytes]]
SOURCE = Path(__file__).resolve().parents[1] / "support/failing_driver.c"


@needs_swiftshader
def test_an_adapter_without_f16(webgpu_package: Any, tmp_path: Path, tree: Tree) -> None:
    done = pocketsd(
        *("run", webgpu_package("fp16").path, "-p", "x", "--adapter", "swiftshader"),
        cwd=tmp_path,
        **both_drivers(),
    )
    line = one_line(done)
    assert "needs shader-f16, which SwiftShader" in line and "--precision fp32" in line
    assert tree(tmp_path) == {}


def with_binding(package: Package, folder: Path, **changes: int) -> Package:
    """A copy in which the text encoder's first dispatch with one range of the arena binds another,
    in an arena that is large enough."""
    plan = read_plan(package.file("text_encoder.plan.json"))
    dispatches = list(plan.dispatches)
    at, place = next(
        (at, places[0])
        for at, dispatch in enumerate(dispatches)
        if len(places := [i for i, b in enumerate(dispatch.bindings) if b.buffer == ARENA]) == 1
    )
    bindings = list(dispatches[at].bindings)
    bindings[place] = dataclasses.replace(bindings[place], **changes)
    dispatches[at] = dataclasses.replace(dispatches[at], bindings=tuple(bindings))
    arena = max(plan.arena, bindings[place].size)
    return with_plan(package, folder, "text_encoder", arena=arena, dispatches=tuple(dispatches))


def complaint(package: Package, folder: Path, tree: Tree, **environment: str) -> str:
    """What `run` says in one line, having written nothing."""
    folder.mkdir()
    done = pocketsd("run", package.path, "-p", "x", cwd=folder, **environment)
    assert tree(folder) == {}
    return one_line(done)


def test_more_in_one_binding_than_the_adapter_allows(
    webgpu_package: Any, tmp_path: Path, tree: Tree
) -> None:
    """128 MiB on lavapipe, as on many phones."""
    limit = choose().limit("max-storage-buffer-binding-size")
    package = with_binding(webgpu_package(PRECISION), tmp_path, offset=0, size=limit + 2**20)
    line = complaint(package, tmp_path / "out", tree)
    mib = limit // 2**20
    assert f"text_encoder needs {mib + 1} MiB in one binding" in line and f"allows {mib}" in line
    assert "smaller --height" in line


def test_a_plan_with_a_bad_offset(webgpu_package: Any, tmp_path: Path, tree: Tree) -> None:
    package = with_binding(webgpu_package(PRECISION), tmp_path, offset=1000)
    line = complaint(package, tmp_path / "out", tree)
    assert "text_encoder.plan.json: damaged plan" in line and "multiples of 256" in line


@pytest.fixture(scope="module")
def failing_driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment that puts a failing driver before the one that the tests run on."""
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    compiler = shutil.which("cc")
    if not named or not compiler:
        pytest.skip("no C compiler, or no driver named by VK_DRIVER_FILES")
    folder = tmp_path_factory.mktemp("driver")
    real, ours = Path(named.split(os.pathsep)[0]), folder / "failing.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", ours, SOURCE, "-ldl"], check=True)
    described = json.loads(real.read_text())
    library = described["ICD"]["library_path"]
    described["ICD"]["library_path"] = str(ours)
    (folder / "failing.json").write_text(json.dumps(described))
    # A path beside the description, or a name that the system knows.
    beside = real.parent / library
    shown = dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES"), str(folder / "failing.json"))
    return {**shown, "DRIVER": str(beside if beside.exists() else library)}


@pytest.mark.parametrize("failure", ["LOSE_AT_SUBMIT", "LOSE_AT_WAIT"])
@pytest.mark.parametrize("at", ["1", "9"])
def test_a_driver_that_loses_the_gpu(
    webgpu_package: Any,
    failing_driver: dict[str, str],
    tmp_path: Path,
    tree: Tree,
    failure: str,
    at: str,
) -> None:
    """At the first submission, or later; wgpu ends the process then, from either of its threads."""
    package = webgpu_package(PRECISION)
    line = complaint(package, tmp_path / "out", tree, **failing_driver, **{failure: at})
    assert line.startswith("pocketsd: the GPU was lost while it ran ") and "run again" in line


def test_a_driver_without_memory(
    webgpu_package: Any, failing_driver: dict[str, str], tmp_path: Path, tree: Tree
) -> None:
    package = with_plan(webgpu_package(PRECISION), tmp_path, "text_encoder", arena=2**30)
    line = complaint(package, tmp_path / "out", tree, **failing_driver, NO_MEMORY_AT="2")
    assert "no memory left on the GPU for the 10" in line and "--low-memory" in line
