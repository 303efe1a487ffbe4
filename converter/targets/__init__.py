"""Targets: a component in, files for one kind of runtime out.

A target is one module with a `TARGET`, announced as an entry point in the group
`pocketsd.targets`; nothing else has to know it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from converter.components import ComponentSpec, Geometry
from converter.models import ComponentConfig
from runtime_py.errors import PocketSDError
from runtime_py.package import Component
from runtime_py.recording import Recording


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

    def described(self, files: tuple[str, ...], config: Mapping[str, Any]) -> Component:
        inputs, outputs = self.spec.inputs(self.geometry), self.spec.outputs(self.geometry)
        return Component(self.spec.name, files, inputs, outputs, config)


class Target(Protocol):
    name: str
    precisions: tuple[str, ...]  # the first is the default
    fixed_shapes: bool  # whether sizes and batches are built in
    calibrated: frozenset[str]  # the precisions that are made from a recording

    def write(self, job: Job) -> Component:
        """Write the component's files into the job's folder and describe them."""


def target_names() -> list[str]:
    return sorted(point.name for point in entry_points(group="pocketsd.targets"))


def get_target(name: str) -> Target:
    for point in entry_points(group="pocketsd.targets", name=name):
        target: Target = point.load()
        return target
    raise PocketSDError(f"no target {name!r} (there are {', '.join(target_names())})")
