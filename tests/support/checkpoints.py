"""Tiny random SD 1.x checkpoints, in every layout that people have them in.

The original layout is written here by walking diffusers' modules in order and counting blocks,
which shares nothing with the converter's own key maps.
"""

from __future__ import annotations

import atexit
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

Tensors = dict[str, torch.Tensor]

# With tensors this small, threads only get in each other's way.
torch.set_num_threads(1)

WIDTHS = (32, 64, 64, 64)
CONTEXT = 64
SCHEDULER = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "skip_prk_steps": True,
    "steps_offset": 1,
}


@dataclass(frozen=True)
class Tiny:
    """One model in memory and on disk."""

    pipeline: StableDiffusionPipeline
    folder: Path
    file: Path

    @property
    def components(self) -> dict[str, torch.nn.Module]:
        pipe = self.pipeline
        return {"text_encoder": pipe.text_encoder, "unet": pipe.unet, "vae": pipe.vae}

    def load(self) -> StableDiffusionPipeline:
        """A pipeline of one's own, to change."""
        return StableDiffusionPipeline.from_pretrained(self.folder, safety_checker=None)


@cache
def tiny() -> Tiny:
    """The model that the tests share; it has SD 1.x's four levels."""
    root = Path(_keep(tempfile.TemporaryDirectory()).name)
    pipe = pipeline(root)
    folder = root / "tiny-model"
    save_folder(pipe, folder)
    file = root / "tiny-file.safetensors"
    save_file(original_layout(pipe), file)
    return Tiny(pipe, folder, file)


def pipeline(scratch: Path, **unet: Any) -> StableDiffusionPipeline:
    """A random pipeline; keyword arguments replace the UNet's configuration."""
    torch.manual_seed(0)
    tokenizer = CLIPTokenizer(**{k: str(v) for k, v in tokenizer_files(scratch).items()})
    text = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=CONTEXT,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=CONTEXT // 64,
            max_position_embeddings=77,
            bos_token_id=0,
            eos_token_id=1,
        )
    )
    settings: dict[str, Any] = {
        "block_out_channels": WIDTHS,
        "cross_attention_dim": CONTEXT,
        "attention_head_dim": 8,
    }
    vae = AutoencoderKL(
        block_out_channels=WIDTHS,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=4,
    )
    return StableDiffusionPipeline(
        vae=vae,
        text_encoder=text,
        tokenizer=tokenizer,
        unet=UNet2DConditionModel(**(settings | unet)),
        scheduler=PNDMScheduler.from_config(dict(SCHEDULER)),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def save_folder(pipe: StableDiffusionPipeline, folder: Path) -> Path:
    """Write a pipeline as a diffusers folder, with the tokenizer's two classic files as well."""
    pipe.save_pretrained(folder)
    tokenizer_files(folder / "tokenizer")
    return folder


def tokenizer_files(folder: Path) -> dict[str, Path]:
    """A byte-pair vocabulary of single letters and one merge."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{c}</w>" for c in letters)]
    tokens.append("ab</w>")
    folder.mkdir(parents=True, exist_ok=True)
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    vocab.write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    merges.write_text("#version: 0.2\na b</w>\n")
    return {"vocab": vocab, "merges": merges}


def original_layout(pipe: StableDiffusionPipeline, *, ema: bool = False) -> Tensors:
    """A pipeline's weights as one original-layout state dict, leftovers of training included."""
    tensors: Tensors = {"alphas_cumprod": torch.ones(1000), "betas": torch.ones(1000)}
    for name, tensor in pipe.text_encoder.state_dict().items():
        name = name.removeprefix("text_model.")
        tensors[f"cond_stage_model.transformer.text_model.{name}"] = tensor
    tensors["cond_stage_model.transformer.text_model.embeddings.position_ids"] = torch.arange(77)
    unet = {f"diffusion_model.{k}": v for k, v in original_unet(pipe.unet).items()}
    tensors |= {f"model.{name}": tensor for name, tensor in unet.items()}
    if ema:
        tensors |= {f"model_ema.{k.replace('.', '')}": v + 1 for k, v in unet.items()}
        tensors["model_ema.decay"] = torch.tensor(0.99)
        tensors["model_ema.num_updates"] = torch.tensor(7)
    tensors |= {f"first_stage_model.{k}": v for k, v in original_vae(pipe.vae).items()}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def original_unet(unet: UNet2DConditionModel) -> Tensors:
    """The UNet in the original layout: a flat row of blocks down, and one up."""
    result: Tensors = {}
    for place, module in original_unet_modules(unet):
        result |= {f"{place}.{name}": tensor for name, tensor in module.state_dict().items()}
    return result


def original_unet_modules(unet: UNet2DConditionModel) -> Iterator[tuple[str, torch.nn.Module]]:
    """Each leaf-like module with its original place."""
    yield "time_embed.0", unet.time_embedding.linear_1
    yield "time_embed.2", unet.time_embedding.linear_2
    yield "input_blocks.0.0", unet.conv_in
    number = 1
    for block in unet.down_blocks:
        for position, resnet in enumerate(block.resnets):
            yield from _resnet(f"input_blocks.{number}.0", resnet)
            if hasattr(block, "attentions"):
                yield f"input_blocks.{number}.1", block.attentions[position]
            number += 1
        if block.downsamplers:
            yield f"input_blocks.{number}.0.op", block.downsamplers[0].conv
            number += 1
    if unet.mid_block is not None:
        yield from _resnet("middle_block.0", unet.mid_block.resnets[0])
        yield "middle_block.1", unet.mid_block.attentions[0]
        yield from _resnet("middle_block.2", unet.mid_block.resnets[1])
    number = 0
    for block in unet.up_blocks:
        for position, resnet in enumerate(block.resnets):
            slots = 1
            yield from _resnet(f"output_blocks.{number}.0", resnet)
            if hasattr(block, "attentions"):
                yield f"output_blocks.{number}.1", block.attentions[position]
                slots = 2
            if block.upsamplers and position == len(block.resnets) - 1:
                yield f"output_blocks.{number}.{slots}.conv", block.upsamplers[0].conv
            number += 1
    yield "out.0", unet.conv_norm_out
    yield "out.2", unet.conv_out


def original_vae(vae: AutoencoderKL) -> Tensors:
    """The autoencoder in the original layout, its attention as 1x1 convolutions."""
    result: Tensors = {}

    def put(place: str, module: torch.nn.Module, *, convolution: bool = False) -> None:
        for name, tensor in module.state_dict().items():
            grown = tensor[:, :, None, None] if convolution and name == "weight" else tensor
            result[f"{place}.{name}"] = grown

    def put_resnet(place: str, resnet: Any) -> None:
        for name in ("norm1", "conv1", "norm2", "conv2"):
            put(f"{place}.{name}", getattr(resnet, name))
        if resnet.conv_shortcut is not None:
            put(f"{place}.nin_shortcut", resnet.conv_shortcut)

    for side, blocks in (("encoder", vae.encoder.down_blocks), ("decoder", vae.decoder.up_blocks)):
        half: Any = getattr(vae, side)
        put(f"{side}.conv_in", half.conv_in)
        put(f"{side}.norm_out", half.conv_norm_out)
        put(f"{side}.conv_out", half.conv_out)
        attention = half.mid_block.attentions[0]
        put_resnet(f"{side}.mid.block_1", half.mid_block.resnets[0])
        put_resnet(f"{side}.mid.block_2", half.mid_block.resnets[1])
        put(f"{side}.mid.attn_1.norm", attention.group_norm)
        for letter in "qkv":
            layer = getattr(attention, f"to_{letter}")
            put(f"{side}.mid.attn_1.{letter}", layer, convolution=True)
        put(f"{side}.mid.attn_1.proj_out", attention.to_out[0], convolution=True)
        row = list(blocks) if side == "encoder" else list(blocks)[::-1]
        for level, block in enumerate(row):
            place = f"{side}.{'down' if side == 'encoder' else 'up'}.{level}"
            for index, resnet in enumerate(block.resnets):
                put_resnet(f"{place}.block.{index}", resnet)
            if getattr(block, "downsamplers", None):
                put(f"{place}.downsample.conv", block.downsamplers[0].conv)
            if getattr(block, "upsamplers", None):
                put(f"{place}.upsample.conv", block.upsamplers[0].conv)
    put("quant_conv", vae.quant_conv)
    put("post_quant_conv", vae.post_quant_conv)
    return result


def old_attention_names(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """A diffusers VAE as it was written before 2023."""
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    result: Tensors = {}
    for name, tensor in tensors.items():
        for new, former in old.items():
            name = name.replace(f"attentions.0.{new}.", f"attentions.0.{former}.")
        result[name] = tensor
    return result


def state_of(component: torch.nn.Module) -> Tensors:
    """A module's weights under canonical names."""
    return {k.removeprefix("text_model."): v for k, v in component.state_dict().items()}


def _resnet(place: str, resnet: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    yield f"{place}.in_layers.0", resnet.norm1
    yield f"{place}.in_layers.2", resnet.conv1
    yield f"{place}.emb_layers.1", resnet.time_emb_proj
    yield f"{place}.out_layers.0", resnet.norm2
    yield f"{place}.out_layers.3", resnet.conv2
    if resnet.conv_shortcut is not None:
        yield f"{place}.skip_connection", resnet.conv_shortcut


def _keep(folder: tempfile.TemporaryDirectory[str]) -> tempfile.TemporaryDirectory[str]:
    atexit.register(folder.cleanup)
    return folder
