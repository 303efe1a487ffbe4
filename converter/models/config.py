"""What distinguishes one SD 1.x model from another: widths, depths, heads, sizes.

Each dataclass reads the JSON that diffusers writes beside the weights and refuses, by name, what
SD 1.x does not have. Only choices that change the graph are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from runtime_py.errors import PocketSDError

Json = Mapping[str, Any]


@dataclass(frozen=True)
class TextEncoderConfig:
    """CLIP's text tower."""

    vocabulary: int = 49408
    width: int = 768
    layers: int = 12
    heads: int = 12
    inner: int = 3072
    positions: int = 77
    activation: str = "quick_gelu"
    epsilon: float = 1e-5

    @classmethod
    def from_diffusers(cls, config: Json) -> TextEncoderConfig:
        _require(config, "text encoder", hidden_act=("quick_gelu", "gelu"))
        return cls(
            vocabulary=config["vocab_size"],
            width=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            inner=config["intermediate_size"],
            positions=config.get("max_position_embeddings", 77),
            activation=config.get("hidden_act", "quick_gelu"),
            epsilon=config.get("layer_norm_eps", 1e-5),
        )


@dataclass(frozen=True)
class UNetConfig:
    """The denoiser. `attention[i]` says whether level i (from the outside in) has transformers."""

    widths: tuple[int, ...] = (320, 640, 1280, 1280)
    attention: tuple[bool, ...] = (True, True, True, False)
    depth: int = 2
    mid: bool = True
    heads: tuple[int, ...] = (8, 8, 8, 8)
    context: int = 768
    in_channels: int = 4
    out_channels: int = 4
    groups: int = 32
    epsilon: float = 1e-5
    sample_size: int = 64
    flip_sin_to_cos: bool = True
    freq_shift: float = 0.0

    @classmethod
    def from_diffusers(cls, config: Json) -> UNetConfig:
        _require(
            config,
            "UNet",
            act_fn=("silu", "swish"),
            use_linear_projection=(False, None),
            dual_cross_attention=(False, None),
            class_embed_type=(None,),
            addition_embed_type=(None,),
            time_cond_proj_dim=(None,),
            encoder_hid_dim=(None,),
            only_cross_attention=(False, None),
            resnet_time_scale_shift=("default", None),
            upcast_attention=(False, None),
            center_input_sample=(False, None),
            transformer_layers_per_block=(1, None),
            mid_block_type=("UNetMidBlock2DCrossAttn", None),
        )
        widths = tuple(config["block_out_channels"])
        attention = tuple(_is_attention_block(kind, "down") for kind in config["down_block_types"])
        up = tuple(_is_attention_block(kind, "up") for kind in config["up_block_types"])
        if up != attention[::-1] or len(attention) != len(widths):
            raise PocketSDError("the UNet's down and up blocks do not mirror each other")
        heads = config.get("num_attention_heads") or config.get("attention_head_dim", 8)
        depth = config.get("layers_per_block", 2)
        if not isinstance(depth, int):
            raise PocketSDError(f"UNet layers_per_block {depth!r} differs per level, not supported")
        return cls(
            widths=widths,
            attention=attention,
            depth=depth,
            mid=config.get("mid_block_type", "UNetMidBlock2DCrossAttn") is not None,
            heads=tuple(heads) if isinstance(heads, list | tuple) else (heads,) * len(widths),
            context=config["cross_attention_dim"],
            in_channels=config.get("in_channels", 4),
            out_channels=config.get("out_channels", 4),
            groups=config.get("norm_num_groups", 32),
            epsilon=config.get("norm_eps", 1e-5),
            sample_size=config.get("sample_size") or 64,
            flip_sin_to_cos=config.get("flip_sin_to_cos", True),
            freq_shift=config.get("freq_shift", 0.0),
        )


@dataclass(frozen=True)
class VaeConfig:
    """The autoencoder between pictures and latents."""

    widths: tuple[int, ...] = (128, 256, 512, 512)
    depth: int = 2
    latent_channels: int = 4
    in_channels: int = 3
    groups: int = 32
    epsilon: float = 1e-6
    scaling_factor: float = 0.18215
    sample_size: int = 512

    @classmethod
    def from_diffusers(cls, config: Json) -> VaeConfig:
        levels = len(config["block_out_channels"])
        _require(
            config,
            "VAE",
            act_fn=("silu", "swish"),
            down_block_types=(["DownEncoderBlock2D"] * levels,),
            up_block_types=(["UpDecoderBlock2D"] * levels,),
            mid_block_add_attention=(True, None),
            use_quant_conv=(True, None),
            use_post_quant_conv=(True, None),
            shift_factor=(None, 0, 0.0),
        )
        return cls(
            widths=tuple(config["block_out_channels"]),
            depth=config.get("layers_per_block", 2),
            latent_channels=config.get("latent_channels", 4),
            in_channels=config.get("in_channels", 3),
            groups=config.get("norm_num_groups", 32),
            scaling_factor=config.get("scaling_factor", 0.18215),
            sample_size=config.get("sample_size") or 512,
        )

    @property
    def shrink(self) -> int:
        """Picture pixels per latent cell along one side."""
        return int(2 ** (len(self.widths) - 1))


ComponentConfig = TextEncoderConfig | UNetConfig | VaeConfig
CONFIGS: dict[str, type[TextEncoderConfig] | type[UNetConfig] | type[VaeConfig]] = {
    "text_encoder": TextEncoderConfig,
    "unet": UNetConfig,
    "vae": VaeConfig,
}


def to_json(config: ComponentConfig) -> dict[str, Any]:
    """A config as plain JSON values; `from_json` is its inverse."""
    values: dict[str, Any] = msgspec.to_builtins(config)
    return values


def from_json(component: str, values: Json) -> ComponentConfig:
    try:
        return msgspec.convert(values, CONFIGS[component])
    except msgspec.ValidationError as error:
        raise PocketSDError(f"{component} config does not fit this version: {error}") from None


def _is_attention_block(kind: str, direction: str) -> bool:
    known = {
        "down": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    if kind not in known[direction]:
        raise PocketSDError(f"UNet block type {kind!r} is not part of SD 1.x")
    return kind.startswith("CrossAttn")


def _require(config: Json, component: str, **allowed: tuple[Any, ...]) -> None:
    """Refuse a config whose value for a key is set to something the models here do not build."""
    for key, values in allowed.items():
        if key in config and config[key] not in values:
            raise PocketSDError(
                f"{component} has {key}={config[key]!r}, which SD 1.x does not have"
            )
