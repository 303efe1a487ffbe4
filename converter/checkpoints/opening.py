"""From whatever the user has to one checked checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from converter.checkpoints.checkpoint import (
    COMPONENTS,
    Checkpoint,
    Parts,
    Progress,
    dtype_name,
)
from converter.checkpoints.diffusers_folder import read_folder, read_vae_folder
from converter.checkpoints.files import sha256_of_files
from converter.checkpoints.lora import lora_file, merged, read_lora
from converter.checkpoints.single_file import read_single_file, read_vae_file
from converter.checkpoints.structure import fitted
from converter.checkpoints.textual_inversion import extended, read_embedding
from converter.checkpoints.tokenizer_files import find_tokenizer, refuse_larger
from converter.checkpoints.weights import refuse_unusable
from converter.models.config import TextEncoderConfig, UNetConfig, VaeConfig
from runtime_py.errors import PocketSDError
from runtime_py.files import sha256_of
from runtime_py.package import Ingredient

PathInput = str | PathLike[str]


def open_checkpoint(
    path: PathInput,
    *,
    vae: PathInput | None = None,
    tokenizer: PathInput | None = None,
    config: PathInput | None = None,
    ema: bool = False,
    loras: Sequence[tuple[PathInput, float]] = (),
    embeddings: Sequence[tuple[PathInput, str | None]] = (),
    progress: Progress | None = None,
) -> Checkpoint:
    """Open an SD 1.x checkpoint, merge what is asked for, and check every weight.

    `config` is a diffusers folder whose JSON files tell what a single file cannot (head counts,
    norm groups); a diffusers folder tells that itself. `loras` are (path, weight), `embeddings`
    (path, token or None). Weights keep the dtype they are stored in.
    """
    source = _existing(path)
    say = progress or _silent
    say(f"reading {source.name}")
    folder = _existing(config) if config is not None else None
    if source.is_dir():
        if ema:
            raise PocketSDError(
                "a diffusers folder holds one set of weights",
                where=source.name,
                mend="open it without ema",
            )
        parts = read_folder(source)
    else:
        parts = read_single_file(source, config=folder, ema=ema)
    if vae is not None:
        say("replacing the VAE")
        parts = _with_vae(parts, _existing(vae))
    say("checking weights")
    parts = _checked(parts, source.name)
    parts = _with_tokenizer(parts, source, _existing(tokenizer) if tokenizer else None, folder)
    if loras:
        say(f"merging {len(loras)} LoRA files")
        parts = _with_loras(parts, [(_existing(item), float(weight)) for item, weight in loras])
    if embeddings:
        say(f"adding {len(embeddings)} embeddings")
        parts = _with_embeddings(parts, [(_existing(item), token) for item, token in embeddings])
    return _finished(parts, source)


def _with_vae(parts: Parts, path: Path) -> Parts:
    if path.is_dir():
        config, tensors, files = read_vae_folder(path)
        hash_ = sha256_of_files(path, files)
    else:
        config, tensors = read_vae_file(path)
        hash_ = sha256_of(path)
    notes = parts.notes
    own = parts.configs.get("vae")
    if isinstance(own, VaeConfig) and own.scaling_factor != config.scaling_factor:
        if path.is_dir():
            notes += (f"the VAE scales latents by {config.scaling_factor}, not as the checkpoint",)
        else:
            # A file of weights says nothing of it, and the UNet has learned the checkpoint's.
            config = dataclasses.replace(config, scaling_factor=own.scaling_factor)
    return dataclasses.replace(
        parts,
        configs=parts.configs | {"vae": config},
        weights=parts.weights | {"vae": tensors},
        ingredients=(*parts.ingredients, Ingredient("vae", path.name, hash_)),
        notes=notes,
    )


def _checked(parts: Parts, where: str) -> Parts:
    """Complete, of one piece, and finite."""
    absent = [component for component in COMPONENTS if component not in parts.weights]
    if absent:
        raise PocketSDError(
            f"holds no {' and no '.join(absent)}",
            where=where,
            mend="--vae FILE gives one" if absent == ["vae"] else None,
        )
    weights = {}
    for component in COMPONENTS:
        weights[component] = fitted(component, parts.configs[component], parts.weights[component])
        refuse_unusable(weights[component], component)
    text, unet, vae = _configs(parts)
    if unet.context != text.width:
        raise PocketSDError(
            f"the UNet reads text {unet.context} wide, the text encoder writes {text.width}",
            where=where,
        )
    if not unet.in_channels == unet.out_channels == vae.latent_channels:
        raise PocketSDError(
            f"the UNet maps {unet.in_channels} latent channels to {unet.out_channels}, "
            f"the VAE has {vae.latent_channels}",
            where=where,
        )
    return dataclasses.replace(parts, weights=weights)


def _with_tokenizer(
    parts: Parts, source: Path, explicit: Path | None, config: Path | None
) -> Parts:
    vocabulary = _configs(parts)[0].vocabulary
    if explicit is None and parts.tokenizer is not None:
        refuse_larger(parts.tokenizer, vocabulary)
        return parts
    beside = (source.parent / "tokenizer",) if source.is_file() else ()
    places = (*beside, config / "tokenizer") if config else beside
    found = find_tokenizer(explicit, places, vocabulary)
    if found is None:
        return dataclasses.replace(parts, notes=(*parts.notes, "no tokenizer found"))
    tokenizer, place, files = found
    # A cached snapshot is called by a hash, the model it is of by the folder two up.
    name = place.parents[1].name if place.parent.name == "snapshots" else place.name
    ingredient = Ingredient("tokenizer", name, sha256_of_files(place, files))
    return dataclasses.replace(
        parts, tokenizer=tokenizer, ingredients=(*parts.ingredients, ingredient)
    )


def _with_loras(parts: Parts, files: Sequence[tuple[Path, float]]) -> Parts:
    loras = [(read_lora(path), weight) for path, weight in files]
    ingredients = (
        Ingredient("lora", path.name, sha256_of(lora_file(path)), weight) for path, weight in files
    )
    return dataclasses.replace(
        parts,
        weights=merged(parts.weights, parts.configs, loras),
        ingredients=(*parts.ingredients, *ingredients),
    )


def _with_embeddings(parts: Parts, files: Sequence[tuple[Path, str | None]]) -> Parts:
    learned = [read_embedding(path, token) for path, token in files]
    text = _configs(parts)[0]
    config, tensors, tokenizer = extended(
        text, parts.weights["text_encoder"], parts.tokenizer, learned
    )
    ingredients = (Ingredient("embedding", path.name, sha256_of(path)) for path, _ in files)
    return dataclasses.replace(
        parts,
        configs=parts.configs | {"text_encoder": config},
        weights=parts.weights | {"text_encoder": tensors},
        tokenizer=tokenizer,
        ingredients=(*parts.ingredients, *ingredients),
    )


def _finished(parts: Parts, source: Path) -> Checkpoint:
    text, unet, vae = _configs(parts)
    return Checkpoint(
        name=source.resolve().name if source.is_dir() else source.stem,
        kind=parts.kind,
        text_encoder=text,
        unet=unet,
        vae=vae,
        weights=parts.weights,
        scheduler=parts.scheduler,
        tokenizer=parts.tokenizer,
        dtypes={name: dtype_name(tensors) for name, tensors in parts.weights.items()},
        ingredients=parts.ingredients,
        notes=parts.notes,
    )


def _configs(parts: Parts) -> tuple[TextEncoderConfig, UNetConfig, VaeConfig]:
    text, unet, vae = (parts.configs[component] for component in COMPONENTS)
    assert isinstance(text, TextEncoderConfig)
    assert isinstance(unet, UNetConfig) and isinstance(vae, VaeConfig)
    return text, unet, vae


def _existing(path: PathInput) -> Path:
    found = Path(path)
    if not found.exists():
        raise PocketSDError("there is no such file or folder", where=found)
    # "." and the like have no name of their own to report.
    return found if found.name else found.resolve()


def _silent(_: str) -> None:
    pass
