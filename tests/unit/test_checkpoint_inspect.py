"""Inspection says what any file or folder is, from names and shapes alone."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from converter.checkpoints import inspect_file
from runtime_py.errors import PocketSDError
from tests.support.checkpoints import original_layout, original_vae, pipeline, save_folder, tiny


def counted(component: str) -> int:
    return sum(parameter.numel() for parameter in tiny().components[component].parameters())


@pytest.mark.parametrize("layout", ["folder", "file", "ckpt"])
def test_a_checkpoint(tmp_path: Path, layout: str) -> None:
    path = {"folder": tiny().folder, "file": tiny().file}.get(layout, tmp_path / "model.ckpt")
    if layout == "ckpt":
        torch.save({"state_dict": load_file(tiny().file)}, path)
    report = inspect_file(path)
    assert report.kind == "checkpoint"
    assert {part.component: part.parameters for part in report.parts} == {
        component: counted(component) for component in ("text_encoder", "unet", "vae")
    }
    assert {part.dtype for part in report.parts} == {"float32"}
    assert "widths 32-64-64-64" in report.lines()[2]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"layers_per_block": 1, "mid_block_type": None}, "BK-SDM style"),
        ({"block_out_channels": (32, 32, 64, 64)}, "pruned or of other widths"),
    ],
)
def test_pruned_models_are_named(tmp_path: Path, settings: dict[str, object], said: str) -> None:
    pipe = pipeline(tmp_path / "scratch", **settings)
    save_file(original_layout(pipe), tmp_path / "pruned.safetensors")
    for path in (save_folder(pipe, tmp_path / "pruned"), tmp_path / "pruned.safetensors"):
        unet = next(part for part in inspect_file(path).parts if part.component == "unet")
        assert said in unet.architecture


def test_only_the_header_is_read(tmp_path: Path) -> None:
    """A file whose data is a hole of zeros inspects at once, and NaN or not is never asked."""
    whole = tiny().file.read_bytes()
    header = whole[: 8 + struct.unpack("<Q", whole[:8])[0]]
    path = tmp_path / "hole.safetensors"
    with path.open("wb") as stream:
        stream.write(header)
        stream.truncate(len(whole))
    assert inspect_file(path).parts == inspect_file(tiny().file).parts


@pytest.mark.parametrize("naming", ["original", "diffusers", "folder"])
def test_a_vae(tmp_path: Path, naming: str) -> None:
    path = tmp_path / "vae.safetensors"
    vae = tiny().pipeline.vae
    save_file(
        {
            name: tensor.contiguous()
            for name, tensor in (
                original_vae(vae) if naming == "original" else vae.state_dict()
            ).items()
        },
        path,
    )
    report = inspect_file(tiny().folder / "vae" if naming == "folder" else path)
    assert report.kind == "vae"
    assert report.parts[0].parameters == counted("vae")
    assert "4 latent channels" in report.parts[0].architecture


@pytest.mark.parametrize("component", ["unet", "text_encoder"])
def test_a_component_alone(component: str) -> None:
    (file,) = (tiny().folder / component).glob("*.safetensors")
    for path in (file, file.parent):
        report = inspect_file(path)
        assert report.kind == component.replace("_", " ")
        assert report.parts[0].parameters == counted(component)


def test_a_lora(tmp_path: Path) -> None:
    tensors = {}
    for index, (module, rank) in enumerate(
        [("lora_unet_mid_block_a", 4), ("lora_unet_mid_block_b", 8), ("lora_te_text_model_c", 8)]
    ):
        text = "lora_te_text_model_encoder_layers_0_mlp_fc1"
        base = module if index < 2 else text
        tensors[f"{base}.lora_down.weight"] = torch.ones(rank, 6)
        tensors[f"{base}.lora_up.weight"] = torch.ones(6, rank)
        tensors[f"{base}.alpha"] = torch.tensor(float(rank))
    save_file(tensors, tmp_path / "lora.safetensors")
    report = inspect_file(tmp_path / "lora.safetensors")
    assert (report.kind, report.summary) == ("lora", "a LoRA (kohya naming) of 3 modules")
    assert report.details["ranks"] == "4, 8"
    assert report.details["targets"] == "1 in text_encoder, 2 in unet"


def test_what_is_not_supported_or_not_known(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"conditioner.x": torch.ones(1)}, path)
    assert inspect_file(path).summary == "an SDXL model"
    save_file({"apple": torch.ones(1), "pear": torch.ones(1)}, path)
    report = inspect_file(path)
    assert (report.kind, report.details["tensors"]) == ("unknown", 2)
    assert "such as apple" in report.summary
    inpainting = load_file(tiny().file)
    inpainting["model.diffusion_model.input_blocks.0.0.weight"] = torch.ones(32, 9, 3, 3)
    save_file(inpainting, path)
    report = inspect_file(path)
    assert report.kind == "unsupported" and "9 input channels" in report.summary
    empty = tmp_path / "empty"
    empty.mkdir()
    assert inspect_file(empty).kind == "unknown"
    path.write_text("nothing of the kind")
    for unreadable in (path, tmp_path / "absent"):
        with pytest.raises(PocketSDError):
            inspect_file(unreadable)


def test_a_folder_without_a_component_says_so(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny().folder, tmp_path / "model"))
    shutil.rmtree(folder / "vae")
    assert inspect_file(folder).notes == ("without vae",)
