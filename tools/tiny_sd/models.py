"""The three networks of tiny-sd: Stable Diffusion 1.x's architecture at small width.

They are built from diffusers' and transformers' own classes on purpose. The model is used to
test this project's re-implementations of the same networks, so it must owe nothing to them: what
diffusers paints with these weights is an independent oracle.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import AutoencoderKL, PNDMScheduler, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

PICTURE, LATENT = 128, 16  # sides; the autoencoder shrinks by 8
TEXT_WIDTH = 128
MAX_TOKENS = 77


def new_vae() -> AutoencoderKL:
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 64, 64),
        layers_per_block=2,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=PICTURE,
    )


def new_text_encoder(vocab_size: int, bos: int, eos: int) -> CLIPTextModel:
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=vocab_size,
            hidden_size=TEXT_WIDTH,
            intermediate_size=4 * TEXT_WIDTH,
            projection_dim=TEXT_WIDTH,
            num_hidden_layers=4,
            num_attention_heads=2,  # 64 numbers a head, as in Stable Diffusion
            max_position_embeddings=MAX_TOKENS,
            hidden_act="quick_gelu",
            bos_token_id=bos,
            eos_token_id=eos,
            pad_token_id=eos,  # Stable Diffusion pads with the end token
        )
    )


def new_unet() -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=LATENT,
        in_channels=4,
        out_channels=4,
        down_block_types=("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
        block_out_channels=(32, 64, 96, 96),
        layers_per_block=2,
        # Notwithstanding its name this is the number of heads, as in SD 1.x - there it is 8. Two
        # heads halve the cost of a training step: at this width 8 would have 4 numbers each.
        attention_head_dim=2,
        cross_attention_dim=TEXT_WIDTH,
        norm_num_groups=8,
        flip_sin_to_cos=True,
        freq_shift=0,
    )


def new_scheduler() -> PNDMScheduler:
    """The scheduler of Stable Diffusion 1.5, but for what is predicted."""
    return PNDMScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        skip_prk_steps=True,
        set_alpha_to_one=False,
        steps_offset=1,
        prediction_type="v_prediction",  # see tools.tiny_sd.unet for why
        # Begin at the very last timestep: the earlier start that SD 1.5 inherited takes pure noise
        # for a picture that is nine parts in a hundred signal, and colours turn muddy.
        timestep_spacing="trailing",
    )


def alphas_cumprod() -> torch.Tensor:
    """The share of signal left at each of the 1000 training timesteps."""
    return new_scheduler().alphas_cumprod.float()


def write_model_index(folder: Path) -> None:
    """Tie the component folders together the way StableDiffusionPipeline expects."""
    index = {
        "_class_name": "StableDiffusionPipeline",
        "_diffusers_version": "0.30.0",
        "feature_extractor": [None, None],
        "requires_safety_checker": False,
        "safety_checker": [None, None],
        "scheduler": ["diffusers", "PNDMScheduler"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    text = json.dumps(index, indent=2) + "\n"
    (folder / "model_index.json").write_text(text, encoding="utf-8")
