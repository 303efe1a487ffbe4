"""Targets: a component in, files for one kind of runtime out.

A target is one module with a `TARGET`, announced as an entry point in the group
`pocketsd.targets`; nothing else has to know it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from converter.components import ComponentSpec, Geometry
from converter.models import ComponentConfig
from converter.quantize.recipe_file import WeightRecipe
from runtime_py.engines import Array
from runtime_py.errors import PocketSDError
from runtime_py.package import Component
from runtime_py.pipeline import in_slices
from runtime_py.recording import Recording


@dataclass(frozen=True)
class Setting:
    """Something only this target can be asked for; by component, if need be."""

    name: str
    default: str
    help: str
    choices: tuple[str, ...] = ()  # none: any text, checked by the target


@dataclass(frozen=True)
class Wanted:
    """What a component is to become, as far as it is known before a checkpoint is read."""

    component: str
    precision: str
    settings: Mapping[str, str]
    recipe: WeightRecipe | None = None
    sizes: int = 1


@dataclass(frozen=True)
class Job:
    """One component to be written. `module` is called when the weights are wanted, not before."""

    spec: ComponentSpec
    config: ComponentConfig
    geometry: Geometry
    precision: str
    folder: Path
    module: Callable[[], nn.Module]
    recording: Recording | None = None  # real inputs, for what has to be calibrated
    settings: Mapping[str, str] = field(default_factory=dict)  # every one the target has
    recipe: WeightRecipe | None = None  # a form for each layer
    others: tuple[Geometry, ...] = ()  # further sizes, to share the weights
    progress: Callable[[float], None] = lambda done: None  # told how much is done, 0 to 1

    def samples(self) -> list[dict[str, Array]]:
        """The recorded inputs, in the batches the component is built for."""
        assert self.recording is not None
        size = self.spec.inputs(self.geometry)[0].shape[0]
        assert size is not None
        recorded = self.recording.of(self.spec.name)
        return [part for sample in recorded for part in in_slices(sample.inputs, size)]

    def described(self, files: tuple[str, ...], config: Mapping[str, Any]) -> Component:
        geometry = self.geometry
        if self.others:
            geometry = replace(geometry, height=None, width=None)
        inputs, outputs = self.spec.inputs(geometry), self.spec.outputs(geometry)
        return Component(self.spec.name, files, inputs, outputs, config)


class Target(Protocol):
    name: str
    precisions: tuple[str, ...]  # the first is the default
    fixed_shapes: bool  # whether sizes and batches are built in
    calibrated: frozenset[str]  # the precisions that are made from a recording
    needs: tuple[str, ...] = ()  # modules of the extra `convert-NAME`
    settings: tuple[Setting, ...] = ()
    several_sizes: bool = False  # whether sizes can share one set of weights

    def check(self, wanted: Wanted) -> None:
        """Refuse what does not go together."""
        return

    def write(self, job: Job) -> Component:
        """Write the component's files into the job's folder and describe them."""


def settings_of(target: Target, given: Mapping[str, str], component: str) -> dict[str, str]:
    """What a component is written with: `unet.attention` wins over `attention`."""
    known = {s.name: s for s in target.settings}
    for key, value in given.items():
        name = key.rpartition(".")[2]
        if name not in known:
            have = ", ".join(known) or "none"
            raise PocketSDError(f"target {target.name} has no setting {name!r} (it has {have})")
        if known[name].choices and value not in known[name].choices:
            have = ", ".join(c for c in known[name].choices if c)
            raise PocketSDError(f"{key} is {value!r}, must be one of {have}")
    return {
        name: given.get(f"{component}.{name}", given.get(name, setting.default))
        for name, setting in known.items()
    }


def target_names() -> list[str]:
    return sorted(point.name for point in entry_points(group="pocketsd.targets"))


def get_target(name: str) -> Target:
    for point in entry_points(group="pocketsd.targets", name=name):
        target: Target = point.load()
        return target
    raise PocketSDError(f"no target {name!r} (there are {', '.join(target_names())})")
