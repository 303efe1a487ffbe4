"""The plan of a component: every kernel to run, in order, with every byte it touches.

Plain data, decided when the component was converted. Whoever runs it (Python here, JavaScript in a
phone's browser) compiles the shaders, uploads the weights, and submits the dispatches as they
stand. See docs beside the target, converter/targets/webgpu/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from runtime_py.errors import PocketSDError

FORMAT, VERSION = "pocketsd-webgpu-plan", 1
ARENA = "arena"
#: A weight too, but bound as a uniform, last: the sizes and strides of a dispatch.
NUMBERS = "numbers"
#: WebGPU's own: a binding begins at a multiple of this.
ALIGNMENT = 256


@dataclass(frozen=True)
class Binding:
    """A range of a buffer: the arena's, an input's or output's, or a weight's."""

    buffer: str
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True)
class Dispatch:
    """One kernel. Its bindings are numbered as they stand, in group 0; `flops` and `bytes` are
    what the kernel has to compute and to move at least, for the profile."""

    label: str
    shader: str
    groups: tuple[int, int, int]
    bindings: tuple[Binding, ...]
    flops: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Port:
    """An input or output, in the order of the manifest's layout, 4 bytes an element."""

    buffer: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        count = 4
        for n in self.shape:
            count *= n
        return count


@dataclass(frozen=True)
class Plan:
    component: str
    arithmetic: str  # f16 or f32: how activations are stored
    features: tuple[str, ...]  # of WebGPU, that the shaders use
    arena: int  # bytes
    live: int  # bytes that live at once at the busiest moment: the arena cannot be smaller
    shaders: Mapping[str, str]
    dispatches: tuple[Dispatch, ...]
    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    weights: Mapping[str, int] = field(default_factory=dict)  # name -> bytes
    #: Faster shaders for adapters with subgroups of at least eight: same name, same bindings.
    subgroup_shaders: Mapping[str, str] = field(default_factory=dict)
    format: str = FORMAT
    version: int = VERSION

    @property
    def sizes(self) -> dict[str, int]:
        """Every buffer the plan needs, by name, in bytes."""
        ports = {
            port.buffer: port.bytes for port in (*self.inputs.values(), *self.outputs.values())
        }
        return {ARENA: self.arena, **ports, **self.weights}

    @property
    def largest_binding(self) -> int:
        return max(b.size for d in self.dispatches for b in d.bindings)


def write_plan(plan: Plan, path: Path) -> None:
    path.write_bytes(msgspec.json.encode(plan))


def read_plan(path: Path) -> Plan:
    """Read and check a plan: nothing in it may reach outside of its buffers."""
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PocketSDError(f"damaged plan, {error}", where=path) from None
    if plan.format != FORMAT or plan.version > VERSION:
        raise PocketSDError(
            f"{plan.format} {plan.version} is not a plan this PocketSD reads ({FORMAT} {VERSION})",
            where=path,
        )
    try:
        check_plan(plan)
    except PocketSDError as error:
        raise PocketSDError(f"damaged plan, {error.what}", where=path) from None
    return plan


def check_plan(plan: Plan) -> None:
    sizes = plan.sizes
    if min(sizes.values()) < 0:
        raise PocketSDError("a buffer has a negative size")
    if strangers := set(plan.subgroup_shaders) - set(plan.shaders):
        raise PocketSDError(f"there is no shader {min(strangers)!r} to be faster than")
    for index, dispatch in enumerate(plan.dispatches):
        name = f"dispatch {index} ({dispatch.label})"
        if dispatch.shader not in plan.shaders:
            raise PocketSDError(f"{name} wants a shader that is not there, {dispatch.shader!r}")
        if not all(0 < n <= 65535 for n in dispatch.groups):
            raise PocketSDError(f"{name} has {dispatch.groups} workgroups, 1 to 65535 are allowed")
        for binding in dispatch.bindings:
            _check_binding(binding, sizes, name)
        _check_overlaps(dispatch, name)


def _check_binding(binding: Binding, sizes: Mapping[str, int], name: str) -> None:
    if binding.buffer not in sizes:
        raise PocketSDError(f"{name} binds an unknown buffer {binding.buffer!r}")
    if binding.offset < 0 or binding.offset % ALIGNMENT or binding.size <= 0 or binding.size % 4:
        raise PocketSDError(
            f"{name} binds {binding.size} bytes at {binding.offset} of {binding.buffer}; offsets"
            f" are multiples of {ALIGNMENT}, sizes of 4"
        )
    if binding.end > sizes[binding.buffer]:
        raise PocketSDError(
            f"{name} reaches byte {binding.end} of {binding.buffer}, which has"
            f" {sizes[binding.buffer]}"
        )


def _check_overlaps(dispatch: Dispatch, name: str) -> None:
    """All of the arena is bound for writing, and WebGPU lets no two such ranges overlap."""
    ranges = sorted((b.offset, b.end) for b in dispatch.bindings if b.buffer == ARENA)
    for (_, end), (begin, _) in zip(ranges, ranges[1:], strict=False):
        if begin < end:
            raise PocketSDError(f"{name} binds overlapping ranges of the arena, at {begin}")
