"""A layer's weights into a form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from converter.quantize.affine import scaled
from converter.quantize.compressed import F16, Compressed, Indexed, Plain, Scaled
from converter.quantize.forms import Affine, Palette, WeightForm, fitted
from converter.quantize.palette import palettes

if TYPE_CHECKING:
    from torch import Tensor


def compress(weight: NDArray[Any] | Tensor, form: WeightForm) -> Compressed:
    """Weights [out, in, ...] in the form, or in what `fitted` says their shape allows."""
    half = as_half(weight)
    form = fitted(form, half.shape)
    if isinstance(form, Palette):
        groups = half.shape[0] // (form.group or half.shape[0])
        indices, tables = palettes(half.reshape(groups, -1), form.bits)
        return Indexed(indices.reshape(half.shape), tables)
    if isinstance(form, Affine):
        blocks = half.shape[1] // form.block if form.block else 1
        values, scales = scaled(half.reshape(half.shape[0] * blocks, -1), form.bits)
        return Scaled(values.reshape(half.shape), scales.reshape(-1, blocks), form.bits)
    return Plain(half)


def as_half(weight: NDArray[Any] | Tensor) -> F16:
    """What every form starts from: fp16 is the most that is ever shipped."""
    if isinstance(weight, np.ndarray):
        with np.errstate(over="ignore"):  # refused below, where a form has no room for it
            return np.ascontiguousarray(weight, np.float16)
    half: F16 = weight.detach().half().contiguous().numpy()
    return half
