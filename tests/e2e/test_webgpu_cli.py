"""WebGPU packages on the command line, from the checkpoint to a picture and a profile."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from converter.targets.webgpu.ablation import STEPS
from runtime_py.package import Package
from tests.e2e.test_cli import POCKETSD, pocketsd
from tests.support.webgpu import has_f16, needs_webgpu

pytestmark = [needs_webgpu, pytest.mark.xdist_group("webgpu")]

Tree = Callable[[Path], dict[str, bytes]]
PRECISION = "fp16" if has_f16() else "fp32"


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("pocketsd:")]
    return line


def test_from_checkpoint_to_picture(tiny_sd: Path, tmp_path: Path) -> None:
    done = pocketsd(
        "convert", tiny_sd, "--target", "webgpu", "--precision", PRECISION, "--steps", 4,
        "-o", "tiny.webgpu", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = pocketsd(
        "run", "tiny.webgpu", "-p", "a red circle", "--cfg-scale", 2, "-o", "red.png", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert Image.open(tmp_path / "red.png").size == (128, 128)


def test_the_profile_of_a_component(webgpu_package: Any, tmp_path: Path) -> None:
    package: Package = webgpu_package(PRECISION)
    done = pocketsd(
        "bench", package.path, "--profile", "--component", "text_encoder",
        "--trace", "trace.json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "GFLOP/s" in done.stdout and "gemm" in done.stdout and "layer_norm" in done.stdout
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert f"{len(events)} kernels" in done.stdout
    assert any(event["args"]["layer"].endswith("q_proj") for event in events)


def test_an_ablation_has_a_row_for_every_step(tiny_sd: Path) -> None:
    done = pocketsd(
        "bench", tiny_sd, "--ablate", "--component", "text_encoder", "--rounds", 1,
        "--precision", PRECISION,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ablation, tiles = done.stdout.split("\n\n")
    assert [tile in tiles for tile in ("direct", "F(2x2)", "F(8x8)")] == [True] * 3
    rows = [line.split("|") for line in ablation.splitlines() if line.startswith("| ")]
    names = [row[1].strip() for row in rows[1:]]
    assert names == list(STEPS)
    assert all(float(row[7]) > 40 for row in rows[1:])  # dB: every row is right


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--profile", "--adapter", "voodoo"), "no adapter like 'voodoo'"),
        (("--profile", "--component", "refiner"), "the package has no refiner"),
        (("--profile", "--ablate"), "one of --profile"),
        ((), "one of --profile"),
    ],
)
def test_what_cannot_be_timed(
    arguments: tuple[Any, ...], complaint: str, webgpu_package: Any, tmp_path: Path, tree: Tree
) -> None:
    done = pocketsd("bench", webgpu_package(PRECISION).path, *arguments, cwd=tmp_path)
    assert complaint in one_line(done) and tree(tmp_path) == {}


def test_other_packages_have_no_kernels(tiny_package: Package, tmp_path: Path) -> None:
    done = pocketsd("bench", tiny_package.path, "--profile", cwd=tmp_path)
    assert "only webgpu packages can be profiled" in one_line(done)


def test_no_gpu_at_all(webgpu_package: Any, tmp_path: Path, tree: Tree) -> None:
    hidden = dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES"), "/nonexistent.json")
    command = [str(POCKETSD), "run", str(webgpu_package(PRECISION).path), "-p", "x"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **hidden}
    )
    assert "no GPU that WebGPU can use" in one_line(done) and tree(tmp_path) == {}
