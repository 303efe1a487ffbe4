"""What a file or folder is, told from names and shapes without reading the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from converter.checkpoints.checkpoint import COMPONENTS, Tensors, dtype_name
from converter.checkpoints.detect import (
    Kind,
    detect,
    detect_unet,
    is_harmless,
    kind_of,
    refuse_other_families,
)
from converter.checkpoints.diffusers_folder import folder_headers, refuse_other_folders
from converter.checkpoints.keymaps import (
    ORIGINAL_PREFIX,
    canonical_text_encoder_name,
    canonical_vae_name,
)
from converter.checkpoints.lora import lora_file, read_lora, targets
from converter.checkpoints.single_file import split_components
from converter.checkpoints.structure import read_config
from converter.checkpoints.textual_inversion import read_embedding
from converter.checkpoints.weights import read_headers
from converter.models.config import ComponentConfig, TextEncoderConfig, UNetConfig, VaeConfig
from runtime_py.errors import PocketSDError


@dataclass(frozen=True)
class Part:
    """One component of a model: its size and how it is built."""

    component: str
    parameters: int
    dtype: str
    architecture: str


@dataclass(frozen=True)
class Report:
    """`kind` is checkpoint, lora, embedding, vae, unet, text encoder, unsupported or unknown."""

    name: str
    kind: str
    summary: str
    parts: tuple[Part, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report as text, one fact per line."""
        return [
            f"{self.name}: {self.summary}",
            *(
                f"  {part.component}: {part.architecture}, {part.parameters:,} parameters, "
                f"{part.dtype}"
                for part in self.parts
            ),
            *(f"  {name}: {value}" for name, value in self.details.items()),
            *(f"  note: {note}" for note in self.notes),
        ]


def inspect_file(path: str | PathLike[str]) -> Report:
    """Say what a file or folder is; raises only where it cannot be read at all."""
    source = Path(path)
    if not source.exists():
        raise PocketSDError("there is no such file or folder", where=source)
    if source.is_dir():
        return _folder(source)
    tensors = read_headers(source).tensors
    kind = kind_of(tensors)
    try:
        if kind.name == "checkpoint":
            return _single_file(source, tensors)
        if kind.name == "lora":
            return _lora(source)
        if kind.name == "embedding":
            return _embedding(source)
        if kind.name in ("vae", "unet", "text encoder"):
            component = kind.name.replace(" ", "_")
            part = _part(component, _without_prefix(component, tensors))
            return Report(source.name, kind.name, kind.what, (part,))
    except PocketSDError as error:
        kind = Kind("unsupported", error.what)
    return Report(source.name, kind.name, kind.what, details={"tensors": len(tensors)})


def architecture(config: ComponentConfig) -> str:
    """A component's architecture in a few words, named where it has a name."""
    if isinstance(config, TextEncoderConfig):
        name = "CLIP ViT-L/14 text" if config.width == 768 and config.layers == 12 else "CLIP text"
        return f"{name}, {config.layers} layers of {config.width}, {config.vocabulary} tokens"
    widths = "-".join(map(str, config.widths))
    if isinstance(config, VaeConfig):
        name = "SD 1.x" if config.widths == VaeConfig().widths else "SD 1.x layout"
        return f"{name}, widths {widths}, {config.latent_channels} latent channels"
    original = UNetConfig()
    if config.widths == original.widths and config.depth == 2 and config.mid:
        name = "SD 1.x"
    elif config.depth == 1 or not config.mid:
        name = "BK-SDM style"
    else:
        name = "SD 1.x layout, pruned or of other widths"
    blocks = f"{config.depth} block{'s' * (config.depth > 1)} per level"
    return f"{name}, widths {widths}, {blocks}, {'with' if config.mid else 'no'} middle block"


def _folder(folder: Path) -> Report:
    try:
        lora_file(folder)
    except PocketSDError:
        pass
    else:
        return _lora(folder)
    try:
        refuse_other_folders(folder)
    except PocketSDError as error:
        if (folder / "config.json").is_file():
            return _component_folder(folder)
        return Report(folder.name, "unknown", error.what)
    parts = []
    try:
        for component in COMPONENTS:
            place = folder / component
            if (place / "config.json").is_file():
                config = read_config(component, place / "config.json")
                if isinstance(config, UNetConfig):
                    refuse_other_families(config, folder.name)
                parts.append(_part(component, folder_headers(place).tensors, config))
    except PocketSDError as error:
        return Report(folder.name, "unsupported", error.what)
    missing = sorted(set(COMPONENTS) - {part.component for part in parts})
    notes = (f"without {', '.join(missing)}",) if missing else ()
    return Report(
        folder.name, "checkpoint", "SD 1.x as a diffusers folder", tuple(parts), notes=notes
    )


def _component_folder(folder: Path) -> Report:
    tensors = folder_headers(folder).tensors
    kind = kind_of(tensors)
    component = kind.name.replace(" ", "_")
    if component not in COMPONENTS:
        return Report(folder.name, kind.name, kind.what)
    part = _part(component, tensors, read_config(component, folder / "config.json"))
    return Report(folder.name, kind.name, f"{kind.what} as a diffusers folder", (part,))


def _single_file(path: Path, tensors: Tensors) -> Report:
    components, notes = split_components(tensors, path.name, ema=False)
    parts = tuple(_part(component, own) for component, own in components.items())
    unet = detect_unet(components["unet"])
    refuse_other_families(unet, path.name)
    missing = [component for component in COMPONENTS if component not in components]
    if missing:
        notes += (f"without {', '.join(missing)}",)
    return Report(path.name, "checkpoint", "SD 1.x as a single file", parts, notes=notes)


def _lora(path: Path) -> Report:
    lora = read_lora(path, headers_only=True)
    ranks = sorted({factors.rank for factors in lora.modules.values()})
    return Report(
        path.name,
        "lora",
        f"a LoRA ({lora.style} naming) of {len(lora.modules)} modules",
        details={
            "ranks": ", ".join(map(str, ranks)),
            "targets": ", ".join(f"{n} in {part}" for part, n in sorted(targets(lora).items())),
            "convolutions": sum(f.down.ndim == 4 for f in lora.modules.values()),
        },
    )


def _embedding(path: Path) -> Report:
    embedding = read_embedding(path, headers_only=True)
    count, width = embedding.vectors.shape
    return Report(
        path.name,
        "embedding",
        f"a textual-inversion embedding of {count} vector{'s' * (count > 1)}, {width} wide",
        details={"tokens": ", ".join(embedding.tokens)},
    )


def _part(component: str, tensors: Tensors, config: ComponentConfig | None = None) -> Part:
    own = {name: tensor for name, tensor in tensors.items() if not is_harmless(name)}
    if config is None:
        config = detect(component, own)
    count = sum(tensor.numel() for tensor in own.values())
    return Part(component, count, dtype_name(own), architecture(config))


def _without_prefix(component: str, tensors: Tensors) -> Tensors:
    rename = {"text_encoder": canonical_text_encoder_name, "vae": canonical_vae_name}.get(component)
    plain = {name.removeprefix(ORIGINAL_PREFIX[component]): t for name, t in tensors.items()}
    return {rename(name): t for name, t in plain.items()} if rename else plain
