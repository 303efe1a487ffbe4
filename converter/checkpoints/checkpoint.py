"""What an opened checkpoint is: configs, weights under canonical names, and their origins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from converter.models.config import ComponentConfig, TextEncoderConfig, UNetConfig, VaeConfig
from runtime_py.package import Ingredient

COMPONENTS = ("text_encoder", "unet", "vae")

Tensors = Mapping[str, torch.Tensor]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class TokenizerFiles:
    """CLIP's byte-pair tokenizer as its two files, and the tokens added to it."""

    vocab: bytes
    merges: bytes
    added: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A checked SD 1.x model: every component complete, every weight finite and of its shape."""

    name: str
    kind: str
    text_encoder: TextEncoderConfig
    unet: UNetConfig
    vae: VaeConfig
    weights: Mapping[str, Tensors]
    scheduler: Mapping[str, Any]
    tokenizer: TokenizerFiles | None
    dtypes: Mapping[str, str]
    ingredients: tuple[Ingredient, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parts:
    """What a reader found, before anything is checked; a component may still be absent."""

    kind: str
    configs: dict[str, ComponentConfig]
    weights: dict[str, dict[str, torch.Tensor]]
    scheduler: Mapping[str, Any]
    tokenizer: TokenizerFiles | None
    ingredients: tuple[Ingredient, ...]
    notes: tuple[str, ...] = ()


# What Stable Diffusion 1.x was published with; single files carry no scheduler.
SD1_SCHEDULER: Mapping[str, Any] = {
    "_class_name": "PNDMScheduler",
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "trained_betas": None,
    "prediction_type": "epsilon",
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "timestep_spacing": "leading",
    "clip_sample": False,
}


def dtype_name(tensors: Tensors) -> str:
    """One name for all tensors' dtype, or "mixed ..." with each of them."""
    names = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})
    return names[0] if len(names) == 1 else f"mixed {', '.join(names)}"
