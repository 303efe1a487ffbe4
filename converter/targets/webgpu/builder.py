"""What the lowerings write to: tensors, weights and kernels, collected into a plan.

Tensors are channels last, padded to whole vec4s of channels (the padding is zero), so that tokens
and pictures are the same bytes and nothing has to be rearranged between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from converter.targets.webgpu.arena import Life, arrange
from converter.targets.webgpu.shaders import render
from converter.targets.webgpu.tuning import Tuning, ceil_div
from runtime_py.webgpu.plan import ALIGNMENT, ARENA, NUMBERS, Binding, Dispatch, Plan, Port


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor in the arena. Its shape is channels last: [b, h, w, c], [b, n, c] or [b, c]."""

    storage: int
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        return self.shape[-1]

    @property
    def vec4s(self) -> int:
        return -(-self.shape[-1] // 4)

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    def viewed(self, *shape: int) -> Value:
        """The same bytes under another shape."""
        assert math.prod(shape[:-1]) == self.rows and shape[-1] == self.channels
        return Value(self.storage, shape)


@dataclass(frozen=True, eq=False)
class Joined:
    """Two pictures side by side in their channels, not yet copied together."""

    first: Value
    second: Value

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.first.shape[:-1], self.first.channels + self.second.channels)


@dataclass(frozen=True)
class Weight:
    name: str
    size: int


@dataclass(frozen=True)
class _Emitted:
    label: str
    shader: str
    numbers: bytes
    groups: tuple[int, int, int]
    operands: tuple[Value | Weight | Port, ...]
    flops: int


class Builder:
    """One component's kernels in the order in which they were asked for."""

    def __init__(self, component: str, arithmetic: str, tuning: Tuning, int8: bool = False) -> None:
        self.component, self.arithmetic = component, arithmetic
        self.tuning, self.int8 = tuning, int8
        self.label = ""  # of the layer that is being lowered
        self.arrays: dict[str, NDArray[Any]] = {}
        self._sizes: list[int] = []  # of storages
        self._shaders: dict[str, str] = {}
        self._subgroup_shaders: dict[str, str] = {}
        self._numbers: dict[bytes, int] = {}  # offsets of the uniforms
        self._emitted: list[_Emitted] = []

    # --- tensors ---

    @property
    def item(self) -> int:
        """Bytes of a stored number."""
        return 2 if self.arithmetic == "f16" else 4

    def new(self, *shape: int) -> Value:
        rows, vec4s = math.prod(shape[:-1]), -(-shape[-1] // 4)
        return Value(self._reserve(rows * vec4s * 4 * self.item), shape)

    def new_bytes(self, size: int) -> Value:
        """Space that is no tensor of channels."""
        return Value(self._reserve(size), (1, 1))

    def _reserve(self, size: int) -> int:
        self._sizes.append(-(-size // ALIGNMENT) * ALIGNMENT)
        return len(self._sizes) - 1

    # --- weights ---

    def weight(self, name: str, values: NDArray[Any]) -> Weight:
        """Store an array as it is; asked for twice under one name, it is stored once."""
        if name not in self.arrays:
            self.arrays[name] = values
        return Weight(name, self.arrays[name].nbytes)

    def vector(self, name: str, values: Tensor) -> Weight:
        """A value for every channel, zero in the padding."""
        return self.weight(name, self._typed(_padded(values, len(values))))

    def table(self, name: str, values: Tensor) -> Weight:
        """Rows of channels, padded like every tensor."""
        padded = torch.zeros(len(values), -(-values.shape[1] // 4) * 4)
        padded[:, : values.shape[1]] = values
        return self.weight(name, self._typed(padded))

    def matrix(self, name: str, values: Tensor) -> tuple[Weight, Weight | None]:
        """[..., k, n] as vec4 columns of every k; in int8 with a scale for each column."""
        *taps, k, n = values.shape
        padded = torch.zeros(*taps, -(-k // 4) * 4, -(-n // 4) * 4)
        padded[..., :k, :n] = values
        if not self.int8 or min(k, n) <= 8:  # so few are cheap, and dear in quality
            return self.weight(name, self._typed(padded)), None
        scale = padded.abs().amax(dim=tuple(range(padded.ndim - 1))).clamp(min=1e-12) / 127
        levels = torch.round(padded / scale).to(torch.int8)
        return (
            self.weight(name, levels.numpy()),
            self.weight(f"{name}.scale", self._typed(scale)),
        )

    def _typed(self, values: Tensor) -> NDArray[Any]:
        return values.contiguous().to(torch.float16 if self.item == 2 else torch.float32).numpy()

    # --- kernels ---

    @staticmethod
    def spread(groups: int) -> tuple[int, int]:
        """So many workgroups in two dimensions: one dimension ends at 65535."""
        y = ceil_div(groups, 65535)
        return ceil_div(groups, y), y

    def emit(
        self,
        kernel: str,
        operands: Sequence[Value | Weight | Port | None],
        groups: Sequence[int],
        *,
        options: Mapping[str, Any] | None = None,
        constants: Mapping[str, float] | None = None,
        flops: int = 0,
        together: Mapping[str, Any] | None = None,
    ) -> None:
        """One dispatch. Operands that are None were left out of the shader by its options.

        `together`: the options of a second form, for where eight neighbours share a subgroup.
        """
        chosen = {"S": self.arithmetic, **(options or {})}
        shader = render(kernel, chosen)
        name = shader.name
        if together is not None:
            faster = render(kernel, {**chosen, **together, "subgroup": True})
            name += faster.name.removeprefix(kernel)
            self._subgroup_shaders[name] = faster.source
        self._shaders[name] = shader.source
        numbers = shader.packed(constants or {})
        assert len(numbers) <= ALIGNMENT
        self._numbers.setdefault(numbers, ALIGNMENT * len(self._numbers))
        x, y, z = (*groups, 1, 1)[:3]
        used = tuple(operand for operand in operands if operand is not None)
        label = f"{self.label}:{kernel}"
        self._emitted.append(_Emitted(label, name, numbers, (x, y, z), used, flops))

    def plan(self, inputs: Mapping[str, Port], outputs: Mapping[str, Port]) -> Plan:
        """Everything asked for so far, with a place in the arena for every tensor."""
        arrangement = arrange(self._lives())
        self.arrays[NUMBERS] = np.frombuffer(
            b"".join(numbers.ljust(ALIGNMENT, b"\0") for numbers in self._numbers), np.uint8
        )
        used = {o.name: o.size for e in self._emitted for o in e.operands if isinstance(o, Weight)}
        used[NUMBERS] = self.arrays[NUMBERS].nbytes

        def binding(operand: Value | Weight | Port) -> Binding:
            if isinstance(operand, Weight):
                return Binding(operand.name, 0, operand.size)
            if isinstance(operand, Port):
                return Binding(operand.buffer, 0, operand.bytes)
            size = self._sizes[operand.storage]
            return Binding(ARENA, arrangement.offsets[operand.storage], size)

        dispatches = []
        for e in self._emitted:
            bindings = tuple(binding(operand) for operand in e.operands)
            moved = sum(b.size for b in bindings)
            bindings += (Binding(NUMBERS, self._numbers[e.numbers], len(e.numbers)),)
            dispatches.append(Dispatch(e.label, e.shader, e.groups, bindings, e.flops, moved))
        return Plan(
            component=self.component,
            arithmetic=self.arithmetic,
            features=("shader-f16",) if self.arithmetic == "f16" else (),
            arena=arrangement.size,
            live=arrangement.bound,
            shaders=self._shaders,
            dispatches=tuple(dispatches),
            inputs=dict(inputs),
            outputs=dict(outputs),
            weights=used,
            subgroup_shaders=self._subgroup_shaders,
        )

    def _lives(self) -> list[Life]:
        """From the first to the last kernel that touches a storage."""
        lives: dict[int, Life] = {}
        for index, emitted in enumerate(self._emitted):
            for operand in emitted.operands:
                if isinstance(operand, Value):
                    s = operand.storage
                    life = lives.get(s) or Life(s, self._sizes[s], index, index)
                    lives[s] = replace(life, end=index)
        return list(lives.values())


def _padded(values: Tensor, count: int) -> Tensor:
    padded = torch.zeros(-(-count // 4) * 4)
    padded[:count] = values
    return padded
