"""SD 1.5's real widths through the LiteRT target: time, memory, delegation, numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime_py.package import open_package
from tests.e2e.test_cli import POCKETSD, pocketsd
from tests.support.full_size import write_full_size
from tests.support.gpu import needs_gpu, needs_litert

pytestmark = [pytest.mark.slow, needs_litert]
MEMORY, UNET_MINUTES = 14e9, 3
COMPONENTS = ("text_encoder", "unet", "vae_decoder", "vae_encoder")
COMPILE = """
import sys
from pathlib import Path
from runtime_py.engines.litert import compile_file
said = compile_file(Path(sys.argv[1]))
print(said)
sys.exit(0 if said.whole else 1)
"""


@pytest.fixture(scope="module")
def sd15(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_full_size(tmp_path_factory.mktemp("full") / "sd15")


def converted(folder: Path, out: Path, component: str, precision: str, *more: object) -> Path:
    """Convert one component in a process of its own; its peak memory must stay below MEMORY."""
    command = [
        POCKETSD, "convert", folder, "-o", out, "--target", "litert",
        "--components", component, "--precision", precision, "--batch-cfg", 1, "--steps", 2, *more,
    ]  # fmt: skip
    started = time.monotonic()
    process = subprocess.Popen([str(c) for c in command], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    minutes, peak = (time.monotonic() - started) / 60, usage.ru_maxrss * 1024
    assert os.waitstatus_to_exitcode(status) == 0, said
    size = sum(entry.bytes for entry in open_package(out).manifest.files.values())
    print(f"{component} {precision}: {minutes:.1f} min, {peak / 1e9:.1f} GB, {size / 1e6:.0f} MB")
    assert peak < MEMORY
    if (component, precision) == ("unet", "fp16"):
        assert minutes < UNET_MINUTES
    return out


@pytest.mark.parametrize("component", COMPONENTS)
def test_converts_at_full_size_and_the_gpu_takes_it_whole(
    sd15: Path, tmp_path: Path, component: str
) -> None:
    package = open_package(converted(sd15, tmp_path / "pkg", component, "fp16"))
    for file in package.manifest.component(component).files:
        assert package.file(file).stat().st_size < 500e6
        if needs_gpu.args[0]:
            continue
        # A process each: the driver gives memory back only at the end of one.
        command = [sys.executable, "-c", COMPILE, str(package.file(file))]
        done = subprocess.run(command, capture_output=True, text=True)
        print(done.stdout.strip())
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("component", ["text_encoder", "unet"])
def test_int8_at_full_size(sd15: Path, tmp_path: Path, component: str) -> None:
    converted(sd15, tmp_path / "pkg", component, "int8")


@needs_gpu
def test_numbers_at_full_width(sd15: Path, tmp_path: Path) -> None:
    """At 16x16 latents, where the software GPU needs seconds and not minutes."""
    small = ("--height", 128, "--width", 128)
    converted(sd15, tmp_path / "litert", "unet", "fp16", *small)
    done = pocketsd("convert", sd15, "-o", tmp_path / "torch", "--components", "unet")
    assert done.returncode == 0, done.stderr
    program = f"""
import numpy as np
from pathlib import Path
from runtime_py.engines import open_engine
from runtime_py.package import open_package
from runtime_py.pipeline import run_component
from runtime_py.quality import psnr
dice = np.random.default_rng(0)
inputs = dict(latent=dice.standard_normal((1, 4, 16, 16), np.float32),
              timestep=np.array([981], np.float32),
              embedding=dice.standard_normal((1, 77, 768), np.float32))
results = []
for name, options in (("torch", {{}}), ("litert", {{"accelerator": "cpu"}}),
                      ("litert", {{"accelerator": "gpu"}}),
                      ("litert", {{"accelerator": "gpu", "arithmetic": "fp32"}})):
    package = open_package(Path({str(tmp_path)!r}) / name)
    engine = open_engine(package, **options)
    results.append(run_component(engine, package, "unet", **inputs))
    engine.close()
print(*(round(psnr(results[0], r), 1) for r in results[1:]))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr[-2000:]
    print("dB against torch, fp16 weights: CPU, GPU fp16, GPU fp32:", answer.stdout)
    assert min(float(value) for value in answer.stdout.split()) >= 40  # of fp16
