"""Operations that treat every element alike."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime_py.coreml.ops import moving_op, op, register

UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "abs": torch.abs,
    "acos": torch.acos,
    "asin": torch.asin,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "floor": torch.floor,
    "logical_not": torch.logical_not,
    "relu": torch.relu,
    "relu6": F.relu6,
    "round": torch.round,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
    "tanh": torch.tanh,
}

BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "equal": torch.eq,
    "floor_div": torch.floor_divide,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "mod": torch.remainder,
    "mul": torch.mul,
    "not_equal": torch.ne,
    "pow": torch.pow,
    "real_div": torch.true_divide,
    "sub": torch.sub,
}


def _unary(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        return function(x)

    return apply


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def apply(x: Tensor, y: Tensor) -> Tensor:
        return function(x, y)

    return apply


for _name, _one in UNARY.items():
    register(_name, _unary(_one))
for _name, _two in BINARY.items():
    register(_name, _binary(_two))


@op
def rsqrt(x: Tensor, epsilon: float = 1e-12) -> Tensor:
    return torch.rsqrt(x + epsilon)


@op
def inverse(x: Tensor, epsilon: float = 1e-4) -> Tensor:
    return 1 / (x + epsilon)


@op
def log(x: Tensor, epsilon: float = 1e-45) -> Tensor:
    return torch.log(x + epsilon)


@op
def clip(x: Tensor, alpha: float, beta: float) -> Tensor:
    return x.clamp(alpha, beta)


@op
def threshold(x: Tensor, alpha: float) -> Tensor:
    return x.clamp(min=alpha)


@op
def cast(x: Tensor, dtype: str) -> Tensor:
    """Towards zero from floating point to integers; the caller gives integers their width."""
    if dtype == "bool":
        return x != 0
    return x.to(torch.float32 if dtype in ("fp16", "fp32") else torch.int64)


@op
def select(cond: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(cond, a, b)


@op
def gelu(x: Tensor, mode: str = "EXACT") -> Tensor:
    if mode == "SIGMOID_APPROXIMATION":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate={"EXACT": "none", "TANH_APPROXIMATION": "tanh"}[mode])


@op
def elu(x: Tensor, alpha: float) -> Tensor:
    return F.elu(x, alpha)


@op
def leaky_relu(x: Tensor, alpha: float) -> Tensor:
    return F.leaky_relu(x, alpha)


@op
def clamped_relu(x: Tensor, alpha: float, beta: float) -> Tensor:
    return F.leaky_relu(x, alpha).clamp(max=beta)


@op
def thresholded_relu(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x >= alpha, x, 0.0)


@op
def linear_activation(x: Tensor, alpha: float, beta: float) -> Tensor:
    return x * alpha + beta


@op
def scaled_tanh(x: Tensor, alpha: float, beta: float) -> Tensor:
    return alpha * torch.tanh(beta * x)


@op
def sigmoid_hard(x: Tensor, alpha: float, beta: float) -> Tensor:
    return (alpha * x + beta).clamp(0, 1)


@op
def prelu(x: Tensor, alpha: Tensor) -> Tensor:
    return F.prelu(x, alpha)


@op
def softplus_parametric(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    wide = (-1,) + (1,) * (x.ndim - 2)
    return alpha.reshape(wide) * F.softplus(beta.reshape(wide) * x)


@op
def quantize(
    input: Tensor,
    scale: Tensor,
    output_dtype: str,
    zero_point: Tensor | None = None,
    axis: int | None = None,
) -> Tensor:
    low, high = {"int8": (-128, 127), "uint8": (0, 255)}[output_dtype]
    steps = torch.round(input / _along(axis, scale, input))
    if zero_point is not None:
        steps = steps + _along(axis, zero_point, input)
    return steps.clamp(low, high).to(torch.int64)


@op
def dequantize(
    input: Tensor, scale: Tensor, zero_point: Tensor | None = None, axis: int | None = None
) -> Tensor:
    steps = input.to(torch.float32)
    if zero_point is not None:
        steps = steps - _along(axis, zero_point, input)
    return steps * _along(axis, scale, input)


def _along(axis: int | None, vector: Tensor, x: Tensor) -> Tensor:
    if vector.ndim == 0 or axis is None:
        return vector
    return vector.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


@moving_op
def identity(x: Tensor) -> Tensor:
    return x
