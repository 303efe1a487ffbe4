"""LiteRT packages on the command line: what goes wrong is one line, what is wrong is exit 1."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime_py.package import Package, open_package, seal
from tests.e2e.test_cli import POCKETSD, pocketsd
from tests.support.gpu import needs_litert

pytestmark = [needs_litert, pytest.mark.xdist_group("litert")]

Tree = Callable[[Path], dict[str, bytes]]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--precision", "w8a8"), "needs recorded inputs"),
        (("--precision", "w8a8", "--calibration", "nothing.npz"), "nothing.npz"),
        (("--precision", "int3"), "no precision 'int3'"),
        (("--height", 100), "height 100 is not a multiple of 64"),
        (("--components", "unet,refiner"), "no component 'refiner'"),
    ],
)
def test_what_cannot_be_converted(
    options: tuple[Any, ...], complaint: str, tiny_sd: Path, tmp_path: Path, tree: Tree
) -> None:
    done = pocketsd("convert", tiny_sd, "--target", "litert", *options, cwd=tmp_path)
    assert done.returncode == 2 and complaint in done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("pocketsd:")]) == 1
    assert "Traceback" not in done.stderr and tree(tmp_path) == {}


def test_no_vulkan_adapter(litert_package: Any, tmp_path: Path, tree: Tree) -> None:
    hidden = dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES"), "/nonexistent.json")
    command = [POCKETSD, "run", litert_package("fp32").path, "-p", "x", "--accelerator", "gpu"]
    done = subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **hidden},
    )
    assert done.returncode == 2 and tree(tmp_path) == {}
    assert done.stderr.strip().splitlines()[-1].startswith("pocketsd: no GPU")


def test_a_corrupted_file(litert_package: Any, tmp_path: Path, tree: Tree) -> None:
    shutil.copytree(litert_package("fp32").path, tmp_path / "bad.pkg")
    file = tmp_path / "bad.pkg/unet.tflite"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (tmp_path / "out").mkdir()
    done = pocketsd("run", "../bad.pkg", "-p", "x", cwd=tmp_path / "out")
    assert done.returncode == 2 and "unet.tflite does not match" in done.stderr
    assert tree(tmp_path / "out") == {}


def test_an_engine_refuses_options_it_does_not_have(tiny_package: Package, tmp_path: Path) -> None:
    done = pocketsd(
        "run", tiny_package.path, "-p", "x", "--accelerator", "gpu", "-o", tmp_path / "x.png"
    )
    assert done.returncode == 2 and "has no option accelerator" in done.stderr


def test_verify_writes_what_it_measured(
    litert_package: Any, tiny_package: Package, tmp_path: Path
) -> None:
    shutil.copytree(litert_package("fp32").path, tmp_path / "good.pkg")
    options = ("--source", tiny_package.path, "--accelerator", "cpu", "--per-picture", 2)
    done = pocketsd("verify", tmp_path / "good.pkg", *options)
    assert done.returncode == 0, done.stderr
    quality = open_package(tmp_path / "good.pkg").manifest.quality
    assert quality["verified"] is True and "unet on cpu" in quality
    assert "quality" in pocketsd("inspect", tmp_path / "good.pkg").stdout


def test_verify_fails_what_is_not_what_it_says(
    litert_package: Any, tiny_package: Package, tmp_path: Path
) -> None:
    """fp16 weights under the name of fp32: 60 dB where 90 are due."""
    shutil.copytree(litert_package("fp16").path, tmp_path / "false.pkg")
    manifest = litert_package("fp16").manifest
    (tmp_path / "false.pkg/manifest.json").unlink()
    seal(tmp_path / "false.pkg", dataclasses.replace(manifest, precision="fp32"))
    options = ("--accelerator", "cpu", "--per-picture", 2, "--pictures", 0)
    done = pocketsd("verify", tmp_path / "false.pkg", "--source", tiny_package.path, *options)
    assert done.returncode == 1 and "of 90 dB" in done.stderr
    assert open_package(tmp_path / "false.pkg").manifest.quality["verified"] is False


def test_verify_wants_the_true_source(
    litert_package: Any, tiny_package: Package, tmp_path: Path
) -> None:
    manifest = tiny_package.manifest
    shutil.copytree(tiny_package.path, tmp_path / "other")
    (tmp_path / "other/manifest.json").unlink()
    other = tuple(dataclasses.replace(s, sha256="0" * 64) for s in manifest.sources)
    seal(tmp_path / "other", dataclasses.replace(manifest, sources=other))
    done = pocketsd("verify", litert_package("fp32").path, "--source", tmp_path / "other")
    assert done.returncode == 2 and "made of something else" in done.stderr


def test_record_then_calibrate(tiny_package: Package, tiny_sd: Path, tmp_path: Path) -> None:
    done = pocketsd("record", tiny_package.path, cwd=tmp_path)
    assert done.returncode == 2 and "nothing to draw" in done.stderr
    done = pocketsd(
        "record", tiny_package.path, "-p", "a red circle", "--per-picture", 4, cwd=tmp_path
    )
    assert done.returncode == 0 and "4 of unet" in done.stdout, done.stderr
    done = pocketsd(
        "convert", tiny_sd, "--target", "litert", "--precision", "w8a8", "--components",
        "unet", "--calibration", "recording.npz", "-o", "out.pkg", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
