"""Zero mean and unit variance without a sum that could pass fp16's range."""

import math

from torch import Tensor

from converter.ops import tflite

#: Below this spread a group is as good as constant: what is divided by must not become zero.
SMALLEST = 1e-3


def standardised(x: Tensor, dims: list[int], epsilon: float) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) over `dims`.

    The deviations are divided by the largest of them before they are squared, so that squares lie
    between 0 and 1 in whatever type a runtime computes. fp16 ends at 65504: 256 squared.
    """
    centred = x - x.mean(dim=dims, keepdim=True)
    largest = tflite.reduce_max(centred.abs(), dims).clamp(min=SMALLEST)
    unit = centred / largest
    variance = (unit * unit).mean(dim=dims, keepdim=True)
    share = math.sqrt(epsilon) / largest  # epsilon on the scale of `unit`
    return unit * (variance + share * share).rsqrt()
