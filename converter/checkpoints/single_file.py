"""Single-file checkpoints in the original layout, and autoencoders kept in a file of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from converter.checkpoints.checkpoint import (
    COMPONENTS,
    SD1_SCHEDULER,
    Parts,
    Tensors,
)
from converter.checkpoints.detect import (
    component_of,
    detect,
    detect_vae,
    is_harmless,
    kind_of,
    refuse_other_families,
)
from converter.checkpoints.files import read_json
from converter.checkpoints.keymaps import (
    EMA_PREFIX,
    ORIGINAL_PREFIX,
    canonical_text_encoder_name,
    canonical_vae_name,
    original_name_of_ema,
    original_names,
)
from converter.checkpoints.structure import read_config, shapes_of
from converter.checkpoints.weights import WeightFile, read_weights
from converter.models.config import ComponentConfig, UNetConfig, VaeConfig
from runtime_py.errors import PocketSDError
from runtime_py.files import sha256_of
from runtime_py.package import Ingredient

# What names and shapes cannot tell; a config given by the user decides it.
_NOT_IN_WEIGHTS = {
    *("heads", "groups", "epsilon", "sample_size", "flip_sin_to_cos", "freq_shift"),
    *("activation", "scaling_factor"),
}


def read_single_file(path: Path, *, config: Path | None, ema: bool) -> Parts:
    """A .safetensors or .ckpt checkpoint as components under canonical names."""
    file = read_weights(path)
    kind = kind_of(file.tensors)
    if kind.name != "checkpoint":
        raise PocketSDError(f"is {kind.what}, not an SD 1.x checkpoint", where=path.name)
    components, notes = split_components(file.tensors, path.name, ema=ema)
    scheduler = scheduler_of(file, config)
    file.tensors.clear()
    configs: dict[str, ComponentConfig] = {}
    weights: dict[str, dict[str, torch.Tensor]] = {}
    for component, tensors in components.items():
        found = detect(component, tensors)
        if isinstance(found, UNetConfig):
            refuse_other_families(found, path.name)
        configs[component] = _with_config(component, found, config)
        weights[component] = canonical(component, configs[component], tensors)
        tensors.clear()
    return Parts(
        kind="single file",
        configs=configs,
        weights=weights,
        scheduler=scheduler,
        tokenizer=None,
        ingredients=(Ingredient("checkpoint", path.name, sha256_of(path)),),
        notes=notes,
    )


def read_vae_file(path: Path) -> tuple[VaeConfig, dict[str, torch.Tensor]]:
    """An autoencoder in a file of its own, in the original naming or in diffusers'."""
    tensors = read_weights(path).tensors
    kind = kind_of(tensors)
    # A whole checkpoint serves too; only its autoencoder is used.
    if kind.name not in ("vae", "checkpoint"):
        raise PocketSDError(f"is {kind.what}, not a VAE", where=path.name)
    prefix = ORIGINAL_PREFIX["vae"]
    prefixed = any(name.startswith(prefix) for name in tensors)
    own = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix if prefixed else "") and not is_harmless(name)
    }
    config = detect_vae(own)
    return config, canonical("vae", config, own)


def split_components(
    tensors: Tensors, where: str, *, ema: bool
) -> tuple[dict[str, dict[str, torch.Tensor]], tuple[str, ...]]:
    """A file's tensors by component, each without its prefix; text towers already canonical."""
    result: dict[str, dict[str, torch.Tensor]] = {}
    averaged: dict[str, torch.Tensor] = {}
    left = []
    for name, tensor in tensors.items():
        component = component_of(name)
        if name.startswith(EMA_PREFIX):
            averaged[original_name_of_ema(name)] = tensor
        elif component and not is_harmless(name):
            own = name.removeprefix(ORIGINAL_PREFIX[component])
            if component == "text_encoder":
                own = canonical_text_encoder_name(own)
            result.setdefault(component, {})[own] = tensor
        elif not is_harmless(name):
            left.append(name)
    if left:
        raise PocketSDError(
            f"{len(left)} weights belong to no component of SD 1.x, first {left[0]}", where=where
        )
    averaged = {name: t for name, t in averaged.items() if name not in ("decay", "num_updates")}
    if ema and not averaged:
        raise PocketSDError("holds no EMA weights", where=where, mend="open it without ema")
    notes: tuple[str, ...] = ()
    if averaged and (ema or "unet" not in result):
        result["unet"] = averaged
        notes = ("EMA weights used",) if ema else ("EMA weights used, as there are no others",)
    elif averaged:
        notes = ("EMA weights present but not used",)
    return {name: result[name] for name in COMPONENTS if name in result}, notes


def canonical(component: str, config: ComponentConfig, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Canonical names for a component's tensors; names without a counterpart stay as they are."""
    table = original_names(shapes_of(component, config), config)
    if component == "text_encoder":
        return {canonical_text_encoder_name(name): tensor for name, tensor in tensors.items()}
    if component == "vae":
        return {table.get(name) or canonical_vae_name(name): t for name, t in tensors.items()}
    return {table.get(name, name): tensor for name, tensor in tensors.items()}


def scheduler_of(file: WeightFile, config: Path | None) -> Mapping[str, Any]:
    """SD 1.x's noise schedule, with what the file says about its training."""
    beside = config / "scheduler" / "scheduler_config.json" if config else None
    scheduler = read_json(beside) if beside and beside.is_file() else dict(SD1_SCHEDULER)
    said = str(file.metadata.get("modelspec.prediction_type", "")).lower()
    trained = str(file.metadata.get("ss_v_parameterization", "")).lower()
    if "v_pred" in file.tensors or said in ("v", "v_prediction") or trained == "true":
        scheduler["prediction_type"] = "v_prediction"
    if "ztsnr" in file.tensors:
        scheduler["rescale_betas_zero_snr"] = True
    return scheduler


def _with_config(component: str, found: ComponentConfig, folder: Path | None) -> ComponentConfig:
    """The config the user gave for a component, once it agrees with the weights."""
    path = folder / component / "config.json" if folder else None
    if path is None or not path.is_file():
        return found
    given = read_config(component, path)
    for field in fields(found):
        ours, theirs = getattr(found, field.name), getattr(given, field.name)
        if field.name not in _NOT_IN_WEIGHTS and ours != theirs:
            raise PocketSDError(
                f"{component}: the config says {field.name} {theirs}, the weights {ours}"
            )
    return given
