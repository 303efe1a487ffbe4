"""SD 1.5's real widths as plans of our own kernels: memory, arenas, numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runtime_py.package import open_package
from runtime_py.webgpu.plan import Plan, read_plan
from tests.e2e.test_cli import POCKETSD
from tests.support.full_size import write_full_size
from tests.support.webgpu import ADAPTER, has_f16, needs_webgpu

pytestmark = [
    pytest.mark.slow,
    needs_webgpu,
    pytest.mark.skipif(not has_f16(), reason="this adapter has no f16"),
]
#: Peak of any process, and of the three components of a text-to-picture run at 512x512 together.
MEMORY, ARENAS = 12e9, 387e6
#: dB. Weights and every stored tensor are rounded to the eleven bits of f16.
AGREEMENT = 40

REFERENCE = """
import sys
from pathlib import Path
import numpy as np
from converter.targets.webgpu.subject import of_checkpoint
source, component, batch, out = sys.argv[1:]
_, _, _, inputs, expected = of_checkpoint(Path(source), component, 512, 512, int(batch))
np.savez(out, expected=expected, **inputs)
"""
RUN = f"""
import sys, time
from pathlib import Path
import numpy as np
from runtime_py.engines import open_engine
from runtime_py.package import open_package
from runtime_py.quality import psnr
package, component, samples = sys.argv[1:]
inputs = dict(np.load(samples))
expected = inputs.pop("expected")
started = time.monotonic()
engine = open_engine(open_package(Path(package)), adapter={ADAPTER!r})
engine.load(component)
loaded = time.monotonic()
(result,) = engine.run(component, inputs).values()
print(f"{{engine.adapter}}: loaded in {{loaded - started:.0f}} s,"
      f" run in {{time.monotonic() - loaded:.0f}} s", file=sys.stderr)
print(psnr(expected, result))
"""


@pytest.fixture(scope="module")
def sd15(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_full_size(tmp_path_factory.mktemp("full") / "sd15")


@pytest.fixture(scope="module")
def one_at_a_time(sd15: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What draws a picture, each component for a batch of one."""
    return converted(sd15, tmp_path_factory.mktemp("one"), "text_encoder,unet,vae_decoder", 1)


def within_memory(what: str, *command: object) -> str:
    """What a process of its own prints; its peak memory must stay below MEMORY."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [str(c) for c in command], stdout=subprocess.PIPE, stderr=said, text=True
        )
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        said.seek(0)
        errors = said.read()
    peak = usage.ru_maxrss * 1024
    print(f"{what}: {peak / 1e9:.1f} GB at most. {errors.strip().splitlines()[-1:]}")
    assert os.waitstatus_to_exitcode(status) == 0, errors[-2000:]
    assert peak < MEMORY
    return printed


def converted(source: Path, folder: Path, components: str, batch: int) -> Path:
    out = folder / "sd15.webgpu"
    within_memory(
        f"converting {components}",
        *(POCKETSD, "convert", source, "-o", out, "--target", "webgpu", "--precision", "fp16"),
        *("--components", components, "--batch-cfg", batch, "--steps", 2),
    )
    return out


def agreement(sd15: Path, package: Path, folder: Path, component: str, batch: int) -> float:
    """dB against PyTorch. It runs in a process of its own as well, for the memory both take."""
    samples = folder / f"{component}.npz"
    reference = (sys.executable, "-c", REFERENCE, sd15, component, batch, samples)
    within_memory(f"{component} in PyTorch", *reference)
    found = within_memory(component, sys.executable, "-c", RUN, package, component, samples)
    print(f"{component}: {float(found):.1f} dB")
    return float(found)


def test_a_guided_step_of_the_unet(sd15: Path, tmp_path: Path) -> None:
    """64x64 latents, the two halves of guidance in one batch."""
    package = converted(sd15, tmp_path, "unet", 2)
    assert agreement(sd15, package, tmp_path, "unet", 2) >= AGREEMENT


def test_a_picture_of_512(sd15: Path, one_at_a_time: Path, tmp_path: Path) -> None:
    assert agreement(sd15, one_at_a_time, tmp_path, "vae_decoder", 1) >= AGREEMENT


@pytest.fixture(scope="module")
def plans(one_at_a_time: Path) -> list[Plan]:
    package = open_package(one_at_a_time)
    return [read_plan(package.file(c.files[0])) for c in package.manifest.components]


def test_arenas_are_as_small_as_can_be(plans: list[Plan]) -> None:
    """What must live at the busiest moment, and 2 % at most."""
    found = {plan.component: plan.arena / plan.live for plan in plans}
    print(found)
    assert max(found.values()) <= 1.02


def test_arenas_of_a_picture_together(plans: list[Plan]) -> None:
    found = {plan.component: plan.arena / 1e6 for plan in plans}
    print(found)
    assert sum(found.values()) <= ARENAS / 1e6
