"""Broken, foreign and hostile files are refused in one line, and nothing in them ever runs."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from converter.checkpoints import inspect_file, open_checkpoint
from converter.checkpoints.weights import read_headers, read_weights
from runtime_py.errors import PocketSDError
from tests.support.checkpoints import tiny

Change = dict[str, torch.Tensor]


def refusal(path: Path, **options: Any) -> str:
    """The line with which a file is refused."""
    with pytest.raises(PocketSDError) as caught:
        open_checkpoint(path, **options)
    line = str(caught.value)
    assert "\n" not in line and 10 < len(line) < 300
    return line


def changed(path: Path, change: Change, drop: tuple[str, ...] = ()) -> Path:
    tensors = {k: v for k, v in load_file(tiny().file).items() if k not in drop}
    save_file(tensors | change, path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("keep", [0, 5, 1000, 200_000, -1])
def test_truncated_safetensors(file: Path, keep: int) -> None:
    file.write_bytes(tiny().file.read_bytes()[:keep])
    assert file.name in refusal(file)


@pytest.mark.parametrize("keep", [3, 1000, 1_000_000, -10])
def test_truncated_ckpt(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "model.ckpt"
    torch.save(load_file(tiny().file), path)
    path.write_bytes(path.read_bytes()[:keep])
    assert "model.ckpt" in refusal(path)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (struct.pack("<Q", 2**63) + b"{}", "is not a safetensors file"),
        (struct.pack("<Q", 10**7) + b"{}", "is cut off"),
        (struct.pack("<Q", 4) + b"{[}]", "damaged safetensors header"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "damaged safetensors header"),
    ],
)
def test_a_header_that_lies(file: Path, header: bytes, said: str) -> None:
    file.write_bytes(header)
    assert said in refusal(file)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}, "is cut off"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "damaged header entry"),
        ({"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}, "damaged header entry"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, "damaged header entry"),
        ({"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}, "damaged header entry"),
        ({"dtype": "Q4", "shape": [2], "data_offsets": [0, 8]}, "dtype 'Q4'"),
        ("F32", "damaged header entry"),
    ],
)
def test_an_entry_that_lies(file: Path, entry: object, said: str) -> None:
    header = json.dumps({"a": entry}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    assert said in refusal(file)
    with pytest.raises(PocketSDError, match=said):
        read_headers(file)


class _Attack:
    """Unpickled by a careless reader, this makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.marker),))


@pytest.mark.parametrize("new_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("where", ["checkpoint", "vae", "lora", "embedding", "inspect"])
def test_code_in_a_pickle_never_runs(tmp_path: Path, where: str, new_zip: bool) -> None:
    marker, path = tmp_path / "ran", tmp_path / "model.ckpt"
    content = {"state_dict": {"a": torch.ones(1)}, "extra": _Attack(marker)}
    torch.save(content, path, _use_new_zipfile_serialization=new_zip)
    with pytest.raises(PocketSDError, match=r"holds code .*never run"):
        if where == "checkpoint":
            open_checkpoint(path)
        elif where == "vae":
            open_checkpoint(tiny().folder, vae=path)
        elif where == "lora":
            open_checkpoint(tiny().folder, loras=[(path, 1.0)])
        elif where == "embedding":
            open_checkpoint(tiny().folder, embeddings=[(path, None)])
        else:
            inspect_file(path)
    assert not marker.exists()


def test_leftovers_of_training_tools_are_read_past(tmp_path: Path) -> None:
    # A class that no longer exists here, as Lightning leaves it in published checkpoints.
    module = type(os)("pytorch_lightning.callbacks.model_checkpoint")
    kind = type("ModelCheckpoint", (), {"__module__": module.__name__})
    module.ModelCheckpoint = kind  # type: ignore[attr-defined]
    import sys

    names = [".".join(module.__name__.split(".")[:n]) for n in (1, 2, 3)]
    stand_ins = {name: type(os)(name) for name in names[:2]} | {names[2]: module}
    sys.modules.update(stand_ins)
    try:
        torch.save({"state_dict": {"a": torch.ones(2)}, "callbacks": {kind: 3}}, tmp_path / "a")
    finally:
        for name in names:
            del sys.modules[name]
    assert read_weights(tmp_path / "a").tensors["a"].tolist() == [1, 1]


@pytest.mark.parametrize("suffix", ["safetensors", "ckpt"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"This is a letter, and not a model at all.", "not a safetensors|neither safetensors"),
        (b"<!DOCTYPE html><title>404</title>", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"GGUF\x03\0\0\0", "is a GGUF file"),
        (b"", "is empty"),
        (b"PK\x03\x04 but not really a zip", "cannot be read as a PyTorch file"),
    ],
)
def test_other_files_by_what_they_are(
    tmp_path: Path, content: bytes, said: str, suffix: str
) -> None:
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(content)
    with pytest.raises(PocketSDError, match=said):
        open_checkpoint(path)


def test_what_is_not_there(tmp_path: Path) -> None:
    assert "there is no such file" in refusal(tmp_path / "nothing")
    assert "not a diffusers folder" in refusal(tmp_path)
    shutil.copy(tiny().file, tmp_path)
    assert "open the file tiny-file.safetensors in it" in refusal(tmp_path)


UNET = "model.diffusion_model."


def test_missing_misshapen_and_extra_weights(file: Path) -> None:
    norm = f"{UNET}input_blocks.1.0.in_layers.0.weight"
    bias = f"{UNET}input_blocks.1.0.in_layers.0.bias"
    line = refusal(changed(file, {}, drop=(norm, bias)))
    assert line == "unet: 2 weights missing, first down_blocks.0.resnets.0.norm1.weight"
    line = refusal(changed(file, {norm: torch.ones(7)}))
    assert line == (
        "unet: 1 weight of another shape, first down_blocks.0.resnets.0.norm1.weight "
        "is 7 instead of 32"
    )
    line = refusal(changed(file, {f"{UNET}surprise.weight": torch.ones(1)}))
    assert line == "unet: 1 weight not part of the model, first surprise.weight"
    assert "belong to no component" in refusal(changed(file, {"surprise": torch.ones(1)}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite(file: Path, value: float, dtype: torch.dtype) -> None:
    bad = torch.ones(32, dtype=dtype)
    bad[17] = value
    line = refusal(changed(file, {f"{UNET}out.0.bias": bad}))
    assert line == "unet: conv_norm_out.bias holds NaN or infinite values"


def test_quantised_weights(file: Path) -> None:
    name = f"{UNET}out.0.bias"
    assert "stored as int8" in refusal(changed(file, {name: torch.ones(32, dtype=torch.int8)}))
    eight = torch.ones(32).to(torch.float8_e4m3fn)
    assert "stored as float8_e4m3fn" in refusal(changed(file, {name: eight}))


def test_components_that_do_not_belong_together(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny().folder, tmp_path / "model"))
    config = json.loads((folder / "vae" / "config.json").read_text())
    wide = config | {"latent_channels": 8}
    (folder / "vae" / "config.json").write_text(json.dumps(wide))
    assert "vae: " in refusal(folder) and "of another shape" in refusal(folder)


FOREIGN = [
    ("an SDXL model", ["conditioner.embedders.0.transformer.x", UNET + "label_emb.0.0.weight"]),
    (
        "a Stable Diffusion 2.x model",
        ["cond_stage_model.model.x", UNET + "out.2.weight"],
    ),
    ("a Stable Diffusion 3 model", [UNET + "joint_blocks.0.x_block.attn.qkv.weight"]),
    ("a Flux model", ["double_blocks.0.img_attn.qkv.weight"]),
    ("a Flux model", ["single_transformer_blocks.0.attn.to_q.weight"]),
    ("a ControlNet", ["control_model.input_hint_block.0.weight"]),
    ("a ControlNet", ["controlnet_cond_embedding.conv_in.weight", "down_blocks.0.x"]),
    ("an IP-Adapter", ["image_proj.proj.weight", "ip_adapter.1.to_k_ip.weight"]),
    ("an AnimateDiff motion module", ["down_blocks.0.motion_modules.0.x"]),
    ("a LoRA", ["lora_unet_mid_block_x.lora_down.weight", "lora_unet_mid_block_x.alpha"]),
    ("a DoRA", ["lora_unet_x.lora_down.weight", "lora_unet_x.dora_scale"]),
    ("a UNet alone", ["input_blocks.0.0.weight", "out.2.weight"]),
    ("a VAE", ["decoder.up.0.block.0.conv1.weight", "encoder.conv_in.weight"]),
    ("a CLIP text encoder alone", ["text_model.embeddings.token_embedding.weight"]),
    ("2 tensors of unknown layout, such as apple", ["apple", "pear"]),
]


@pytest.mark.parametrize(("what", "names"), FOREIGN)
def test_models_of_other_families(file: Path, what: str, names: list[str]) -> None:
    save_file({name: torch.ones(2, 2) for name in names}, file)
    line = refusal(file)
    assert line.startswith(f"model.safetensors: is {what}")
    assert line.endswith("not an SD 1.x checkpoint")


@pytest.mark.parametrize(
    ("channels", "what"), [(9, "an inpainting model"), (8, "an instruct-pix2pix model")]
)
def test_unets_with_other_inputs(file: Path, channels: int, what: str) -> None:
    change = {f"{UNET}input_blocks.0.0.weight": torch.ones(32, channels, 3, 3)}
    line = refusal(changed(file, change))
    assert f"the UNet has {channels} input channels, so this is {what}" in line


def test_a_unet_with_the_text_width_of_another_family(file: Path) -> None:
    tensors = load_file(tiny().file)
    change = {
        name: torch.ones(tensor.shape[0], 1024)
        for name, tensor in tensors.items()
        if name.endswith(("attn2.to_k.weight", "attn2.to_v.weight"))
    }
    assert "is a Stable Diffusion 2.x model" in refusal(changed(file, change))


@pytest.mark.parametrize("part", ["text_encoder_2", "transformer"])
def test_folders_of_other_families(tmp_path: Path, part: str) -> None:
    folder = Path(shutil.copytree(tiny().folder, tmp_path / "model"))
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"_class_name": "OtherPipeline", part: ["diffusers", "Other"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    assert "is another kind of model (OtherPipeline)" in refusal(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"in_channels": 9}, "this is an inpainting model"),
        ({"cross_attention_dim": 1024}, "is a Stable Diffusion 2.x model"),
        ({"use_linear_projection": True}, "use_linear_projection=True"),
        ({"addition_embed_type": "text_time"}, "addition_embed_type='text_time'"),
    ],
)
def test_folders_with_a_unet_of_other_families(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    folder = Path(shutil.copytree(tiny().folder, tmp_path / "model"))
    path = folder / "unet" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert said in refusal(folder)
    assert inspect_file(folder).kind == "unsupported"


@pytest.mark.parametrize("escape", ["../secret.safetensors", "/etc/passwd", "a/b", "..", ""])
def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path, escape: str) -> None:
    folder = Path(shutil.copytree(tiny().folder, tmp_path / "model"))
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    shutil.copy(weights, folder / "secret.safetensors")
    weights.unlink()
    index = weights.with_suffix(".safetensors.index.json")
    index.write_text(json.dumps({"weight_map": {"conv_in.weight": escape}}))
    assert "names a file outside its folder" in refusal(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '{"block_out_channels": 3}'])
def test_a_config_that_is_broken(tmp_path: Path, content: str) -> None:
    folder = Path(shutil.copytree(tiny().folder, tmp_path / "model"))
    (folder / "unet" / "config.json").write_text(content)
    assert "config.json" in refusal(folder)


FUZZED = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
KEYS = sorted(json.loads((tiny().folder / "unet" / "config.json").read_text()))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 99) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def opens_or_refuses(path: Path) -> None:
    try:
        open_checkpoint(path)
        inspect_file(path)
    except PocketSDError as error:
        assert "\n" not in str(error)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(tiny().folder, tmp_path_factory.mktemp("fuzz") / "model"))


@FUZZED
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_any_value_in_a_config_opens_or_is_refused(victim: Path, key: str, value: object) -> None:
    path = victim / "unet" / "config.json"
    whole = path.read_text()
    path.write_text(json.dumps(json.loads(whole) | {key: value}))
    try:
        opens_or_refuses(victim)
    finally:
        path.write_text(whole)


@FUZZED
@given(suffix=st.sampled_from(["safetensors", "ckpt"]), data=st.data())
def test_any_flipped_byte_opens_or_is_refused(tmp_path: Path, suffix: str, data: Any) -> None:
    path = tmp_path / f"small.{suffix}"
    tensors = {f"{UNET}{name}": torch.ones(2, 3) for name in ("out.2.weight", "out.2.bias")}
    if suffix == "ckpt":
        torch.save(tensors, path)
    else:
        save_file(tensors, path)
    content = bytearray(path.read_bytes())
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    opens_or_refuses(path)


@given(shape=st.lists(st.integers(0, 3), max_size=5))
@settings(max_examples=4, deadline=None)
@pytest.mark.parametrize(
    "name",
    [
        f"{UNET}input_blocks.0.0.weight",
        f"{UNET}input_blocks.1.0.out_layers.3.weight",
        f"{UNET}input_blocks.1.0.in_layers.2.weight",
        f"{UNET}input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight",
        "first_stage_model.decoder.conv_in.weight",
        "cond_stage_model.transformer.text_model.embeddings.token_embedding.weight",
    ],
)
def test_any_shape_is_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, shape: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "shape.safetensors"
    tensors = load_file(tiny().file) | {name: torch.ones(shape)}
    save_file(tensors, path)
    with pytest.raises(PocketSDError):
        open_checkpoint(path)
    assert inspect_file(path).name == path.name
