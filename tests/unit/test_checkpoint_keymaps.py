"""The key maps over random architectures: every name has its own place, and detection finds it."""

from __future__ import annotations

import dataclasses

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.checkpoints.detect import detect_text_encoder, detect_unet, detect_vae
from converter.checkpoints.keymaps import (
    canonical_vae_name,
    original_name_of_ema,
    original_names,
)
from converter.checkpoints.structure import shapes_of
from converter.models.config import TextEncoderConfig, UNetConfig, VaeConfig
from tests.support.checkpoints import old_attention_names, original_unet, original_vae

Shapes = dict[str, torch.Tensor]


def meta(component: str, config: UNetConfig | VaeConfig | TextEncoderConfig) -> Shapes:
    shapes = shapes_of(component, config)
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


@st.composite
def unets(draw: st.DrawFn) -> UNetConfig:
    levels = draw(st.integers(1, 4))
    attention = draw(st.lists(st.booleans(), min_size=levels, max_size=levels).filter(any))
    widths = draw(st.lists(st.sampled_from((32, 64, 96)), min_size=levels, max_size=levels))
    return UNetConfig(
        widths=tuple(widths),
        attention=tuple(attention),
        depth=draw(st.integers(1, 3)),
        mid=draw(st.booleans()),
        heads=(8,) * levels,
        context=draw(st.sampled_from((32, 64, 768))),
        in_channels=draw(st.sampled_from((4, 8, 9))),
    )


@st.composite
def vaes(draw: st.DrawFn) -> VaeConfig:
    widths = draw(st.lists(st.sampled_from((32, 64)), min_size=1, max_size=5))
    return VaeConfig(
        widths=tuple(widths),
        depth=draw(st.integers(1, 3)),
        latent_channels=draw(st.sampled_from((4, 8))),
    )


def diffusers_unet(config: UNetConfig) -> UNet2DConditionModel:
    with torch.device("meta"):
        return UNet2DConditionModel(
            block_out_channels=config.widths,
            down_block_types=[f"{'CrossAttn' * a}DownBlock2D" for a in config.attention],
            up_block_types=[f"{'CrossAttn' * a}UpBlock2D" for a in config.attention[::-1]],
            layers_per_block=config.depth,
            mid_block_type="UNetMidBlock2DCrossAttn" if config.mid else None,
            attention_head_dim=8,
            cross_attention_dim=config.context,
            in_channels=config.in_channels,
        )


@settings(max_examples=25, deadline=None)
@given(unets())
def test_unet_names_agree_with_an_independent_walk(config: UNetConfig) -> None:
    model = diffusers_unet(config)
    canonical = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    table = original_names(canonical, config)
    walked = {name: tuple(t.shape) for name, t in original_unet(model).items()}
    assert len(table) == len(canonical)
    assert {name: canonical[ours] for name, ours in table.items()} == walked
    assert shapes_of("unet", config) == canonical


@settings(max_examples=25, deadline=None)
@given(vaes())
def test_vae_names_agree_with_an_independent_walk(config: VaeConfig) -> None:
    levels = len(config.widths)
    with torch.device("meta"):
        model = AutoencoderKL(
            block_out_channels=config.widths,
            down_block_types=("DownEncoderBlock2D",) * levels,
            up_block_types=("UpDecoderBlock2D",) * levels,
            layers_per_block=config.depth,
            latent_channels=config.latent_channels,
        )
    canonical = model.state_dict()
    table = original_names(canonical, config)
    assert len(table) == len(canonical)
    assert table.keys() == original_vae(model).keys()
    assert detect_vae(original_vae(model)) == config
    assert detect_vae(canonical) == config
    old = old_attention_names(canonical)
    assert [canonical_vae_name(name) for name in old] == list(canonical)
    assert [canonical_vae_name(name) for name in canonical] == list(canonical)


@settings(max_examples=60, deadline=None)
@given(unets())
def test_unets_are_detected_in_both_namings_and_from_ema(config: UNetConfig) -> None:
    canonical = meta("unet", config)
    table = original_names(canonical, config)
    original = {name: canonical[ours] for name, ours in table.items()}
    assert len(original) == len(canonical)
    assert detect_unet(original) == config
    assert detect_unet(canonical) == config
    flat = [f"model_ema.diffusion_model{name.replace('.', '')}" for name in original]
    assert [original_name_of_ema(name) for name in flat] == list(original)


@settings(max_examples=20, deadline=None)
@given(
    layers=st.integers(1, 14),
    heads=st.integers(1, 3),
    vocabulary=st.integers(2, 500),
    positions=st.integers(2, 77),
)
def test_text_encoders_are_detected(
    layers: int, heads: int, vocabulary: int, positions: int
) -> None:
    config = dataclasses.replace(
        TextEncoderConfig(),
        vocabulary=vocabulary,
        width=64 * heads,
        layers=layers,
        heads=heads,
        inner=96,
        positions=positions,
    )
    tensors = meta("text_encoder", config)
    assert detect_text_encoder(tensors) == config
    table = original_names(tensors, config)
    assert list(table) == [f"text_model.{name}" for name in tensors]


def test_the_published_model_is_detected() -> None:
    unet, vae, text = UNetConfig(), VaeConfig(), TextEncoderConfig()
    names = {"unet": unet, "vae": vae, "text_encoder": text}
    found = {
        component: original_names(tensors := meta(component, config), config)
        and sum(tensor.numel() for tensor in tensors.values())
        for component, config in names.items()
    }
    # The parameter counts of Stable Diffusion 1.5.
    assert found == {"unet": 859_520_964, "vae": 83_653_863, "text_encoder": 123_060_480}
    assert detect_unet(meta("unet", unet)) == unet
    assert detect_vae(meta("vae", vae)) == vae
    assert detect_text_encoder(meta("text_encoder", text)) == text
    original = original_names(shapes_of("unet", unet), unet)
    assert original["input_blocks.3.0.op.weight"] == "down_blocks.0.downsamplers.0.conv.weight"
    assert original["output_blocks.2.1.conv.bias"] == "up_blocks.0.upsamplers.0.conv.bias"
    assert original["output_blocks.11.1.proj_in.bias"] == "up_blocks.3.attentions.2.proj_in.bias"
