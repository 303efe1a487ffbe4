"""TFLite's own ops as PyTorch ops, for lowerings that must become exactly one op of a file.

Only those are here that LiteRT's exporter would not make of plain PyTorch by itself. They compute
what TFLite computes, so a lowering can be run and compared before anything is exported.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

NAMESPACE = "pocketsd_tflite"


def _builtin(meaning: Callable[..., Tensor]) -> Callable[..., Tensor]:
    name = f"{NAMESPACE}::{meaning.__name__}"
    operator = torch.library.custom_op(name, meaning, mutates_args=())
    operator.register_fake(meaning)
    return operator


@_builtin
def conv_2d(x: Tensor, weight: Tensor, bias: Tensor, stride: int, same: bool) -> Tensor:
    # x [b, h, w, c], weight [out, kh, kw, c]
    x, weight = x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2)
    if same:  # as many rows as the stride leaves; an odd one of padding goes to the end
        x = F.pad(
            x, [n for size in x.shape[:1:-1] for n in same_padding(size, weight.shape[2], stride)]
        )
    return F.conv2d(x, weight, bias, stride).permute(0, 2, 3, 1).contiguous()


@_builtin
def batch_matmul(x: Tensor, y: Tensor, transpose_y: bool) -> Tensor:
    # x [b, heads, n, d], y [b, heads, d, m] or, transposed, [b, heads, m, d]
    return x @ (y.transpose(-1, -2) if transpose_y else y)


@_builtin
def reduce_max(x: Tensor, dims: list[int]) -> Tensor:
    return x.amax(dim=dims, keepdim=True)


@_builtin
def resize_nearest_neighbor(x: Tensor, scale: int) -> Tensor:
    # x [b, h, w, c]
    larger = F.interpolate(x.permute(0, 3, 1, 2), scale_factor=float(scale), mode="nearest")
    return larger.permute(0, 2, 3, 1).contiguous()


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """TFLite's padding before and after a side, which keeps `size / stride` positions."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2
