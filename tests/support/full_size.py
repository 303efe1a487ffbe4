"""SD 1.5's real shapes with random weights, as a diffusers folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from converter.models import TextEncoderConfig, UNetConfig, VaeConfig, build
from tests.conftest import TINY_SD

CONFIGS: dict[str, dict[str, Any]] = {
    "text_encoder": {
        "vocab_size": 49408,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 77,
        "hidden_act": "quick_gelu",
    },
    "unet": {
        "_class_name": "UNet2DConditionModel",
        "block_out_channels": [320, 640, 1280, 1280],
        "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
        "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
        "layers_per_block": 2,
        "attention_head_dim": 8,
        "cross_attention_dim": 768,
        "sample_size": 64,
    },
    "vae": {
        "_class_name": "AutoencoderKL",
        "block_out_channels": [128, 256, 512, 512],
        "layers_per_block": 2,
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
        "latent_channels": 4,
        "sample_size": 512,
    },
}
MODELS = {"text_encoder": TextEncoderConfig(), "unet": UNetConfig(), "vae": VaeConfig()}


def write_full_size(folder: Path) -> Path:
    """A folder of 2.1 GB in fp16; the tokenizer and schedule are those of the embedded model."""
    for part, config in CONFIGS.items():
        (folder / part).mkdir(parents=True)
        (folder / part / "config.json").write_text(json.dumps(config))
        name = "model" if part == "text_encoder" else "diffusion_pytorch_model"
        save_file(_weights(part), folder / part / f"{name}.safetensors")
    for part in ("tokenizer", "scheduler"):
        shutil.copytree(TINY_SD / part, folder / part)
    shutil.copy(TINY_SD / "model_index.json", folder)
    return folder


def _weights(part: str) -> dict[str, torch.Tensor]:
    """Scaled so that activations keep their size; norms away from 1 and 0."""
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in build(part, MODELS[part]).state_dict().items()}
    weights = {}
    for name, shape in shapes.items():
        scale = shape[1:].numel() ** -0.5 if len(shape) > 1 else 0.1
        tensor = torch.randn(shape, generator=generator) * scale
        if "norm" in name and name.endswith("weight"):
            tensor += 1
        weights[name] = tensor.half()
    return weights
