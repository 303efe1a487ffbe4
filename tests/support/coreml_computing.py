"""Cases of operations that compute: elementwise ones, products, norms, pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.coreml_cases import (
    CUBE,
    IMAGE,
    POSITIVE,
    RNG,
    TRUTHS,
    UNIT,
    Case,
    X,
    case,
    ints,
    some,
    t,
)

UNARY = (
    *("abs", "ceil", "cos", "cosh", "erf", "exp", "exp2", "floor", "relu", "relu6", "round"),
    *("sigmoid", "sign", "sin", "sinh", "softplus", "softsign", "square", "tan", "tanh"),
)
BINARY = ("add", "sub", "mul", "real_div", "maximum", "minimum", "floor_div", "mod")
COMPARING = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
REDUCTIONS = (
    *("reduce_l1_norm", "reduce_l2_norm", "reduce_log_sum_exp", "reduce_max", "reduce_mean"),
    *("reduce_min", "reduce_prod", "reduce_sum", "reduce_sum_square"),
)


def elementwise() -> Iterator[Case]:
    yield from (case(op, x=X) for op in UNARY)
    yield from (case(op, x=UNIT) for op in ("acos", "asin", "atan", "atanh"))
    yield from (case(op, x=POSITIVE) for op in ("sqrt", "rsqrt", "inverse", "log"))
    yield case("rsqrt", x=POSITIVE, epsilon=0.5, label="epsilon")
    yield case("inverse", x=POSITIVE, epsilon=0.5, label="epsilon")
    yield case("log", x=POSITIVE, epsilon=0.5, label="epsilon")
    yield from (case(op, x=X, y=some(3, 1), label="broadcast") for op in BINARY)
    yield from (
        case(op, x=ints(4, 5), y=ints(5) + 1, label="integers") for op in BINARY if op != "real_div"
    )
    yield from (case(op, x=ints(4, 5, below=3), y=ints(5, below=3)) for op in COMPARING)
    yield case("pow", x=POSITIVE, y=some(4))
    yield from (
        case(op, x=TRUTHS, y=TRUTHS[:, ::-1]) for op in ("logical_and", "logical_or", "logical_xor")
    )
    yield case("logical_not", x=TRUTHS)
    yield case("select", cond=TRUTHS, a=X, b=np.float32(-5))
    yield case("clip", x=X, alpha=-0.5, beta=0.7)
    yield case("threshold", x=X, alpha=0.25)
    for mode, torchs in (
        ("EXACT", F.gelu),
        ("TANH_APPROXIMATION", lambda x: F.gelu(x, approximate="tanh")),
        ("SIGMOID_APPROXIMATION", lambda x: x / (1 + (-1.702 * x).exp())),
    ):
        yield case("gelu", lambda x, f=torchs, **_: f(t(x)), x=X, mode=mode, label=mode)
    for dtype in ("int32", "bool", "fp32", "uint8", "int8"):
        yield case("cast", x=np.trunc(X * 3) * (dtype != "uint8"), dtype=dtype, label=dtype)
    yield case("cast", lambda x, dtype: x.astype(np.int32), x=X * 5, dtype="int32", label="to zero")
    yield case("silu", lambda x: x / (1 + np.exp(-x)), x=X)
    yield case("elu", lambda x, alpha: F.elu(t(x), alpha), x=X, alpha=0.3)
    yield case("leaky_relu", lambda x, alpha: F.leaky_relu(t(x), alpha), x=X, alpha=0.3)
    yield case(
        "clamped_relu",
        lambda x, alpha, beta: np.minimum(beta, np.where(x > 0, x, alpha * x)),
        x=X,
        alpha=0.3,
        beta=0.8,
    )
    yield case("thresholded_relu", lambda x, alpha: x * (x >= alpha), x=X, alpha=0.3)
    yield case(
        "linear_activation", lambda x, alpha, beta: alpha * x + beta, x=X, alpha=0.3, beta=2.0
    )
    yield case(
        "scaled_tanh", lambda x, alpha, beta: alpha * np.tanh(beta * x), x=X, alpha=0.3, beta=2.0
    )
    yield case(
        "sigmoid_hard",
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        x=X,
        alpha=0.3,
        beta=0.5,
    )
    yield case("prelu", lambda x, alpha: F.prelu(t(x), t(alpha)), x=IMAGE, alpha=some(4))
    yield case(
        "softplus_parametric",
        lambda x, alpha, beta: np.einsum(
            "c,nchw->nchw", alpha, np.log1p(np.exp(np.einsum("c,nchw->nchw", beta, x)))
        ),
        x=IMAGE,
        alpha=some(4),
        beta=some(4),
    )
    yield case("identity", x=X)
    levels = RNG.integers(-9, 9, (2, 3, 4)).astype(np.int8)
    yield case(
        "quantize", input=X, scale=np.float32(0.05), zero_point=np.int8(3), output_dtype="int8"
    )
    yield case(
        "quantize",
        input=X,
        scale=np.float32([0.05, 0.1, 0.02]),
        zero_point=np.uint8([3, 100, 0]),
        output_dtype="uint8",
        axis=1,
        label="axis",
    )
    yield case(
        "dequantize", lambda input, scale: input * scale, input=levels, scale=np.float32(0.05)
    )
    yield case(
        "dequantize",
        lambda input, scale, zero_point, axis: (
            (input.astype(np.float32) - zero_point[:, None]) * scale[:, None]
        ),
        input=levels,
        scale=np.float32([0.05, 0.1, 0.02]),
        zero_point=np.int8([3, 100, 0]),
        axis=-2,
        label="axis",
    )


def mixing() -> Iterator[Case]:
    for op in REDUCTIONS:
        yield case(op, x=X, axes=[-1, 0], keep_dims=True, label="kept")
        yield case(op, x=X, axes=[1])
        yield case(op, x=X, label="whole")
    yield case("reduce_log_sum", x=POSITIVE, axes=[1])
    yield case("reduce_argmax", x=X, axis=1)
    yield case("reduce_argmin", x=X, axis=-1, keep_dims=True)
    yield case("softmax", x=X * 9, axis=1)
    yield case("cumsum", x=X, axis=1)
    yield case(
        "cumsum",
        lambda x, **_: np.cumsum(x[::-1], 0)[::-1] - x,
        x=X,
        exclusive=True,
        reverse=True,
        label="exclusive reverse",
    )
    yield case("linear", x=X, weight=some(5, 4), bias=some(5))
    yield case("linear", x=X, weight=some(5, 4), label="no bias")
    yield case("matmul", x=some(2, 1, 4, 3), y=some(5, 4, 6), transpose_x=True)
    yield case("matmul", x=some(2, 3, 4), y=some(5, 4), transpose_y=True, label="transposed")
    yield case("einsum", values=[some(2, 3, 4, 5), some(2, 5, 4, 6)], equation="nchw,nwhu->nchu")
    yield case(
        "einsum", values=[some(3, 1, 5), some(5, 4, 6)], equation="chw,whr->chr", label="broadcast"
    )
    q, k, v, mask = some(2, 3, 5, 8), some(2, 3, 7, 8), some(2, 3, 7, 4), some(1, 1, 5, 7)

    def attended(query: Any, key: Any, value: Any, attn_mask: Any = 0.0) -> Tensor:
        if getattr(attn_mask, "dtype", None) == np.bool_:
            attn_mask = np.where(attn_mask, 0.0, -np.inf)
        scores = t(query).double() @ t(key).double().mT / 8**0.5 + t(attn_mask)
        return scores.softmax(-1) @ t(value).double()

    sdpa = {"query": q, "key": k, "value": v}
    attention = "scaled_dot_product_attention"
    yield case(attention, attended, **sdpa, opset="iOS18")
    yield case(attention, attended, **sdpa, attn_mask=mask, opset="iOS18", label="added mask")
    yield case(
        attention, attended, **sdpa, attn_mask=np.tri(5, 7, dtype=bool), opset="iOS18", label="mask"
    )

    yield case(
        "batch_norm",
        lambda x, mean, variance, gamma, beta, epsilon: F.batch_norm(
            t(x), t(mean), t(variance), t(gamma), t(beta), eps=epsilon
        ),
        x=IMAGE,
        mean=some(4),
        variance=np.abs(some(4)),
        gamma=some(4),
        beta=some(4),
        epsilon=1e-3,
    )
    yield case(
        "batch_norm",
        lambda x, mean, variance: F.batch_norm(t(x), t(mean), t(variance)),
        x=IMAGE,
        mean=some(4),
        variance=np.abs(some(4)),
        label="plain",
    )
    yield case(
        "layer_norm",
        lambda x, axes, gamma, beta, epsilon: F.layer_norm(
            t(x), x.shape[2:], t(gamma), t(beta), epsilon
        ),
        x=IMAGE,
        axes=[-1, 2],
        gamma=some(6, 8),
        beta=some(6, 8),
        epsilon=1e-3,
    )
    yield case(
        "layer_norm",
        lambda x, axes, **_: F.layer_norm(t(x).movedim(1, -1), (4,)).movedim(-1, 1),
        x=IMAGE,
        axes=[1],
        label="channels",
    )
    yield case(
        "instance_norm",
        lambda x, gamma, beta, epsilon: F.instance_norm(
            t(x), weight=t(gamma), bias=t(beta), eps=epsilon
        ),
        x=IMAGE,
        gamma=some(4),
        beta=some(4),
        epsilon=1e-3,
    )
    yield case("l2_norm", x=IMAGE, epsilon=1e-3)
    yield case(
        "local_response_norm",
        lambda x, size, **_: F.local_response_norm(t(x), size),
        x=IMAGE,
        size=3,
    )


def convolutions() -> Iterator[Case]:
    w = some(6, 4, 3, 3)
    yield case("conv", lambda x, weight, **_: F.conv2d(t(x), t(weight)), x=IMAGE, weight=w)
    yield case(
        "conv",
        lambda x, weight, bias, **_: F.conv2d(t(x), t(weight), t(bias), 2, 1),
        x=IMAGE,
        weight=w,
        bias=some(6),
        strides=[2, 2],
        pad_type="custom",
        pad=[1, 1, 1, 1],
        label="custom",
    )
    yield case(
        "conv",
        lambda x, weight, **_: F.conv2d(F.pad(t(x), (2, 1, 0, 1)), t(weight), None, (1, 2)),
        x=IMAGE,
        weight=w,
        strides=[1, 2],
        pad_type="custom",
        pad=[0, 1, 2, 1],
        label="uneven",
    )
    # Of 6 and 8 by strides of 2 and kernels of 3, "same" adds one in all, behind.
    for pad_type, sides in (("same", (0, 1, 0, 1)), ("same_lower", (1, 0, 1, 0))):
        yield case(
            "conv",
            lambda x, weight, sides=sides, **_: F.conv2d(F.pad(t(x), sides), t(weight), None, 2),
            x=IMAGE,
            weight=w,
            strides=[2, 2],
            pad_type=pad_type,
            label=pad_type,
        )
    yield case(
        "conv",
        lambda x, weight, **_: F.conv2d(t(x), t(weight), None, 1, 0, 2, 2),
        x=IMAGE,
        weight=some(6, 2, 3, 3),
        dilations=[2, 2],
        groups=2,
        label="dilated groups",
    )
    yield case(
        "conv",
        lambda x, weight, **_: F.conv1d(t(x), t(weight)),
        x=some(1, 4, 9),
        weight=some(6, 4, 3),
        label="1d",
    )
    yield case(
        "conv",
        lambda x, weight, **_: F.conv3d(t(x), t(weight)),
        x=CUBE,
        weight=some(3, 2, 2, 2, 2),
        label="3d",
    )
    back = some(4, 3, 3, 3)
    yield case(
        "conv_transpose",
        lambda x, weight, bias, **_: F.conv_transpose2d(t(x), t(weight), t(bias)),
        x=IMAGE,
        weight=back,
        bias=some(3),
    )
    yield case(
        "conv_transpose",
        lambda x, weight, **_: F.conv_transpose2d(t(x), t(weight), None, 2, 1, 1, 1, 1),
        x=IMAGE,
        weight=back,
        strides=[2, 2],
        pad_type="custom",
        pad=[1, 1, 1, 1],
        output_shape=[2, 3, 12, 16],
        label="output shape",
    )
    yield case(
        "conv_transpose",
        lambda x, weight, **_: F.conv_transpose2d(t(x), t(weight), None, 2, 1, 0, 2, 2),
        x=IMAGE,
        weight=some(4, 3, 3, 3),
        strides=[2, 2],
        pad_type="custom",
        pad=[1, 1, 1, 1],
        groups=2,
        dilations=[2, 2],
        label="groups",
    )
    pooled = {"x": IMAGE, "kernel_sizes": [3, 2], "strides": [2, 2]}
    yield case("avg_pool", lambda x, **_: F.avg_pool2d(t(x), (3, 2), 2), **pooled, pad_type="valid")
    for exclude in (False, True):
        yield case(
            "avg_pool",
            lambda x, exclude=exclude, **_: F.avg_pool2d(
                t(x), (3, 2), 2, 1, count_include_pad=not exclude
            ),
            **pooled,
            pad_type="custom",
            pad=[1, 1, 1, 1],
            exclude_padding_from_average=exclude,
            label=f"exclude {exclude}",
        )
        padded = F.avg_pool2d(F.pad(t(IMAGE), (0, 0, 0, 1)), (3, 2), 2)
        share = F.avg_pool2d(F.pad(torch.ones(1, 1, 6, 8), (0, 0, 0, 1)), (3, 2), 2)
        yield case(
            "avg_pool",
            lambda x, expected=padded / share if exclude else padded, **_: expected,
            **pooled,
            pad_type="same",
            exclude_padding_from_average=exclude,
            label=f"same exclude {exclude}",
        )
    yield case(
        "max_pool",
        lambda x, **_: F.max_pool2d(t(x), (3, 2), 2, 1, ceil_mode=True),
        **pooled,
        pad_type="custom",
        pad=[1, 1, 1, 1],
        ceil_mode=True,
        label="ceil",
    )
    yield case(
        "max_pool",
        lambda x, **_: F.max_pool2d(F.pad(t(x), (0, 0, 0, 1), value=-9.0), (3, 2), 2),
        **pooled,
        pad_type="same",
        label="same",
    )
