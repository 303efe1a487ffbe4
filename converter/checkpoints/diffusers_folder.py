"""Checkpoints as diffusers keeps them: one folder per component, a config.json beside the weights.

Only fixed component names are followed. A name read from a file (the shards of an index) must be
that of a sibling.
"""

from __future__ import annotations

from pathlib import Path

import torch

from converter.checkpoints.checkpoint import COMPONENTS, SD1_SCHEDULER, Parts
from converter.checkpoints.detect import is_harmless, refuse_other_families
from converter.checkpoints.files import read_json, sha256_of_files, sibling
from converter.checkpoints.keymaps import canonical_text_encoder_name, canonical_vae_name
from converter.checkpoints.structure import read_config
from converter.checkpoints.tokenizer_files import read_tokenizer
from converter.checkpoints.weights import WeightFile, read_headers, read_weights
from converter.models.config import ComponentConfig, UNetConfig, VaeConfig
from runtime_py.errors import PocketSDError
from runtime_py.package import Ingredient

_STEMS = ("diffusion_pytorch_model", "model", "pytorch_model")
_SUFFIXES = ("safetensors", "bin")


def read_folder(folder: Path) -> Parts:
    """A diffusers folder as components under canonical names."""
    refuse_other_folders(folder)
    configs: dict[str, ComponentConfig] = {}
    weights: dict[str, dict[str, torch.Tensor]] = {}
    read: list[Path] = []
    for component in COMPONENTS:
        place = folder / component
        if (place / "config.json").is_file():
            configs[component], weights[component], files = read_component(place, component)
            read.extend(files)
            config = configs[component]
            if isinstance(config, UNetConfig):
                refuse_other_families(config, folder.name)
    schedule = folder / "scheduler" / "scheduler_config.json"
    notes: tuple[str, ...] = ()
    if schedule.is_file():
        scheduler = read_json(schedule)
        read.append(schedule)
    else:
        scheduler, notes = dict(SD1_SCHEDULER), ("no scheduler in the folder, SD 1.x's assumed",)
    tokenizer = read_tokenizer(folder / "tokenizer")
    read.extend(tokenizer[1] if tokenizer else ())
    if (folder / "safety_checker").is_dir():
        notes += ("safety checker ignored",)
    return Parts(
        kind="diffusers folder",
        configs=configs,
        weights=weights,
        scheduler=scheduler,
        tokenizer=tokenizer[0] if tokenizer else None,
        ingredients=(Ingredient("checkpoint", folder.name, sha256_of_files(folder, read)),),
        notes=notes,
    )


def read_vae_folder(folder: Path) -> tuple[VaeConfig, dict[str, torch.Tensor], tuple[Path, ...]]:
    """The autoencoder of a folder that is one or has one, and the files it was read from."""
    place = folder / "vae" if (folder / "vae" / "config.json").is_file() else folder
    if not (place / "config.json").is_file():
        raise PocketSDError("has no VAE: no config.json", where=folder.name)
    config, tensors, files = read_component(place, "vae")
    assert isinstance(config, VaeConfig)
    return config, tensors, files


def read_component(
    place: Path, component: str
) -> tuple[ComponentConfig, dict[str, torch.Tensor], tuple[Path, ...]]:
    """One component's config, its weights under canonical names, and the files that were read."""
    config = read_config(component, place / "config.json")
    rename = {"text_encoder": canonical_text_encoder_name, "vae": canonical_vae_name}.get(component)
    tensors: dict[str, torch.Tensor] = {}
    files = weight_files(place)
    for file in files:
        if file.suffix == ".json":
            continue
        for name, tensor in read_weights(file).tensors.items():
            if not is_harmless(name):
                tensors[rename(name) if rename else name] = tensor
    return config, tensors, (place / "config.json", *files)


def refuse_other_folders(folder: Path) -> None:
    """Refuse a folder that is no diffusers folder, or one of another family, by what it is."""
    index_path = folder / "model_index.json"
    index = read_json(index_path) if index_path.is_file() else {}
    pipeline = index.get("_class_name", "a folder without model_index.json")
    present = {name for name, value in index.items() if isinstance(value, list)}
    present |= {item.name for item in folder.iterdir() if item.is_dir()}
    if "text_encoder_2" in present or "transformer" in present or "prior" in present:
        raise PocketSDError(f"is another kind of model ({pipeline}), not SD 1.x", where=folder.name)
    if not any((folder / name / "config.json").is_file() for name in COMPONENTS):
        loose = sorted(
            item.name for item in folder.iterdir() if item.suffix in (".safetensors", ".ckpt")
        )
        raise PocketSDError(
            "is not a diffusers folder: it has no unet, vae or text_encoder with a config.json",
            where=folder.name,
            mend=f"open the file {loose[0]} in it" if loose else None,
        )


def weight_files(place: Path) -> tuple[Path, ...]:
    """The files of a component's weights (shards with their index): safetensors before pickles,
    the plain variant before others such as fp16."""
    for suffix in _SUFFIXES:
        for stem in _STEMS:
            whole = place / f"{stem}.{suffix}"
            if whole.is_file():
                return (whole,)
            indexes = [place / f"{stem}.{suffix}.index.json"]
            variants = [place / f"{stem}.fp16.{suffix}", *_variants(place, stem, suffix)]
            indexes += sorted(place.glob(f"{stem}.{suffix}.index.*.json"))
            for candidate in (indexes[0], *variants, *indexes[1:]):
                if candidate.is_file():
                    return _shards(candidate) if candidate.suffix == ".json" else (candidate,)
    raise PocketSDError("has no weights", where=f"{place.parent.name}/{place.name}")


def folder_headers(place: Path) -> WeightFile:
    """Names, shapes and dtypes of a component's weights, without reading them where possible."""
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(place):
        if file.suffix != ".json":
            tensors.update(read_headers(file).tensors)
    return WeightFile(tensors)


def _variants(place: Path, stem: str, suffix: str) -> list[Path]:
    shard = f"{stem}.*-of-*.{suffix}"
    return sorted(set(place.glob(f"{stem}.*.{suffix}")) - set(place.glob(shard)))


def _shards(index: Path) -> tuple[Path, ...]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise PocketSDError("is an index without a weight_map", where=index.name)
    names = sorted({str(name) for name in table.values()})
    shards = tuple(sibling(index.parent, name, named_by=index.name) for name in names)
    held = {name for shard in shards for name in read_headers(shard).tensors}
    absent = [name for name in table if name not in held]
    if absent:
        raise PocketSDError(f"lists {absent[0]}, which no shard holds", where=index.name)
    return (index, *shards)
