"""Zero mean and unit variance without a sum that could pass fp16's range."""

import math

from torch import Tensor

from converter.ops import tflite

#: Below this spread a group is as good as constant: what is divided by must not become zero.
SMALLEST = 1e-3


def standardised(x: Tensor, dims: list[int], epsilon: float, scale: Tensor | None = None) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) over `dims`, times `scale`.

    The deviations are divided by the largest of them before they are squared, so that squares lie
    between 0 and 1 in whatever type a runtime computes. fp16 ends at 65504: 256 squared.
    """
    centred = x - x.mean(dim=dims, keepdim=True)
    largest = tflite.reduce_max(centred.abs(), dims).clamp(min=SMALLEST)
    unit = centred / largest
    variance = (unit * unit).mean(dim=dims, keepdim=True)
    # Epsilon on the scale of `unit`; a number over a tensor would cost a reciprocal and a product.
    share = x.new_full((1,), math.sqrt(epsilon)) / largest
    factor = (variance + share * share).rsqrt()
    return unit * (factor if scale is None else factor * scale)  # one pass over x, not two
