"""Puts the parts together as an ordinary diffusers folder, in one move.

The folder is written beside its destination and renamed, so that nobody who reads the
destination meanwhile ever sees half a model.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextModel

from tools.tiny_sd.models import new_scheduler, write_model_index


def export(
    out: Path,
    text_encoder: CLIPTextModel,
    unet: UNet2DConditionModel,
    vae: AutoencoderKL,
    tokenizer: Path,
) -> None:
    """Write (or replace) the folder; weights in half precision, modules left as they were.

    Files in the destination that are not part of the model (its README) are kept.
    """
    fresh = out.with_name(out.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    parts = {"text_encoder": text_encoder, "unet": unet, "vae": vae}
    for name, module in parts.items():
        config = module.config
        # transformers' models are built from a config, diffusers' through a class method.
        build = CLIPTextModel if name == "text_encoder" else type(module).from_config
        copy = build(config)
        copy.load_state_dict(module.state_dict())
        copy.to(torch.float16).save_pretrained(fresh / name)
    new_scheduler().save_pretrained(fresh / "scheduler")
    _forget_paths(fresh)
    shutil.copytree(tokenizer, fresh / "tokenizer")  # the one that the encoder was trained with
    write_model_index(fresh)
    for path in fresh.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    old = out.with_name(out.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        for path in out.iterdir():
            if path.is_file() and not (fresh / path.name).exists():
                shutil.copy2(path, fresh / path.name)
        out.rename(old)
    fresh.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _forget_paths(folder: Path) -> None:
    """diffusers writes down where a model was loaded from, which is nobody's business."""
    for path in folder.glob("*/config.json"):
        config = json.loads(path.read_text())
        config.pop("_name_or_path", None)
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
