"""Recipes of weights as files: which layer of which component is stored in which form.

Layers go by their module's path in the checkpoint, without `.weight`. Not to be confused with
`converter.quantize.recipes`, the fixed recipes of LiteRT's quantiser.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from converter.quantize.forms import FP16, WeightForm, parse_form
from runtime_py.errors import PocketSDError
from runtime_py.files import atomic_file

FORMAT, VERSION = "pocketsd-recipe", 1


@dataclass(frozen=True)
class ComponentRecipe:
    default: WeightForm = FP16
    layers: Mapping[str, WeightForm] = field(default_factory=dict)  # where they differ

    def form_of(self, layer: str) -> WeightForm:
        return self.layers.get(layer, self.default)


@dataclass(frozen=True)
class WeightRecipe:
    components: Mapping[str, ComponentRecipe]  # those not named stay in fp16
    measured: Mapping[str, Any] = field(default_factory=dict)  # by component, for people

    def form_of(self, component: str, layer: str) -> WeightForm:
        return self.components.get(component, ComponentRecipe()).form_of(layer)


class _Component(msgspec.Struct, forbid_unknown_fields=True):
    default: str = "fp16"
    layers: dict[str, str] = {}


class _File(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: str = msgspec.field(default="")
    version: int = 0
    components: dict[str, _Component] = {}
    measured: dict[str, Any] = {}


def read(path: Path) -> WeightRecipe:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise PocketSDError(f"cannot be read: {error.strerror}", where=path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PocketSDError(
            f"not a recipe, {error}", where=path, mend="`pocketsd recipe` makes one"
        ) from None
    if file.format != FORMAT:
        raise PocketSDError("not a recipe", where=path, mend="`pocketsd recipe` makes one")
    if file.version != VERSION:
        raise PocketSDError(
            f"recipe version {file.version}, this pocketsd reads {VERSION}", where=path
        )
    try:
        components = {
            name: ComponentRecipe(
                parse_form(found.default),
                {layer: parse_form(form) for layer, form in found.layers.items()},
            )
            for name, found in file.components.items()
        }
    except PocketSDError as error:
        raise PocketSDError(error.what, where=path, mend=error.mend) from None
    return WeightRecipe(components, file.measured)


def write(recipe: WeightRecipe, path: Path) -> None:
    components = {
        name: _Component(
            str(component.default), {layer: str(form) for layer, form in component.layers.items()}
        )
        for name, component in recipe.components.items()
    }
    file = _File(FORMAT, VERSION, components, dict(recipe.measured))
    with atomic_file(path) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")


def check(recipe: WeightRecipe, layers: Mapping[str, Collection[str]]) -> None:
    """Refuse a recipe that names what the model, given as layers by component, does not have."""
    for name, component in recipe.components.items():
        if name not in layers:
            raise PocketSDError(f"the recipe has a component {name!r}", mend=_near(name, layers))
        for layer in component.layers:
            if layer not in layers[name]:
                raise PocketSDError(
                    f"the recipe has a layer {layer!r} in {name}, the model has not",
                    mend=_near(layer, layers[name]),
                )


def _near(name: str, names: Collection[str]) -> str:
    near = get_close_matches(name, names, n=1, cutoff=0.4)
    return f"is it {near[0]}?" if near else f"it has {len(names)} others"
