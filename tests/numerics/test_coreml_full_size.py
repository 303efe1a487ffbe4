"""SD 1.5's real widths through the Core ML target: time, memory, sizes, numbers."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("coremltools")

from converter.checkpoints import open_checkpoint
from converter.components import example, geometry, get_component
from runtime_py.coreml.evaluator import Evaluator
from runtime_py.engines import open_engine
from runtime_py.package import Package, open_package
from runtime_py.quality import psnr
from tests.e2e.test_cli import POCKETSD
from tests.support.full_size import write_full_size

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("coreml-full-size")]
MEMORY, SECONDS = 8e9, 300
#: By component: megabytes of fp16 weights.
SIZES = {"text_encoder": 246, "unet": 1720, "vae_decoder": 99, "vae_encoder": 68}


@dataclass(frozen=True)
class Conversion:
    package: Package
    seconds: float
    peak: float  # bytes

    @property
    def megabytes(self) -> float:
        files = self.package.manifest.files.items()
        return sum(entry.bytes for name, entry in files if ".mlpackage" in name) / 1e6


@pytest.fixture(scope="module")
def sd15(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_full_size(tmp_path_factory.mktemp("full") / "sd15")


def converted(model: Path, out: Path, component: str, *more: object) -> Conversion:
    """In a process of its own, whose time and peak memory are taken."""
    command = [
        POCKETSD, "convert", model, "-o", out, "--target", "coreml",
        "--components", component, "--batch-cfg", 1, *more,
    ]  # fmt: skip
    started = time.monotonic()
    process = subprocess.Popen([str(c) for c in command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, said
    done = Conversion(open_package(out), time.monotonic() - started, usage.ru_maxrss * 1024)
    print(
        f"{component} {' '.join(map(str, more))}: {done.seconds:.0f} s, {done.peak / 1e9:.1f} GB,"
        f" {done.megabytes:.0f} MB"
    )
    return done


@pytest.mark.parametrize("component", SIZES)
def test_converts_at_full_size(sd15: Path, tmp_path: Path, component: str) -> None:
    done = converted(sd15, tmp_path / "out", component)
    assert done.peak < MEMORY and done.seconds < SECONDS
    assert done.megabytes == pytest.approx(SIZES[component], rel=0.03)


def test_neural_engines_form_at_full_size(sd15: Path, tmp_path: Path) -> None:
    settings = ("--set", "attention=split-einsum", "--set", "ios=16", "--set", "chunks=2")
    done = converted(sd15, tmp_path / "out", "unet", *settings)
    assert done.peak < MEMORY
    links = done.package.manifest.component("unet").config["chain"]
    found = [Evaluator(done.package.file(link["file"])).histogram() for link in links]
    assert sum(part["einsum"] for part in found) == 16 * 2 * 8 * 2
    # The keys of every attention; and the text, as it enters either part.
    assert sum(part["transpose"] for part in found) == 16 * 2 + 2


def test_six_bits_at_full_size(sd15: Path, tmp_path: Path) -> None:
    done = converted(sd15, tmp_path / "out", "unet", "--precision", "palette6")
    assert done.peak < MEMORY
    assert done.megabytes == pytest.approx(647, rel=0.02)


def test_unet_at_full_width_agrees_with_torch(sd15: Path, tmp_path: Path) -> None:
    """At 16x16 latents; fp16 differs by eleven bits of weights and of every tensor."""
    checkpoint = open_checkpoint(sd15)
    sizes = geometry(checkpoint, 128, 128, 1, 1)
    spec = get_component("unet")
    inputs = example(spec.inputs(sizes))
    expected = spec.module(checkpoint)(*inputs).numpy()
    named = {s.name: x.numpy() for s, x in zip(spec.inputs(sizes), inputs, strict=True)}
    done = converted(sd15, tmp_path / "out", "unet", "--height", 128, "--width", 128)
    for arithmetic, least in (("fp16", 50), ("fp32", 60)):
        engine = open_engine(done.package, arithmetic=arithmetic)
        (result,) = engine.run("unet", named).values()
        found = psnr(expected, np.asarray(result))
        print(f"unet at 16x16 latents, fp16 weights, {arithmetic}: {found:.1f} dB")
        assert found >= least
        engine.close()
