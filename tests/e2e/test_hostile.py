"""Broken and malicious input: one line, exit code 2, nothing written, nothing run."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime_py.package import Package
from tests.e2e.test_cli import pocketsd

UNET = "unet/diffusion_pytorch_model.safetensors"


class Bomb:
    """Unpickling this writes a file: the proof that code ran."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        import os

        return os.system, (f"touch {self.marker}",)


def truncated(model: Path, marker: Path) -> str:
    content = (model / UNET).read_bytes()
    (model / UNET).write_bytes(content[: len(content) // 2])
    return "is cut off"


def huge_header(model: Path, marker: Path) -> str:
    content = (model / UNET).read_bytes()
    (model / UNET).write_bytes((1 << 60).to_bytes(8, "little") + content[8:])
    return "header"


def pickle_with_code(model: Path, marker: Path) -> str:
    (model / UNET).unlink()
    with (model / "unet/diffusion_pytorch_model.bin").open("wb") as file:
        pickle.dump({"conv_in.weight": Bomb(marker)}, file)
    return "never run"


def wrong_shape(model: Path, marker: Path) -> str:
    weights = load_file(model / UNET)
    weights["conv_in.weight"] = torch.zeros(3, 4, 3, 3)
    save_file(weights, model / UNET)
    return "conv_in.weight"


def missing_keys(model: Path, marker: Path) -> str:
    weights = load_file(model / UNET)
    del weights["mid_block.resnets.0.conv1.weight"], weights["conv_out.bias"]
    save_file(weights, model / UNET)
    return "2 weights missing"


def nan_weights(model: Path, marker: Path) -> str:
    weights = load_file(model / UNET)
    weights["conv_out.bias"][1] = float("nan")
    save_file(weights, model / UNET)
    return "conv_out.bias"


def empty_folder(model: Path, marker: Path) -> str:
    shutil.rmtree(model)
    model.mkdir()
    return "not a diffusers folder"


def text_renamed(model: Path, marker: Path) -> str:
    shutil.rmtree(model)
    model.write_text("<html>404 not found</html>" * 20)
    return ""


def folder_that_points_outside(model: Path, marker: Path) -> str:
    (model / UNET).unlink()
    index = '{"weight_map": {"conv_in.weight": "../../../../etc/passwd"}}'
    (model / (UNET + ".index.json")).write_text(index)
    return "passwd"


@pytest.mark.parametrize(
    "damage",
    [
        truncated, huge_header, pickle_with_code, wrong_shape, missing_keys, nan_weights,
        empty_folder, text_renamed, folder_that_points_outside,
    ],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_broken_checkpoints(
    damage: Callable[[Path, Path], str], tiny_sd: Path, tmp_path: Path
) -> None:
    model, marker, work = tmp_path / "model.safetensors", tmp_path / "marker", tmp_path / "work"
    shutil.copytree(tiny_sd, model)
    work.mkdir()
    expected = damage(model, marker)
    done = pocketsd("convert", model, "-o", work / "out", cwd=work)
    lines = [line for line in done.stderr.splitlines() if line.startswith("pocketsd: ")]
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert len(lines) == 1 and "Traceback" not in done.stderr
    assert expected in lines[0]
    assert list(work.iterdir()) == [] and not marker.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_single_file_pickle_with_code(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "marker"
    with (tmp_path / "model.ckpt").open("wb") as file:
        pickle.dump({"state_dict": Bomb(marker)}, file, protocol)
    done = pocketsd("convert", tmp_path / "model.ckpt", "-o", tmp_path / "out")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "never run" in done.stderr or "PyTorch file" in done.stderr
    assert not marker.exists() and not (tmp_path / "out").exists()


def test_package_with_one_flipped_byte(tiny_package: Package, tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(tiny_package.path, package)
    file = package / "vae_decoder.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    done = pocketsd("run", package, "-p", "x", "-o", tmp_path / "picture.png")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "vae_decoder.safetensors does not match its sha256" in done.stderr
    assert not (tmp_path / "picture.png").exists()
