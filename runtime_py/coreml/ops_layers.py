"""Operations with weights, and those that mix elements: products, norms, pools, reductions."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime_py.coreml.ops import op, register


@op
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


@op
def matmul(x: Tensor, y: Tensor, transpose_x: bool = False, transpose_y: bool = False) -> Tensor:
    return torch.matmul(x.mT if transpose_x else x, y.mT if transpose_y else y)


@op
def einsum(values: list[Tensor], equation: str) -> Tensor:
    return torch.einsum(equation, *values)


@op
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask)


@op
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    strides: list[int] | None = None,
    pad_type: str = "valid",
    pad: list[int] | None = None,
    dilations: list[int] | None = None,
    groups: int = 1,
) -> Tensor:
    axes = x.ndim - 2
    strides, dilations = strides or [1] * axes, dilations or [1] * axes
    pairs = _pads(pad_type, pad, x.shape[2:], weight.shape[2:], strides, dilations)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    even = all(before == after for before, after in pairs)
    if not even:
        x = F.pad(x, [n for pair in reversed(pairs) for n in pair])
    around = [before for before, _ in pairs] if even else [0] * axes
    return convolve(x, weight, bias, strides, around, dilations, groups)


def _pads(
    pad_type: str,
    pad: list[int] | None,
    sizes: torch.Size,
    kernel: torch.Size | list[int],
    strides: list[int],
    dilations: list[int],
) -> list[tuple[int, int]]:
    """Before and after, for each spatial axis. Of an odd number, "same" puts the rest after."""
    if pad_type == "valid" or (pad_type == "custom" and pad is None):
        return [(0, 0)] * len(sizes)
    if pad_type == "custom":
        assert pad is not None
        return list(zip(pad[::2], pad[1::2], strict=True))
    if pad_type not in ("same", "same_lower"):
        raise ValueError(f"pad_type {pad_type!r}")
    pairs = []
    for n, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        whole = max(0, (ceil(n / stride) - 1) * stride + (k - 1) * dilation + 1 - n)
        small, large = whole // 2, whole - whole // 2
        pairs.append((small, large) if pad_type == "same" else (large, small))
    return pairs


@op
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    pad: list[int] | None = None,
    output_shape: list[int] | None = None,
    pad_type: str = "valid",
    strides: list[int] | None = None,
    dilations: list[int] | None = None,
    groups: int = 1,
) -> Tensor:
    axes = x.ndim - 2
    strides, dilations = strides or [1] * axes, dilations or [1] * axes
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[axes - 1]
    y = convolve(x, weight, None, strides, 0, 0, groups, dilations)
    crops: list[int] = []  # of the whole result, last axis first
    for axis in reversed(range(axes)):
        n, whole = x.shape[2 + axis], y.shape[2 + axis]
        before = after = 0
        if pad_type == "custom" and pad is not None:
            before, after = pad[2 * axis], pad[2 * axis + 1]
        elif pad_type in ("same", "same_lower"):
            over = whole - n * strides[axis]
            before = over // 2 if pad_type == "same" else over - over // 2
            after = over - before
        if output_shape is not None:
            after = whole - before - output_shape[2 + axis]
        crops += [-before, -after]
    y = F.pad(y, crops)
    return y if bias is None else y + bias.reshape((-1,) + (1,) * axes)


@op
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


@op
def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    return F.batch_norm(x, mean, variance, gamma, beta, eps=epsilon)


@op
def instance_norm(
    x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor:
    wide = (-1,) + (1,) * (x.ndim - 2)
    y = _normalised(x, list(range(2, x.ndim)), epsilon)
    y = y if gamma is None else y * gamma.reshape(wide)
    return y if beta is None else y + beta.reshape(wide)


@op
def layer_norm(
    x: Tensor,
    axes: list[int] | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    over = sorted(axis % x.ndim for axis in (axes if axes is not None else range(x.ndim)))
    wide = [n if axis in over else 1 for axis, n in enumerate(x.shape)]
    y = _normalised(x, over, epsilon)
    y = y if gamma is None else y * gamma.reshape(wide)
    return y if beta is None else y + beta.reshape(wide)


def _normalised(x: Tensor, axes: list[int], epsilon: float) -> Tensor:
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + epsilon)


@op
def l2_norm(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.square().sum((-3, -2, -1), keepdim=True) + epsilon)


@op
def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    return F.local_response_norm(x, size, alpha, beta, k)


@op
def avg_pool(
    x: Tensor,
    kernel_sizes: list[int],
    pad_type: str,
    strides: list[int] | None = None,
    pad: list[int] | None = None,
    exclude_padding_from_average: bool = False,
    ceil_mode: bool = False,
) -> Tensor:
    axes = x.ndim - 2
    strides = strides or [1] * axes
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[axes - 1]
    pairs = _pads(pad_type, pad, x.shape[2:], kernel_sizes, strides, [1] * axes)
    if all(before == after for before, after in pairs):
        around = [before for before, _ in pairs]
        counted = not exclude_padding_from_average
        return pool(x, kernel_sizes, strides, around, ceil_mode, counted)
    sides = [n for pair in reversed(pairs) for n in pair]
    y = pool(F.pad(x, sides), kernel_sizes, strides)
    if exclude_padding_from_average:
        y = y / pool(F.pad(torch.ones_like(x), sides), kernel_sizes, strides)
    return y


@op
def max_pool(
    x: Tensor,
    kernel_sizes: list[int],
    pad_type: str,
    strides: list[int] | None = None,
    pad: list[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    axes = x.ndim - 2
    strides = strides or [1] * axes
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[axes - 1]
    pairs = _pads(pad_type, pad, x.shape[2:], kernel_sizes, strides, [1] * axes)
    if all(before == after for before, after in pairs):
        around = [before for before, _ in pairs]
        return pool(x, kernel_sizes, strides, around, 1, ceil_mode)
    sides = [n for pair in reversed(pairs) for n in pair]
    return pool(F.pad(x, sides, value=-torch.inf), kernel_sizes, strides)


def _reduction(
    reduce: Callable[[Tensor, list[int], bool], Tensor],
) -> Callable[[Tensor, list[int] | None, bool], Tensor]:
    def apply(x: Tensor, axes: list[int] | None = None, keep_dims: bool = False) -> Tensor:
        return reduce(x, list(range(x.ndim)) if axes is None else axes, keep_dims)

    return apply


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "reduce_l1_norm": lambda x, axes, keep: x.abs().sum(axes, keep),
    "reduce_l2_norm": lambda x, axes, keep: x.square().sum(axes, keep).sqrt(),
    "reduce_log_sum": lambda x, axes, keep: x.sum(axes, keep).log(),
    "reduce_log_sum_exp": lambda x, axes, keep: x.logsumexp(axes, keep),
    "reduce_max": lambda x, axes, keep: x.amax(axes, keep),
    "reduce_mean": lambda x, axes, keep: x.mean(axes, keep),
    "reduce_min": lambda x, axes, keep: x.amin(axes, keep),
    "reduce_prod": _product,
    "reduce_sum": lambda x, axes, keep: x.sum(axes, keep),
    "reduce_sum_square": lambda x, axes, keep: x.square().sum(axes, keep),
}

for _name, _reduce in REDUCTIONS.items():
    register(_name, _reduction(_reduce))


@op
def reduce_argmax(
    x: Tensor, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32"
) -> Tensor:
    return x.argmax(axis, keep_dims)


@op
def reduce_argmin(
    x: Tensor, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32"
) -> Tensor:
    return x.argmin(axis, keep_dims)


@op
def cumsum(x: Tensor, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Tensor:
    y = x.flip(axis) if reverse else x
    total = y.cumsum(axis)
    total = total - y if exclusive else total
    return total.flip(axis) if reverse else total
