"""The Swift package for iPhones and Macs, as far as it runs without Apple's frameworks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runtime_py.package import Package
from runtime_py.pipeline import tokenizer_of
from tests.conftest import ROOT

IOS = ROOT / "mobile_assets" / "ios"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("swift") is None, reason="there is no Swift on this machine"),
    pytest.mark.xdist_group("swift"),
]


def swift(build: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["swift", arguments[0], "--scratch-path", build, *arguments[1:]],
        cwd=IOS,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("swift")


@pytest.fixture(scope="module")
def left(build: Path, tiny_package: Package, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the package's own tests leave files to look at."""
    folder = tmp_path_factory.mktemp("pictures")
    ran = swift(
        build,
        "test",
        "-Xswiftc",
        "-warnings-as-errors",
        POCKETSD_PACKAGE=str(tiny_package.path),
        POCKETSD_PICTURES=str(folder),
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    assert re.search(r"Executed \d\d tests, with 0 failures", ran.stdout + ran.stderr)
    return folder


def test_pictures_are_read_by_others(left: Path) -> None:
    index = np.arange(150 * 200 * 3)
    with Image.open(left / "large.png") as image:
        image.load()  # checks every checksum
        assert np.array_equal(
            np.asarray(image).ravel(), (index * index // 7 % 256).astype(np.uint8)
        )
    with Image.open(left / "small.png") as image:
        assert image.getpixel((0, 0)) == (1, 2, 3)


def test_the_result_is_as_documented(left: Path) -> None:
    record = json.loads((left / "result.json").read_text(encoding="utf-8"))
    rows = re.findall(r"^\| (`[^|]+`) \| (\w+) \|", (IOS / "RESULT.md").read_text(), re.MULTILINE)
    types = {name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}
    assert record.keys() == types.keys()
    fits = {"text": str, "texts": list, "number": int | float, "numbers": list}
    fits |= {"integer": int, "boolean": bool}
    for name, value in record.items():
        assert value is None or isinstance(value, fits[types[name]]), name
    assert (record["format"], record["version"]) == ("pocketsd-result", 1)


def test_check_agrees_with_python(build: Path, left: Path, tiny_package: Package) -> None:
    prompt = "A red CIRCLE, it's 日本 🐈 \U00020041\u0301" + " and so on" * 30
    ran = swift(build, "run", "pocketsd-bench", "check", str(tiny_package.path), "--prompt", prompt)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    tokens = tokenizer_of(tiny_package)(prompt)
    assert f"tokens: {' '.join(map(str, tokens.ids.tolist()))}" in lines
    assert f"does not fit: {tokens.cut}" in lines
    manifest = json.loads((tiny_package.path / "manifest.json").read_bytes())
    assert f"sha256 {manifest['sha256']}" in lines


def test_what_cannot_be_done_is_one_line(build: Path, left: Path, tiny_package: Package) -> None:
    place = str(tiny_package.path)
    for arguments, message in [
        (["check", place + "x"], "not a package"),
        (["--steps", "many", place], "--steps many is not a number"),
        ([place], "no Core ML"),
    ]:
        ran = swift(build, "run", "--skip-build", "pocketsd-bench", *arguments)
        assert ran.returncode == 2
        assert message in ran.stderr
        assert ran.stderr.startswith("pocketsd-bench: ")
        assert ran.stderr.count("\n") == 1


def test_the_style_is_kept() -> None:
    places = ("Sources", "Tests", "App", "Package.swift")
    command = ["swift", "format", "lint", "--strict", "--recursive", *places]
    ran = subprocess.run(command, cwd=IOS, capture_output=True, text=True)
    if "unknown or missing subcommand" in ran.stderr:
        pytest.skip("this Swift comes without its formatter")
    assert ran.returncode == 0, ran.stderr


def test_the_engine_on_a_stand_in_for_core_ml(tmp_path: Path) -> None:
    ran = swift(tmp_path, "test", "-Xswiftc", "-warnings-as-errors", POCKETSD_STAND_IN="1")
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
    assert re.search(r"Executed [1-9]\d* tests, with 0 failures", ran.stdout + ran.stderr)
