"""`pocketsd verify` on packages of our own kernels."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from converter.verify.plan import _judged
from converter.verify.verify import Figure
from runtime_py.package import Package, open_package, seal
from runtime_py.webgpu.adapters import choose
from tests.e2e.test_cli import pocketsd
from tests.e2e.test_webgpu_cli import PRECISION, one_line
from tests.support.webgpu import needs_webgpu

pytestmark = [needs_webgpu, pytest.mark.xdist_group("webgpu")]
#: Few timesteps and pictures: what is measured is tested elsewhere, here that it is.
QUICK = ("--per-picture", 1, "--pictures", 1, "--score", 1)


def test_verify_measures_components_pictures_and_prompts(
    webgpu_package: Any, tiny_package: Package, tmp_path: Path
) -> None:
    shutil.copytree(webgpu_package(PRECISION).path, tmp_path / "good.pkg")
    source = tiny_package.path
    done = pocketsd("verify", tmp_path / "good.pkg", "--source", source, *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    figures = {(f["what"], f["where"]): f for f in report["figures"]}
    components = {(c.name, "gpu") for c in webgpu_package(PRECISION).manifest.components}
    exam = {("prompts obeyed", "source"), ("prompts obeyed", "gpu")}
    assert set(figures) == components | exam | {("picture", "gpu")}
    source, mine = (figures["prompts obeyed", where] for where in ("source", "gpu"))
    assert source["gate"] is None and mine["gate"] == source["value"] - 1
    assert all(figures[c]["gate"] is not None for c in components)
    quality = open_package(tmp_path / "good.pkg").manifest.quality
    assert quality["verified"] is True and quality["gpu"] == str(choose())


def test_verify_fails_what_is_not_what_it_says(
    webgpu_package: Any, tiny_package: Package, tmp_path: Path
) -> None:
    """int8 weights under the name of fp32: some 55 dB where 90 are due."""
    if PRECISION != "fp16":
        pytest.skip("this adapter has no f16")
    package = webgpu_package("int8")
    shutil.copytree(package.path, tmp_path / "false.pkg")
    (tmp_path / "false.pkg/manifest.json").unlink()
    seal(tmp_path / "false.pkg", dataclasses.replace(package.manifest, precision="fp32"))
    options = ("--per-picture", 1, "--pictures", 0)
    done = pocketsd("verify", tmp_path / "false.pkg", "--source", tiny_package.path, *options)
    assert done.returncode == 1 and "of 90 dB" in done.stderr
    assert open_package(tmp_path / "false.pkg").manifest.quality["verified"] is False


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--accelerator", "cpu"), "no accelerator 'cpu' (webgpu runs on gpu)"),
        (("--adapter", "voodoo"), "no adapter like 'voodoo'"),
        (("--bisect",), "--bisect is for litert packages"),
    ],
)
def test_what_cannot_be_verified_is_said_at_once(
    webgpu_package: Any, tiny_package: Package, options: tuple[str, ...], complaint: str
) -> None:
    package = webgpu_package(PRECISION)
    done = pocketsd("verify", package.path, "--source", tiny_package.path, *options)
    assert complaint in one_line(done)


@pytest.mark.parametrize(
    ("precision", "score", "passed"),
    [
        ("fp16", 94.0, True),
        ("fp16", 93.9, False),
        ("fp32", 96.0, True),
        ("int8", 93.9, False),
        ("w8a8", 40.0, True),
    ],
)
def test_the_score_is_held_against_the_sources(
    webgpu_package: Any, precision: str, score: float, passed: bool
) -> None:
    """A point is allowed to what rounds; not every precision has a gate."""
    package = webgpu_package(PRECISION)
    manifest = dataclasses.replace(package.manifest, precision=precision)
    package = dataclasses.replace(package, manifest=manifest)
    source, mine = (
        Figure("prompts obeyed", w, v, None, "%") for w, v in (("source", 95.0), ("gpu", score))
    )
    assert _judged(package, mine, source).passed is passed
