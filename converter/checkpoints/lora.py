"""LoRA files in every common naming, merged into the weights they were trained for.

A key is recognised by looking its module up under one flat spelling (dots as underscores), in which
the tools' namings differ only by prefixes. So there is one table per checkpoint and no guessing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from converter.checkpoints.checkpoint import Tensors
from converter.checkpoints.detect import kind_of
from converter.checkpoints.files import read_json
from converter.checkpoints.keymaps import original_module
from converter.checkpoints.weights import read_headers, read_weights, refuse_unusable
from converter.models.config import ComponentConfig
from runtime_py.errors import PocketSDError

Target = tuple[str, str]
"""Component and canonical module name."""

_FOLDER_FILES = (
    *("adapter_model.safetensors", "pytorch_lora_weights.safetensors"),
    *("adapter_model.bin", "pytorch_lora_weights.bin"),
)
_FACTOR = re.compile(
    r"(?P<base>.+?)[._]lora(?:_linear_layer)?[._](?P<role>down|up|mid|A|B)(?:\.[\w-]+)?\.weight"
)
_ROLES = {"A": "down", "B": "up"}
_PREFIXES = (
    *("base_model_model_", "lora_unet_", "lora_te1_", "lora_te_", "unet_", "text_encoder_"),
    *("model_diffusion_model_", "diffusion_model_", "cond_stage_model_transformer_", "text_model_"),
)
# Names that attention processors used for layers the models call something else.
_TEXT_ALIASES = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}


@dataclass(frozen=True)
class Factors:
    """One module's low-rank change: scale * up @ (mid) @ down."""

    down: torch.Tensor
    up: torch.Tensor
    mid: torch.Tensor | None
    alpha: float | None

    @property
    def rank(self) -> int:
        return self.down.shape[0]


@dataclass(frozen=True)
class Lora:
    """A LoRA file by module, modules as the file spells them (flat, without prefix)."""

    name: str
    style: str
    modules: Mapping[str, Factors]
    settings: Mapping[str, Any]


def lora_file(path: Path) -> Path:
    """The weights of a LoRA given as a file or as the folder that peft or diffusers writes."""
    if not path.is_dir():
        return path
    found = next((path / name for name in _FOLDER_FILES if (path / name).is_file()), None)
    if found is None:
        raise PocketSDError("is a folder without adapter weights", where=path.name)
    return found


def read_lora(path: Path, *, headers_only: bool = False) -> Lora:
    """Parse a LoRA; with `headers_only` the factors of a safetensors file have no data."""
    source = lora_file(path)
    file = read_headers(source) if headers_only else read_weights(source)
    kind = kind_of(file.tensors)
    if kind.name != "lora":
        raise PocketSDError(f"is {kind.what}, which cannot be merged as a LoRA", where=path.name)
    if not headers_only:
        factors = {k: t for k, t in file.tensors.items() if not k.endswith(".alpha")}
        refuse_unusable(factors, path.name)
    pieces: dict[str, dict[str, torch.Tensor]] = {}
    strange = []
    for key, tensor in file.tensors.items():
        factor = _FACTOR.fullmatch(key)
        if factor:
            base, role = factor["base"], _ROLES.get(factor["role"], factor["role"])
        elif key.endswith(".alpha"):
            base, role = key.removesuffix(".alpha").removesuffix("_lora"), "alpha"
        else:
            strange.append(key)
            continue
        found = pieces.setdefault(_flat(base), {})
        if role in found:
            raise PocketSDError(f"holds {base} twice in different namings", where=path.name)
        found[role] = tensor
    strange += [base for base, found in pieces.items() if not {"up", "down"} <= found.keys()]
    _refuse(strange, "keys are no LoRA factors", path.name)
    modules = {base: _factors(found, base, path.name) for base, found in pieces.items()}
    return Lora(path.name, _style(file.tensors), modules, _settings(source, file.metadata))


def merged(
    weights: Mapping[str, Tensors],
    configs: Mapping[str, ComponentConfig],
    loras: Sequence[tuple[Lora, float]],
) -> dict[str, dict[str, torch.Tensor]]:
    """The weights with all LoRAs added, each weight computed in float32 and rounded once."""
    table = module_table(weights, configs)
    changes: dict[Target, list[tuple[Lora, Factors, float]]] = {}
    for lora, weight in loras:
        _refuse([base for base in lora.modules if base not in table], _UNMATCHED, lora.name)
        if len({table[base] for base in lora.modules}) < len(lora.modules):
            raise PocketSDError("holds modules twice in different namings", where=lora.name)
        for base, factors in lora.modules.items():
            scale = weight * _scale(lora, table[base], factors)
            changes.setdefault(table[base], []).append((lora, factors, scale))
    result = {component: dict(tensors) for component, tensors in weights.items()}
    for (component, module), parts in changes.items():
        name = f"{module}.weight"
        stored = result[component][name]
        total = stored.to(torch.float32, copy=True)
        for lora, factors, scale in parts:
            total += scale * _change(lora, factors, f"{component} {name}", stored.shape)
        result[component][name] = total.to(stored.dtype)
        refuse_unusable({name: result[component][name]}, f"{component} with {parts[-1][0].name}")
    return result


def module_table(
    weights: Mapping[str, Tensors], configs: Mapping[str, ComponentConfig]
) -> dict[str, Target]:
    """Every flat spelling of every module that a LoRA can change."""
    table: dict[str, Target] = {}
    for component in ("text_encoder", "unet"):
        for name, tensor in weights[component].items():
            module, _, leaf = name.rpartition(".")
            if leaf == "weight" and tensor.ndim >= 2:
                for spelling in _spellings(module, configs[component]):
                    table[_flat(spelling)] = (component, module)
    return table


def targets(lora: Lora) -> dict[str, int]:
    """How many modules of each component a LoRA changes, judging by their names alone."""
    counts: dict[str, int] = {}
    for base in lora.modules:
        text = base.startswith(("encoder_layers_", "embeddings_"))
        part = "text_encoder" if text else "unet"
        counts[part] = counts.get(part, 0) + 1
    return counts


_UNMATCHED = "modules are not in this checkpoint"


def _spellings(module: str, config: ComponentConfig) -> Iterable[str]:
    for spelling in (module, original_module(module, config)):
        yield spelling
        if spelling.endswith(".to_out.0"):
            yield spelling.removesuffix(".0")
    head, _, last = module.rpartition(".")
    if last in _TEXT_ALIASES:
        yield f"{head}.{_TEXT_ALIASES[last]}"


def _flat(base: str) -> str:
    flat = base.replace(".processor", "").replace(".", "_")
    prefix = next((prefix for prefix in _PREFIXES if flat.startswith(prefix)), None)
    return _flat(flat.removeprefix(prefix)) if prefix else flat


def _factors(found: Mapping[str, torch.Tensor], base: str, where: str) -> Factors:
    """One module's tensors as factors, their rank and scale being numbers that make sense."""
    down, alpha = found["down"], found.get("alpha")
    if down.ndim < 2 or not down.shape[0]:
        raise PocketSDError(f"{base} has a factor of shape {tuple(down.shape)}", where=where)
    scale = None
    if alpha is not None and not alpha.is_meta:
        scale = float(alpha.item()) if alpha.numel() == 1 else math.nan
        if not math.isfinite(scale):
            raise PocketSDError(f"{base} has an alpha that is no number", where=where)
    return Factors(down, found["up"], found.get("mid"), scale)


def _change(lora: Lora, factors: Factors, name: str, shape: torch.Size) -> torch.Tensor:
    up, down = factors.up.float(), factors.down.float()
    try:
        if factors.mid is not None:
            # Tucker form: 1x1 down and up around a small convolution that has the kernel.
            change = torch.einsum(
                "oa,abkl,bi->oikl", up.flatten(1), factors.mid.float(), down.flatten(1)
            )
        else:
            change = up.flatten(1) @ down.flatten(1)
        if change.numel() != shape.numel() or change.shape[0] != shape[0]:
            raise RuntimeError
        return change.reshape(shape)
    except (RuntimeError, ValueError):  # the latter where opt_einsum is installed
        raise PocketSDError(
            f"does not fit {name}: factors {tuple(up.shape)} and {tuple(down.shape)}, "
            f"weight {tuple(shape)}",
            where=lora.name,
            mend="it was trained for another model",
        ) from None


def _scale(lora: Lora, target: Target, factors: Factors) -> float:
    """alpha / rank; without any alpha the factors are used as they are."""
    if factors.alpha is not None:
        return factors.alpha / factors.rank
    component, module = target
    own = lora.settings.get(component, lora.settings)
    alpha = own.get("lora_alpha")
    for pattern, value in (own.get("alpha_pattern") or {}).items():
        if f".{module}".endswith(f".{pattern.removeprefix('text_model.')}"):
            alpha = value
    if alpha is None:
        return 1.0
    if not isinstance(alpha, int | float) or not abs(alpha) < 1e30:
        raise PocketSDError(f"its setting lora_alpha is {alpha!r}, not a number", where=lora.name)
    return alpha / (factors.rank**0.5 if own.get("use_rslora") else factors.rank)


def _settings(source: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """peft's settings from its config file, or as diffusers packs them: `component.key` in JSON."""
    beside = source.parent / "adapter_config.json"
    if source.name.startswith("adapter_model") and beside.is_file():
        return _well_formed(read_json(beside), beside.name)
    try:
        packed = json.loads(metadata.get("lora_adapter_metadata", "{}"))
    except (TypeError, ValueError):
        packed = {}
    settings: dict[str, Any] = {}
    for key, value in packed.items() if isinstance(packed, dict) else ():
        component, dot, name = key.partition(".")
        if dot and component in ("unet", "text_encoder"):
            settings.setdefault(component, {})[name] = value
        else:
            settings[key] = value
    for own in (settings, settings.get("unet", {}), settings.get("text_encoder", {})):
        _well_formed(own, source.name)
    return settings


def _well_formed(settings: dict[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(settings.get("alpha_pattern") or {}, dict):
        raise PocketSDError("its setting alpha_pattern is no table", where=where)
    return settings


def _style(names: Iterable[str]) -> str:
    lines = "\n".join(names)
    styles = (
        (r"^lora_(unet_(input|middle|output)_block|.*_transformer_resblocks)", "kohya, original"),
        (r"^lora_(unet|te)", "kohya"),
        (r"^base_model\.model\.", "peft"),
        (r"\.lora_[AB]\.", "diffusers with peft"),
        (r"", "diffusers"),
    )
    return next(style for pattern, style in styles if re.search(pattern, lines, re.MULTILINE))


def _refuse(names: list[str], what: str, where: str) -> None:
    if names:
        some = ", ".join(names[:3])
        raise PocketSDError(f"{len(names)} {what}: {some}{', ...' * (len(names) > 3)}", where=where)
