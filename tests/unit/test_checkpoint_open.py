"""Checkpoints in every layout open to the weights that diffusers loads from the same files."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import load_file, save_file

from converter.checkpoints import COMPONENTS, Checkpoint, open_checkpoint
from runtime_py.errors import PocketSDError
from tests.support.checkpoints import (
    old_attention_names,
    original_layout,
    original_vae,
    pipeline,
    save_folder,
    state_of,
    tiny,
    tokenizer_files,
)


@pytest.fixture(autouse=True)
def no_cached_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny().folder, tmp_path / "copy"))


def same(ours: Checkpoint, oracle: StableDiffusionPipeline) -> None:
    """Every component equal to the oracle's: same names, same bits."""
    for component in COMPONENTS:
        expected = state_of(getattr(oracle, component))
        found = ours.weights[component]
        assert found.keys() == expected.keys() - {"embeddings.position_ids"}
        for name, tensor in found.items():
            assert torch.equal(tensor, expected[name]), name


def test_a_diffusers_folder_opens_as_diffusers_loads_it() -> None:
    checkpoint = open_checkpoint(tiny().folder)
    same(checkpoint, tiny().load())
    assert checkpoint.kind == "diffusers folder"
    assert checkpoint.name == "tiny-model"
    assert checkpoint.dtypes == dict.fromkeys(COMPONENTS, "float32")
    assert checkpoint.scheduler["beta_start"] == 0.00085
    assert checkpoint.tokenizer is not None
    assert json.loads(checkpoint.tokenizer.vocab)["ab</w>"] == 54
    assert checkpoint.tokenizer.merges.splitlines() == [b"#version: 0.2", b"a b</w>"]


def test_a_single_file_opens_as_diffusers_loads_it() -> None:
    oracle = StableDiffusionPipeline.from_single_file(
        str(tiny().file), config=str(tiny().folder), local_files_only=True, safety_checker=None
    )
    checkpoint = open_checkpoint(tiny().file)
    same(checkpoint, oracle)
    same(checkpoint, tiny().pipeline)
    assert checkpoint.kind == "single file"
    assert checkpoint.scheduler["prediction_type"] == "epsilon"
    assert checkpoint.tokenizer is None and "no tokenizer found" in checkpoint.notes


def test_both_layouts_give_one_architecture() -> None:
    folder, file = open_checkpoint(tiny().folder), open_checkpoint(tiny().file)
    assert folder.unet == file.unet
    assert folder.text_encoder == file.text_encoder
    assert dataclasses.replace(folder.vae, sample_size=512) == file.vae


@pytest.mark.parametrize("new_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"state_dict": t, "global_step": 5}])
def test_a_ckpt_opens_as_the_safetensors_do(
    tmp_path: Path, wrap: Callable[[dict[str, torch.Tensor]], object], new_zip: bool
) -> None:
    path = tmp_path / "model.ckpt"
    tensors = load_file(tiny().file)
    torch.save(wrap(tensors), path, _use_new_zipfile_serialization=new_zip)
    same(open_checkpoint(path), tiny().pipeline)


def test_what_decides_is_the_content_and_not_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    shutil.copy(tiny().file, path)
    same(open_checkpoint(path), tiny().pipeline)


def test_dtypes_are_kept(tmp_path: Path) -> None:
    tensors = load_file(tiny().file)
    half = {
        name: tensor.half() if name.startswith("model.") else tensor
        for name, tensor in tensors.items()
    }
    one = "first_stage_model.quant_conv.bias"
    half[one] = half[one].bfloat16()
    save_file(half, tmp_path / "half.safetensors")
    checkpoint = open_checkpoint(tmp_path / "half.safetensors")
    assert checkpoint.dtypes["unet"] == "float16"
    assert checkpoint.dtypes["text_encoder"] == "float32"
    assert checkpoint.dtypes["vae"] == "mixed bfloat16, float32"


@pytest.mark.parametrize(
    "settings",
    [
        {"layers_per_block": 1},
        {"layers_per_block": 1, "mid_block_type": None},
        {
            "layers_per_block": 1,
            "mid_block_type": None,
            "block_out_channels": (32, 64, 64),
            "down_block_types": ("CrossAttnDownBlock2D",) * 3,
            "up_block_types": ("CrossAttnUpBlock2D",) * 3,
        },
        {
            "block_out_channels": (32, 64),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        },
    ],
    ids=["one block", "no middle", "three levels", "no attention outside"],
)
def test_pruned_unets_open_from_both_layouts(tmp_path: Path, settings: dict[str, object]) -> None:
    pipe = pipeline(tmp_path / "scratch", **settings)
    save_file(original_layout(pipe), tmp_path / "pruned.safetensors")
    folder = open_checkpoint(save_folder(pipe, tmp_path / "pruned"))
    file = open_checkpoint(tmp_path / "pruned.safetensors")
    same(folder, pipe)
    same(file, pipe)
    assert folder.unet == file.unet
    assert folder.unet.mid == ("mid_block_type" not in settings)


def test_ema_weights_are_used_when_asked_for_or_alone(tmp_path: Path) -> None:
    path = tmp_path / "ema.safetensors"
    tensors = original_layout(tiny().pipeline, ema=True)
    save_file(tensors, path)
    plain, averaged = open_checkpoint(path), open_checkpoint(path, ema=True)
    save_file({k: v for k, v in tensors.items() if not k.startswith("model.")}, path)
    alone = open_checkpoint(path)
    for name, tensor in plain.weights["unet"].items():
        assert torch.equal(averaged.weights["unet"][name], tensor + 1)
        assert torch.equal(alone.weights["unet"][name], tensor + 1)
    assert averaged.notes[0] == "EMA weights used"
    assert alone.notes[0] == "EMA weights used, as there are no others"
    assert plain.notes[0] == "EMA weights present but not used"
    with pytest.raises(PocketSDError, match="holds no EMA weights"):
        open_checkpoint(tiny().file, ema=True)


@pytest.mark.parametrize("naming", ["prefixed", "bare", "diffusers", "diffusers before 2023"])
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_a_vae_replaces_the_checkpoints(tmp_path: Path, naming: str, suffix: str) -> None:
    vae = tiny().load().vae
    with torch.no_grad():
        vae.decoder.conv_out.weight.mul_(2)
    original = original_vae(vae)
    tensors = {
        "prefixed": {f"first_stage_model.{k}": v for k, v in original.items()},
        "bare": original | {"loss.logvar": torch.zeros(1), "model_ema.decay": torch.zeros(1)},
        "diffusers": vae.state_dict(),
        "diffusers before 2023": old_attention_names(vae.state_dict()),
    }[naming]
    path = tmp_path / f"new.vae.{suffix}"
    if suffix == "pt":
        torch.save({"state_dict": tensors}, path)
    else:
        save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    checkpoint = open_checkpoint(tiny().file, vae=path)
    expected = state_of(vae)
    for name, tensor in checkpoint.weights["vae"].items():
        assert torch.equal(tensor, expected[name]), name
    assert [item.role for item in checkpoint.ingredients] == ["checkpoint", "vae"]
    assert checkpoint.ingredients[1].name == path.name


@pytest.mark.parametrize("inside", [True, False])
def test_a_vae_folder_replaces_the_checkpoints(inside: bool) -> None:
    place = tiny().folder if inside else tiny().folder / "vae"
    checkpoint = open_checkpoint(tiny().file, vae=place)
    same(checkpoint, tiny().pipeline)
    # The folder that holds the VAE is named, and only the VAE's files are hashed.
    assert checkpoint.ingredients[1].name == place.name


def test_a_file_without_vae_needs_one(tmp_path: Path) -> None:
    tensors = load_file(tiny().file)
    kept = {k: v for k, v in tensors.items() if not k.startswith("first_stage_model.")}
    save_file(kept, tmp_path / "no-vae.safetensors")
    with pytest.raises(PocketSDError, match=r"no-vae\.safetensors: holds no vae"):
        open_checkpoint(tmp_path / "no-vae.safetensors")
    same(open_checkpoint(tmp_path / "no-vae.safetensors", vae=tiny().folder), tiny().pipeline)


def test_sharded_weights_are_put_together(folder: Path) -> None:
    tiny().pipeline.unet.save_pretrained(folder / "sharded", max_shard_size="3MB")
    shutil.rmtree(folder / "unet")
    (folder / "sharded").rename(folder / "unet")
    assert len(list((folder / "unet").glob("*-of-*.safetensors"))) > 2
    same(open_checkpoint(folder), tiny().pipeline)


def test_safetensors_come_before_bins_and_plain_before_fp16(folder: Path) -> None:
    plain = folder / "unet" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(plain)
    torch.save(tensors, plain.with_suffix(".bin"))
    half = {name: tensor.half() for name, tensor in tensors.items()}
    save_file(half, plain.with_suffix(".fp16.safetensors"))
    assert open_checkpoint(folder).dtypes["unet"] == "float32"
    plain.unlink()
    assert open_checkpoint(folder).dtypes["unet"] == "float16"
    plain.with_suffix(".fp16.safetensors").unlink()
    same(open_checkpoint(folder), tiny().pipeline)


def test_old_names_in_a_folder_are_brought_up_to_date(folder: Path) -> None:
    vae, text = folder / "vae", folder / "text_encoder"
    old_vae = old_attention_names(load_file(vae / "diffusion_pytorch_model.safetensors"))
    for name, tensor in old_vae.items():
        if ".attentions.0." in name and tensor.ndim == 2:
            old_vae[name] = tensor[:, :, None, None].contiguous()
    save_file(old_vae, vae / "diffusion_pytorch_model.safetensors")
    old_text = {f"text_model.{k}": v for k, v in load_file(text / "model.safetensors").items()}
    old_text["text_model.embeddings.position_ids"] = torch.arange(77)[None]
    (text / "model.safetensors").unlink()
    torch.save(old_text, text / "pytorch_model.bin")
    same(open_checkpoint(folder), tiny().pipeline)


def test_what_weights_cannot_tell_comes_from_the_config(folder: Path) -> None:
    path = folder / "unet" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"attention_head_dim": 4, "norm_num_groups": 16}))
    checkpoint = open_checkpoint(tiny().file, config=folder)
    assert checkpoint.unet.heads == (4, 4, 4, 4)
    assert checkpoint.unet.groups == 16
    path.write_text(json.dumps(config | {"layers_per_block": 1}))
    with pytest.raises(PocketSDError, match="the config says depth 1, the weights 2"):
        open_checkpoint(tiny().file, config=folder)


@pytest.mark.parametrize("said", ["key", "modelspec", "training"])
def test_v_prediction_is_recognised(tmp_path: Path, said: str) -> None:
    tensors, path = load_file(tiny().file), tmp_path / "v.safetensors"
    metadata = {"modelspec": {"modelspec.prediction_type": "v"}, "key": {}}.get(
        said, {"ss_v_parameterization": "True"}
    )
    if said == "key":
        tensors |= {"v_pred": torch.zeros(0), "ztsnr": torch.zeros(0)}
    save_file(tensors, path, metadata)
    scheduler = open_checkpoint(path).scheduler
    assert scheduler["prediction_type"] == "v_prediction"
    assert scheduler.get("rescale_betas_zero_snr", False) == (said == "key")


def test_the_tokenizer_is_looked_for_where_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(shutil.copy(tiny().file, tmp_path / "model.safetensors"))
    cache = tmp_path / "huggingface/hub/models--openai--clip-vit-large-patch14/snapshots/0"
    tokenizer_files(cache)
    found = open_checkpoint(file)
    assert found.tokenizer and found.ingredients[-1].role == "tokenizer"
    assert found.ingredients[-1].name == "models--openai--clip-vit-large-patch14"
    vocab = tokenizer_files(tmp_path / "tokenizer")["vocab"]
    beside = open_checkpoint(file)
    assert beside.ingredients[-1].name == "tokenizer"
    explicit = open_checkpoint(file, tokenizer=tiny().folder)
    assert explicit.ingredients[-1].name == tiny().folder.name
    # A vocabulary larger than the model's belongs to another model.
    vocab.write_text(json.dumps({"a": 400}))
    assert open_checkpoint(file).ingredients[-1].name == found.ingredients[-1].name
    with pytest.raises(PocketSDError, match="token id 400"):
        open_checkpoint(file, tokenizer=tmp_path / "tokenizer")
    with pytest.raises(PocketSDError, match=r"vae: has no vocab\.json"):
        open_checkpoint(file, tokenizer=tiny().folder / "vae")


def test_a_one_file_tokenizer_reads_as_the_two_files_do(folder: Path) -> None:
    two = open_checkpoint(folder).tokenizer
    (folder / "tokenizer" / "vocab.json").unlink()
    (folder / "tokenizer" / "merges.txt").unlink()
    one = open_checkpoint(folder).tokenizer
    assert one and two
    assert json.loads(one.vocab) == json.loads(two.vocab)
    assert (one.merges, one.added) == (two.merges, two.added)


def test_provenance_names_files_and_never_places(folder: Path) -> None:
    first = open_checkpoint(folder)
    again = open_checkpoint(tiny().folder)
    assert first.ingredients[0].sha256 == again.ingredients[0].sha256
    assert not any("/" in item.name for item in first.ingredients)
    path = folder / "unet" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(path)
    save_file({k: v * 2 for k, v in tensors.items()}, path)
    assert open_checkpoint(folder).ingredients[0].sha256 != first.ingredients[0].sha256


def test_progress_is_told() -> None:
    lines: list[str] = []
    open_checkpoint(tiny().folder, progress=lines.append)
    assert lines[0] == "reading tiny-model" and "checking weights" in lines
