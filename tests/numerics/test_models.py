"""Our modules against diffusers' and transformers' with the same weights.

The bound is 90 dB PSNR: both sides compute in fp32, in another order of operations; a wrong
epsilon, padding or head count costs far more than that leaves.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from converter.models import TextEncoderConfig, UNetConfig, VaeConfig, build
from runtime_py.quality import psnr

BOUND = 90.0


def same_weights(component: str, config: Any, theirs: nn.Module) -> nn.Module:
    """Our module holding the other side's tensors, not copies of them."""
    with torch.device("meta"):
        module = build(component, config)
    state = theirs.state_dict()
    module.load_state_dict({name: state[name] for name in module.state_dict()}, assign=True)
    return module.eval()


def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Weights of a trained model's size; norms away from the 1 and 0 that would hide a mistake."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                fan_in = parameter[0].numel()
                parameter.normal_(0, fan_in**-0.5, generator=generator)
            else:
                parameter.normal_(0, 0.2, generator=generator)
        for name, parameter in module.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
    return module.eval()


def their_unet(**config: Any) -> nn.Module:
    from diffusers import UNet2DConditionModel

    with torch.device("meta"):
        module = UNet2DConditionModel(**config)
    return randomise(module.to_empty(device="cpu"))


def their_vae(**config: Any) -> nn.Module:
    from diffusers import AutoencoderKL

    levels = len(config["block_out_channels"])
    with torch.device("meta"):
        module = AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * levels,
            up_block_types=["UpDecoderBlock2D"] * levels,
            **config,
        )
    return randomise(module.to_empty(device="cpu"))


def their_text_encoder(**config: Any) -> nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel

    last = config["vocab_size"] - 1
    return randomise(
        CLIPTextModel(CLIPTextConfig(bos_token_id=last - 1, eos_token_id=last, **config))
    )


@torch.inference_mode()
def check_unet(theirs: Any, size: int, batch: int = 2) -> None:
    config = UNetConfig.from_diffusers(theirs.config)
    ours = same_weights("unet", config, theirs)
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(batch, config.in_channels, size, size, generator=generator)
    embedding = torch.randn(batch, 77, config.context, generator=generator)
    timestep = torch.tensor([981.0, 1.0])[:batch]
    wanted = theirs(latent, timestep, embedding).sample
    assert psnr(wanted, ours(latent, timestep, embedding)) >= BOUND


@torch.inference_mode()
def check_vae(theirs: Any, size: int) -> None:
    config = VaeConfig.from_diffusers(theirs.config)
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(1, config.latent_channels, size, size, generator=generator)
    wanted = theirs.decode(latent / config.scaling_factor).sample
    assert psnr(wanted, same_weights("vae_decoder", config, theirs)(latent)) >= BOUND
    picture = (
        torch.rand(1, 3, size * config.shrink, size * config.shrink, generator=generator) * 2 - 1
    )
    wanted = theirs.encode(picture).latent_dist.mode() * config.scaling_factor
    assert psnr(wanted, same_weights("vae_encoder", config, theirs)(picture)) >= BOUND


@torch.inference_mode()
def check_text_encoder(theirs: Any) -> None:
    config = TextEncoderConfig.from_diffusers(theirs.config.to_dict())
    tokens = torch.randint(
        0, config.vocabulary, (2, 77), generator=torch.Generator().manual_seed(1)
    )
    ours = same_weights("text_encoder", config, theirs)
    assert psnr(theirs(tokens).last_hidden_state, ours(tokens.int())) >= BOUND


def test_tiny_sd_unet(tiny_sd) -> None:  # type: ignore[no-untyped-def]
    from diffusers import UNet2DConditionModel

    theirs = UNet2DConditionModel.from_pretrained(tiny_sd / "unet", torch_dtype=torch.float32)
    check_unet(theirs.eval(), theirs.config.sample_size)


def test_tiny_sd_vae(tiny_sd) -> None:  # type: ignore[no-untyped-def]
    from diffusers import AutoencoderKL

    theirs = AutoencoderKL.from_pretrained(tiny_sd / "vae", torch_dtype=torch.float32)
    check_vae(theirs.eval(), 16)


def test_tiny_sd_text_encoder(tiny_sd) -> None:  # type: ignore[no-untyped-def]
    from transformers import CLIPTextModel

    theirs = CLIPTextModel.from_pretrained(tiny_sd / "text_encoder", dtype=torch.float32)
    check_text_encoder(theirs.eval())


@settings(max_examples=12)
@given(
    levels=st.lists(st.tuples(st.sampled_from([8, 16, 24]), st.booleans()), min_size=1, max_size=4),
    depth=st.integers(1, 3),
    mid=st.booleans(),
    heads=st.sampled_from([1, 2, 4]),
    flip=st.booleans(),
)
def test_unets_of_any_build(
    levels: list[tuple[int, bool]], depth: int, mid: bool, heads: int, flip: bool
) -> None:
    """Widths, depths, transformers or none per level, no middle block: pruned models have all."""
    kinds = ["CrossAttnDownBlock2D" if attention else "DownBlock2D" for _, attention in levels]
    theirs = their_unet(
        block_out_channels=tuple(width for width, _ in levels),
        down_block_types=tuple(kinds),
        up_block_types=tuple(kind.replace("Down", "Up") for kind in reversed(kinds)),
        mid_block_type="UNetMidBlock2DCrossAttn" if mid else None,
        layers_per_block=depth,
        attention_head_dim=heads,
        cross_attention_dim=12,
        norm_num_groups=4,
        flip_sin_to_cos=flip,
        sample_size=16,
    )
    check_unet(theirs, size=2 ** (len(levels) - 1) * 2)


@settings(max_examples=8)
@given(
    widths=st.lists(st.sampled_from([8, 16, 24]), min_size=1, max_size=4), depth=st.integers(1, 3)
)
def test_vaes_of_any_build(widths: list[int], depth: int) -> None:
    check_vae(
        their_vae(block_out_channels=tuple(widths), layers_per_block=depth, norm_num_groups=4), 4
    )


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_text_encoder_activations(activation: str) -> None:
    check_text_encoder(
        their_text_encoder(
            vocab_size=100,
            hidden_size=32,
            num_attention_heads=4,
            num_hidden_layers=2,
            intermediate_size=64,
            hidden_act=activation,
        )
    )


PARAMETERS = {
    "text_encoder": (TextEncoderConfig(), 123_060_480),
    "unet": (UNetConfig(), 859_520_964),
    "vae_decoder": (VaeConfig(), 49_490_199),
    "vae_encoder": (VaeConfig(), 34_163_664),
}


@pytest.mark.parametrize("component", PARAMETERS)
def test_parameters_of_sd15(component: str) -> None:
    config, count = PARAMETERS[component]
    with torch.device("meta"):
        assert sum(p.numel() for p in build(component, config).parameters()) == count


@pytest.mark.slow
def test_full_size_unet() -> None:
    check_unet(their_unet(cross_attention_dim=768, sample_size=64), size=64, batch=1)
    gc.collect()


@pytest.mark.slow
def test_full_size_vae() -> None:
    check_vae(their_vae(block_out_channels=(128, 256, 512, 512), layers_per_block=2), size=64)
    gc.collect()


@pytest.mark.slow
def test_full_size_text_encoder() -> None:
    check_text_encoder(
        their_text_encoder(
            vocab_size=49408,
            hidden_size=768,
            num_attention_heads=12,
            num_hidden_layers=12,
            intermediate_size=3072,
        )
    )
