"""A component's weights as MIL constants, each in the form its recipe gives it.

One object serves all functions of a component, so that nothing is compressed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from coremltools.converters.mil import Builder as mb  # noqa: N813
from coremltools.converters.mil import mil
from coremltools.optimize._utils import pack_elements_into_bits
from torch import Tensor

from converter.quantize.compress import compress
from converter.quantize.compressed import Compressed, Indexed, Plain, Scaled
from converter.quantize.forms import FP16, WeightForm
from converter.targets.coreml.choices import MEASURED, PLAIN, WIDE

Var = Any


@dataclass
class Weights:
    """`wide` keeps everything in fp32, `form_of` names each layer's form otherwise."""

    ios: int = 18
    wide: bool = False
    shared: bool = False  # whether several functions will ask for the same weights
    form_of: Callable[[str, Tensor], WeightForm] = lambda layer, weight: FP16
    activations: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    overflowing: frozenset[str] = frozenset()  # norms whose squares would not fit into fp16
    advance: Callable[[int], None] = lambda nbytes: None  # told of each weight that is written
    _done: dict[str, Compressed] = field(default_factory=dict)

    def emit(
        self, layer: str, name: str, tensor: Tensor, shape: tuple[int, ...], wide: bool
    ) -> Var:
        """`shape` is the tensor's own, or that with ones behind it."""
        self.advance(tensor.nbytes)
        if wide:
            return mb.const(val=tensor.reshape(shape).numpy().astype(np.float32), name=name)
        weight = self._done.get(layer) or compress(tensor, self.form_of(layer, tensor))
        if self.shared:
            self._done[layer] = weight
        return _constant(weight, shape, name, self.ios)

    def norm_form(self, layer: str, choice: str) -> str:
        if choice != MEASURED:
            return choice
        return WIDE if layer in self.overflowing else PLAIN

    def activation(self, layer: str) -> tuple[float, int] | None:
        """Scale and zero point of what enters a layer, where it is to be in int8."""
        return self.activations.get(layer)


def _constant(weight: Compressed, shape: tuple[int, ...], name: str, ios: int) -> Var:
    """Core ML decodes it when the model is loaded, or while it runs."""
    if isinstance(weight, Plain):
        return mb.const(val=weight.values.reshape(shape), name=name)
    if isinstance(weight, Indexed):
        return _palette(weight, shape, name, ios)
    return _scaled(weight, shape, name, ios)


def _palette(weight: Indexed, shape: tuple[int, ...], name: str, ios: int) -> Var:
    indices = weight.indices.reshape(shape)
    if ios < 18:
        assert len(weight.tables) == 1
        return mb.constexpr_lut_to_dense(
            indices=pack_elements_into_bits(indices, weight.bits),
            lut=weight.tables[0],
            shape=np.array(shape, np.uint32),
            name=name,
        )
    groups, entries = weight.tables.shape
    ones = (1,) * (len(shape) - 1)
    return mb.constexpr_lut_to_dense(
        indices=indices.astype(_integer(f"uint{weight.bits}")),
        lut=weight.tables.reshape(groups, *ones, entries, 1),
        name=name,
    )


def _scaled(weight: Scaled, shape: tuple[int, ...], name: str, ios: int) -> Var:
    values = weight.values.reshape(shape)
    out, blocks = weight.scales.shape
    if ios < 18:
        assert weight.bits == 8 and blocks == 1
        return mb.constexpr_affine_dequantize(
            quantized_data=values,
            zero_point=np.int8(0),
            scale=weight.scales[:, 0],
            axis=np.int32(0),
            name=name,
        )
    return mb.constexpr_blockwise_shift_scale(
        data=values.astype(_integer(f"int{weight.bits}")),
        scale=weight.scales.reshape(out, blocks, *(1,) * (len(shape) - 2)),
        name=name,
    )


def _integer(name: str) -> Any:
    types = mil.types
    return types.nptype_from_builtin(types.string_to_builtin(name))
