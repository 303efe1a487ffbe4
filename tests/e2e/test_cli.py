"""The command as people use it: real processes, real files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from runtime_py.cli import VERBS
from runtime_py.package import Package

POCKETSD = Path(sys.executable).parent / "pocketsd"
PROMPT = "a red circle on a white background"


def pocketsd(
    *arguments: object, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [str(a) for a in (POCKETSD, *arguments)]
    shown = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=shown, timeout=300)


@pytest.fixture(scope="module")
def converted(tiny_sd: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "tiny.pkg"
    done = pocketsd("convert", tiny_sd, "-o", out, "--steps", 4, "--precision", "fp16")
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout and "MB" in done.stdout
    return out


def test_help_lists_every_verb_and_each_has_examples() -> None:
    assert all(verb in pocketsd("--help").stdout for verb in VERBS)
    for verb in VERBS:
        assert f"pocketsd {verb}" in pocketsd(verb, "--help").stdout


def test_the_harness_imports_nothing_heavy() -> None:
    """But for Core ML's evaluator, which its engine imports when a package is opened."""
    program = """
import pkgutil, sys, runtime_py
from importlib import import_module
for module in pkgutil.walk_packages(runtime_py.__path__, "runtime_py."):
    if not module.name.startswith(("runtime_py.coreml.evaluator", "runtime_py.coreml.ops")):
        import_module(module.name)
heavy = {"torch", "diffusers", "transformers", "tensorflow", "coremltools", "converter", "scipy"}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_imports_almost_nothing() -> None:
    program = """
import sys
sys.argv = ["pocketsd", "--help"]
from runtime_py.cli import main
try:
    main()
finally:
    loaded = {"numpy", "PIL", "msgspec", "torch"} & set(sys.modules)
    assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_run_draws_a_picture_that_depends_on_its_seed(converted: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.png"
    done = pocketsd("run", converted, "-p", PROMPT, "--seed", 1, "--seed", 2, "-o", out)
    assert done.returncode == 0, done.stderr
    first, second = (np.asarray(Image.open(tmp_path / f"p-{seed}.png")) for seed in (1, 2))
    assert first.shape == second.shape == (128, 128, 3) and not np.array_equal(first, second)
    again = pocketsd("run", converted, "-p", PROMPT, "--seed", 1, "-o", out)
    assert again.returncode == 0
    # Alone or beside another seed: equal but for rounding.
    assert np.abs(first.astype(int) - np.asarray(Image.open(out))).max() <= 2


def test_run_with_another_sampler_image_and_preview(converted: Path, tmp_path: Path) -> None:
    start, mask = tmp_path / "start.png", tmp_path / "mask.png"
    Image.new("RGB", (96, 96), (40, 160, 60)).save(start)
    Image.new("L", (96, 96), 255).save(mask)
    for extra in (
        ("--strength", 0.5),
        ("--mask", mask),
        ("--outpaint", "left=32,top=32", "--low-memory"),
    ):
        done = pocketsd(
            "run", converted, "-p", PROMPT, "--scheduler", "euler", "--steps", 3, "--image", start,
            "--preview", tmp_path / "preview.png", "-o", tmp_path / "out.png", "--overwrite",
            *extra,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert Image.open(tmp_path / "out.png").size == (128, 128)
        assert Image.open(tmp_path / "preview.png").size == (16, 16)


def test_outpainting_keeps_what_was_there(converted: Path, tmp_path: Path) -> None:
    start = tmp_path / "start.png"
    Image.new("RGB", (128, 128), (40, 160, 60)).save(start)
    done = pocketsd("run", converted, "-p", PROMPT, "--image", start, "--outpaint", "right=128",
                    "-o", tmp_path / "wide.png")  # fmt: skip
    assert done.returncode == 0, done.stderr
    wide = np.asarray(Image.open(tmp_path / "wide.png"))
    assert wide.shape == (128, 256, 3) and (wide[:, :128] == (40, 160, 60)).all()
    assert not (wide[:, 128:] == (40, 160, 60)).all()


def test_inspect(converted: Path, tiny_sd: Path) -> None:
    assert "4 latent channels" in pocketsd("inspect", tiny_sd).stdout
    assert "for torch, fp16" in pocketsd("inspect", converted).stdout
    assert json.loads(pocketsd("inspect", "--json", converted).stdout)["target"] == "torch"
    assert json.loads(pocketsd("inspect", "--json", tiny_sd).stdout)["kind"] == "checkpoint"


def test_dry_run_writes_nothing(tiny_sd: Path, tmp_path: Path) -> None:
    done = pocketsd("convert", tiny_sd, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0 and list(tmp_path.iterdir()) == []


def test_an_existing_output_is_kept(converted: Path, tiny_sd: Path, tiny_package: Package) -> None:
    before = (converted / "manifest.json").read_bytes()
    done = pocketsd("convert", tiny_sd, "-o", converted)
    assert done.returncode == 2 and "--overwrite" in done.stderr
    assert (converted / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["frobnicate"], "no command 'frobnicate'"),
        (["convert", "nowhere.safetensors"], "no such file"),
        (["convert", "nowhere", "--target", "toaster"], "no target 'toaster'"),
        (["convert", "nowhere", "--scheduler", "euler-a"], "did you mean euler"),
        (["convert", "nowhere", "--components", "unet,vea"], "no component 'vea'"),
        (["convert", "nowhere", "--precision", "int3"], "no precision 'int3'"),
        (["convert", "nowhere", "--steps", "0"], "--steps"),
        (["run", ".", "-p", "x"], "not a package"),
        (["run", "."], "prompt"),
        (["inspect", "nowhere"], "no such file"),
    ],
)
def test_a_slip_of_the_keyboard_is_one_line(
    arguments: list[str], line: str, tmp_path: Path
) -> None:
    done = pocketsd(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert line in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        ("--engine", "abacus", "no engine 'abacus'"),
        ("--height", 100, "multiple of 64"),
        ("--image", "missing.png", "no such picture"),
        ("--strength", 0.1, "leaves none of 4 steps"),
        ("--outpaint", "up=3", "left=64"),
        ("--output", "picture.xyz", "unknown kind of picture"),
        ("--output", "nowhere/picture.png", "does not exist"),
        ("--scheduler", "dmp", "unknown scheduler"),
    ],
)
def test_wrong_wishes_are_one_line(
    converted: Path, tmp_path: Path, option: str, value: object, line: str
) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "start.png")
    image = [] if option == "--image" else ["--image", "start.png"]
    done = pocketsd("run", converted, "-p", "x", *image, option, value, cwd=tmp_path)
    assert done.returncode == 2 and line in done.stderr and done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["start.png"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_conversion_leaves_nothing(
    tiny_sd: Path, tmp_path: Path, number: signal.Signals
) -> None:
    command = [str(POCKETSD), "convert", str(tiny_sd), "-o", str(tmp_path / "out")]
    # Whoever started the tests may ignore SIGINT, as shells do for what runs in the background.
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "sampler tables" in line:  # the output folder is open now
                break
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, number)
        _, rest = process.communicate(timeout=60)
    assert process.returncode in (130, 143), rest
    assert "Traceback" not in rest
    assert list(tmp_path.iterdir()) == []
