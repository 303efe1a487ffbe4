"""LoRAs merge to the weights that diffusers and peft merge to, in every tool's naming."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from converter.checkpoints import Checkpoint, inspect_file, open_checkpoint
from converter.checkpoints.lora import module_table
from converter.models.config import TextEncoderConfig, UNetConfig
from runtime_py.errors import PocketSDError
from tests.support.checkpoints import Tensors, original_unet_modules, state_of, tiny

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
LINEAR = (*ATTENTION, "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out", "time_emb_proj")
CONVOLUTION = ("conv1", "conv2", "conv_shortcut", "conv_in", "downsamplers.0.conv")
TEXT = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
WEIGHT = 0.7


def kohya_name(component: str, module: str) -> str:
    prefix = "lora_unet_" if component == "unet" else "lora_te_text_model_"
    return prefix + module.replace(".", "_")


def factors(
    component: str, endings: Iterable[str], *, rank: int = 4, alpha: float | None = 2.0
) -> Tensors:
    """A random LoRA in kohya's naming over all modules with one of the endings."""
    generator = torch.Generator().manual_seed(1)
    result: Tensors = {}
    for name, weight in state_of(tiny().components[component]).items():
        module = name.removesuffix(".weight")
        if not name.endswith(".weight") or not module.endswith(tuple(endings)):
            continue
        outputs, inputs, *kernel = weight.shape
        base = kohya_name(component, module)
        down = torch.randn(rank, inputs, *kernel, generator=generator) * 0.1
        up = torch.randn(outputs, rank, *[1 for _ in kernel], generator=generator) * 0.1
        result |= {f"{base}.lora_down.weight": down, f"{base}.lora_up.weight": up}
        if alpha is not None:
            result[f"{base}.alpha"] = torch.tensor(alpha)
    assert result
    return result


def save(tensors: Mapping[str, torch.Tensor], path: Path) -> Path:
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, path)
    return path


def opened(path: Path, weight: float = WEIGHT) -> Checkpoint:
    return open_checkpoint(tiny().folder, loras=[(path, weight)])


def fused(path: Path, weight: float = WEIGHT) -> StableDiffusionPipeline:
    """What diffusers makes of a LoRA file."""
    pipe = tiny().load()
    pipe.load_lora_weights(str(path.parent), weight_name=path.name)
    pipe.fuse_lora(lora_scale=weight)
    pipe.unload_lora_weights()
    return pipe


def difference(checkpoint: Checkpoint, component: str, oracle: torch.nn.Module) -> float:
    """Largest difference over all weights, once it is certain that anything was merged."""
    base, ours, theirs = (
        state_of(tiny().components[component]),
        checkpoint.weights[component],
        state_of(oracle),
    )
    assert any(not torch.equal(base[name], theirs[name]) for name in base)
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


@pytest.mark.parametrize("alpha", [None, 2.0])
def test_kohya(tmp_path: Path, alpha: float | None) -> None:
    tensors = factors("unet", LINEAR, alpha=alpha) | factors("text_encoder", TEXT, alpha=alpha)
    path = save(tensors, tmp_path / "style.safetensors")
    checkpoint, oracle = opened(path), fused(path)
    assert difference(checkpoint, "unet", oracle.unet) < 1e-5
    assert difference(checkpoint, "text_encoder", oracle.text_encoder) < 1e-5
    last = checkpoint.ingredients[-1]
    assert (last.role, last.name, last.weight) == ("lora", "style.safetensors", WEIGHT)


def test_kohya_with_convolutions(tmp_path: Path) -> None:
    path = save(factors("unet", (*LINEAR, *CONVOLUTION)), tmp_path / "locon.safetensors")
    assert difference(opened(path), "unet", fused(path).unet) < 1e-5
    assert inspect_file(path).details["convolutions"] > 0


def test_kohya_in_the_original_block_names(tmp_path: Path) -> None:
    modern = factors("unet", (*LINEAR, *CONVOLUTION))
    # From a module's weights (their address is their identity) to its original place.
    places = {}
    for place, module in original_unet_modules(tiny().pipeline.unet):
        for name, tensor in module.named_parameters():
            places[tensor.data_ptr()] = f"{place}.{name}".removesuffix(".weight")
    renamed = {
        kohya_name("unet", name.removesuffix(".weight")): kohya_name("unet", places[t.data_ptr()])
        for name, t in tiny().pipeline.unet.named_parameters()
    }
    original = {}
    for key, tensor in modern.items():
        base, _, rest = key.partition(".")
        original[f"{renamed[base]}.{rest}"] = tensor
    assert not original.keys() & modern.keys() - {"lora_unet_conv_in.alpha"}
    first = opened(save(modern, tmp_path / "modern.safetensors"))
    second = opened(save(original, tmp_path / "original.safetensors"))
    for name, tensor in first.weights["unet"].items():
        assert torch.equal(tensor, second.weights["unet"][name]), name
    assert "kohya, original" in inspect_file(tmp_path / "original.safetensors").summary


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    """peft starts with up factors of zero, which would merge to nothing."""
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    return model


@pytest.mark.parametrize("metadata", [True, False])
def test_diffusers_as_it_saves_today(tmp_path: Path, metadata: bool) -> None:
    pipe = tiny().load()
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["to_q", "to_k", "conv1", "proj_in"])
    text = LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "fc1"])
    pipe.unet.add_adapter(config)
    pipe.text_encoder.add_adapter(text)
    kinds: dict[str, Any] = {
        "unet_lora_adapter_metadata": config.to_dict(),
        "text_encoder_lora_adapter_metadata": text.to_dict(),
    }
    StableDiffusionPipeline.save_lora_weights(
        tmp_path,
        unet_lora_layers=get_peft_model_state_dict(randomised(pipe.unet)),
        text_encoder_lora_layers=get_peft_model_state_dict(randomised(pipe.text_encoder)),
        **(kinds if metadata else {}),
    )
    oracle = fused(tmp_path / "pytorch_lora_weights.safetensors")
    checkpoint = opened(tmp_path)
    assert difference(checkpoint, "unet", oracle.unet) < 1e-5
    assert difference(checkpoint, "text_encoder", oracle.text_encoder) < 1e-5


SPELLINGS = {
    "lora.down": ("unet.{}.lora.down.weight", "unet.{}.lora.up.weight"),
    "processor": ("unet.{}_lora.down.weight", "unet.{}_lora.up.weight"),
    "without prefix": ("{}_lora.down.weight", "{}_lora.up.weight"),
    "lora_A": ("unet.{}.lora_A.weight", "unet.{}.lora_B.weight"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_diffusers_as_it_saved_before(tmp_path: Path, spelling: str) -> None:
    kohya = factors("unet", ATTENTION, alpha=None)
    tensors = {}
    for name in state_of(tiny().pipeline.unet):
        module = name.removesuffix(".weight")
        base = kohya_name("unet", module)
        if f"{base}.lora_down.weight" in kohya:
            if "{}_lora" in SPELLINGS[spelling][0]:
                head, attention, rest = module.partition(
                    ".attn1." if ".attn1." in module else ".attn2."
                )
                module = f"{head}{attention}processor.{rest.removesuffix('.0')}"
            down, up = (text.format(module) for text in SPELLINGS[spelling])
            tensors[down] = kohya[f"{base}.lora_down.weight"]
            tensors[up] = kohya[f"{base}.lora_up.weight"]
    path = save(tensors, tmp_path / "old.safetensors")
    reference = opened(save(kohya, tmp_path / "kohya.safetensors"))
    checkpoint = opened(path)
    for name, tensor in reference.weights["unet"].items():
        assert torch.equal(tensor, checkpoint.weights["unet"][name])
    if spelling != "without prefix":
        assert difference(checkpoint, "unet", fused(path).unet) < 1e-5


@pytest.mark.parametrize("scaling", ["plain", "rank-stabilised", "patterns"])
@pytest.mark.parametrize("component", ["unet", "text_encoder"])
def test_peft(tmp_path: Path, component: str, scaling: str) -> None:
    chosen = {
        "unet": ["to_q", "conv1", "time_emb_proj"],
        "text_encoder": ["q_proj", "fc2"],
    }[component]
    options: dict[str, Any] = {
        "plain": {},
        "rank-stabilised": {"use_rslora": True},
        "patterns": {"alpha_pattern": {chosen[0]: 3}, "rank_pattern": {chosen[1]: 2}},
    }[scaling]
    model = get_peft_model(
        getattr(tiny().load(), component),
        LoraConfig(r=4, lora_alpha=6, target_modules=chosen, **options),
    )
    randomised(model).save_pretrained(tmp_path)
    oracle = model.merge_and_unload()
    assert difference(opened(tmp_path, 1.0), component, oracle) < 1e-5
    report = inspect_file(tmp_path)
    assert report.kind == "lora" and "peft" in report.summary


def test_tucker_form_is_the_three_convolutions_in_a_row(tmp_path: Path) -> None:
    torch.manual_seed(3)
    module = "down_blocks.1.resnets.0.conv1"
    down, mid, up = torch.randn(5, 32, 1, 1), torch.randn(5, 5, 3, 3), torch.randn(64, 5, 1, 1)
    base = kohya_name("unet", module)
    path = save(
        {
            f"{base}.lora_down.weight": down,
            f"{base}.lora_mid.weight": mid,
            f"{base}.lora_up.weight": up,
            f"{base}.alpha": torch.tensor(2.5),
        },
        tmp_path / "tucker.safetensors",
    )
    before = state_of(tiny().pipeline.unet)[f"{module}.weight"]
    change = opened(path).weights["unet"][f"{module}.weight"] - before
    picture = torch.randn(1, 32, 8, 8)
    expected = F.conv2d(F.conv2d(F.conv2d(picture, down), mid, padding=1), up)
    found = F.conv2d(picture, change, padding=1)
    assert torch.allclose(found, WEIGHT * 2.5 / 5 * expected, atol=1e-3, rtol=1e-4)


def test_several_loras_add_up_and_weight_zero_changes_nothing(tmp_path: Path) -> None:
    path = save(factors("unet", ATTENTION), tmp_path / "a.safetensors")
    twice = open_checkpoint(tiny().folder, loras=[(path, 0.25), (path, 0.5)])
    once = opened(path, 0.75)
    none = opened(path, 0.0)
    before = state_of(tiny().pipeline.unet)
    for name, tensor in once.weights["unet"].items():
        assert torch.allclose(tensor, twice.weights["unet"][name], atol=1e-6)
        assert torch.equal(none.weights["unet"][name], before[name])
    assert [item.weight for item in twice.ingredients[1:]] == [0.25, 0.5]


def test_half_precision_weights_are_merged_in_single(tmp_path: Path) -> None:
    halves = {
        k: v.half() if v.dtype == torch.float32 else v for k, v in load_file(tiny().file).items()
    }
    save(halves, tmp_path / "half.safetensors")
    path = save(factors("unet", ATTENTION), tmp_path / "a.safetensors")
    checkpoint = open_checkpoint(tmp_path / "half.safetensors", loras=[(path, WEIGHT)])
    assert checkpoint.dtypes["unet"] == "float16"
    single = opened(path)
    worst = max(
        (tensor.float() - single.weights["unet"][name]).abs().max().item()
        for name, tensor in checkpoint.weights["unet"].items()
    )
    assert 0 < worst < 2e-3
    for weights in (single.weights, checkpoint.weights):
        assert weights["vae"].keys() == tiny().pipeline.vae.state_dict().keys()


def refusal(path: Path) -> str:
    with pytest.raises(PocketSDError) as caught:
        opened(path)
    line = str(caught.value)
    assert "\n" not in line and len(line) < 300
    return line


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("lora_unet_x.dora_scale", "is a DoRA"),
        ("lora_unet_x.hada_w1_a", "is a LoHa"),
        ("lora_unet_x.lokr_w1", "is a LoKr"),
        ("lora_te2_text_model_x.lora_down.weight", "is an SDXL LoRA"),
        ("lora_unet_x.diff", "is a full-difference adapter"),
        ("model.diffusion_model.out.2.weight", "is a checkpoint"),
    ],
)
def test_other_adapters_by_name(tmp_path: Path, key: str, said: str) -> None:
    path = save({key: torch.ones(2, 2)}, tmp_path / "other.safetensors")
    assert said in refusal(path) and "cannot be merged as a LoRA" in refusal(path)
    assert inspect_file(path).kind in ("unsupported", "checkpoint")


def test_modules_that_are_not_there(tmp_path: Path) -> None:
    tensors = {}
    for index in range(5):
        tensors[f"lora_unet_nowhere_{index}.lora_down.weight"] = torch.ones(1, 4)
        tensors[f"lora_unet_nowhere_{index}.lora_up.weight"] = torch.ones(4, 1)
    line = refusal(save(tensors, tmp_path / "far.safetensors"))
    assert line == (
        "far.safetensors: 5 modules are not in this checkpoint: "
        "nowhere_0, nowhere_1, nowhere_2, ..."
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lora_down.weight": torch.ones(4, 1024)}, "does not fit unet mid_block"),
        ({"lora_up.weight": torch.ones(64, 3)}, "does not fit unet mid_block"),
        ({"lora_up.weight": torch.full((64, 4), float("nan"))}, "holds NaN"),
        ({"lora_mid.weight": torch.ones(4, 4)}, "does not fit unet mid_block"),
        ({"bias": torch.ones(4)}, "1 keys are no LoRA factors"),
        ({"alpha": torch.ones(2)}, "alpha that is no number"),
        ({"alpha": torch.tensor(float("inf"))}, "alpha that is no number"),
        ({"lora_down.weight": torch.tensor(1.0)}, "a factor of shape ()"),
        ({"lora_down.weight": torch.ones(0, 64)}, "a factor of shape (0, 64)"),
    ],
)
def test_factors_that_do_not_fit(tmp_path: Path, change: Tensors, said: str) -> None:
    base = kohya_name("unet", "mid_block.attentions.0.transformer_blocks.0.attn2.to_k")
    good = {"lora_down.weight": torch.ones(4, 64), "lora_up.weight": torch.ones(64, 4)}
    tensors = {f"{base}.{name}": tensor for name, tensor in (good | change).items()}
    assert said in refusal(save(tensors, tmp_path / "odd.safetensors"))


def test_half_a_pair_and_a_broken_setting(tmp_path: Path) -> None:
    pair = factors("unet", ("mid_block.attentions.0.proj_in",), alpha=None)
    alone = {k: v for k, v in pair.items() if "lora_down" in k}
    assert "are no LoRA factors" in refusal(save(alone, tmp_path / "half.safetensors"))
    folder = tmp_path / "peft"
    folder.mkdir()
    save(pair, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{")
    assert "adapter_config.json: is not valid JSON" in refusal(folder)
    for setting in ({"lora_alpha": "much"}, {"lora_alpha": 1, "alpha_pattern": [3]}):
        (folder / "adapter_config.json").write_text(json.dumps(setting))
        assert list(setting)[-1] in refusal(folder)
    shutil.rmtree(folder)
    folder.mkdir()
    assert "without adapter weights" in refusal(folder)


def test_one_module_in_two_namings(tmp_path: Path) -> None:
    pair = factors("unet", ("mid_block.attentions.0.proj_in",))
    for name in ("unet_mid_block_attentions_0_proj_in", "unet_middle_block_1_proj_in"):
        other = {f"lora_{name}.{key.partition('.')[2]}": t for key, t in pair.items()}
        again = {f"unet.{key.removeprefix('lora_unet_')}": t for key, t in other.items()}
        path = save(pair | again, tmp_path / "twice.safetensors")
        assert "twice in different namings" in refusal(path)


def test_no_two_modules_share_a_spelling() -> None:
    checkpoint = open_checkpoint(tiny().folder)
    assert isinstance(checkpoint.unet, UNetConfig)
    assert isinstance(checkpoint.text_encoder, TextEncoderConfig)
    configs = {"unet": checkpoint.unet, "text_encoder": checkpoint.text_encoder}
    table = module_table(checkpoint.weights, configs)
    for component, tensors in checkpoint.weights.items():
        for name, tensor in tensors.items():
            module = name.removesuffix(".weight")
            if component != "vae" and name.endswith(".weight") and tensor.ndim >= 2:
                assert table[module.replace(".", "_")] == (component, module)
