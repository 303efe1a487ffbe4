"""Emits MIL, Core ML's intermediate language: the ops that do not care how tokens lie in memory.

Pictures are [b, c, h, w]. How token sequences and vectors lie is up to the subclasses: `Rows` for
the GPU, `Columns` for the Neural Engine.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from coremltools.converters.mil import Builder as mb  # noqa: N813
from numpy.typing import NDArray
from torch import Tensor

from converter.ops.standardise import SMALLEST
from converter.targets.coreml.choices import PLAIN, SCALED, WIDE, Choices
from converter.targets.coreml.weights import Weights

Var = Any  # a coremltools Var
#: Added to scores of tokens that lie ahead; fp16 can still hold it with a score on top.
FUTURE = -3e4


class Builder(ABC):
    """`label` names the layer that is being written; `wide` says that it computes in fp32."""

    channels: int  # the axis of a token sequence that they are on

    def __init__(self, choices: Choices, weights: Weights) -> None:
        self.choices, self.weights = choices, weights
        self.label = ""
        self.wide = weights.wide
        self._names: Counter[str] = Counter()

    # What the forms differ in. A sequence is what PyTorch calls [b, n, c], tokens are the form's.

    @abstractmethod
    def from_sequence(self, x: Var) -> Var: ...

    @abstractmethod
    def to_sequence(self, x: Var) -> Var: ...

    @abstractmethod
    def to_tokens(self, x: Var) -> Var: ...

    @abstractmethod
    def to_picture(self, tokens: Var, height: int, width: int) -> Var: ...

    @abstractmethod
    def vector(self, x: Var) -> Var: ...

    @abstractmethod
    def over_picture(self, vector: Var) -> Var: ...

    @abstractmethod
    def embedded(self, tokens: Var, table: Tensor, positions: Tensor) -> Var: ...

    @abstractmethod
    def linear(self, x: Var, weight: Tensor, bias: Tensor | None, activation: str) -> Var: ...

    @abstractmethod
    def layer_norm(self, x: Var, weight: Tensor, bias: Tensor, epsilon: float) -> Var: ...

    @abstractmethod
    def attention(self, q: Var, k: Var, v: Var, heads: int, causal: bool) -> Var: ...

    # What they share.

    def emit(self, kind: str, **inputs: Any) -> Var:
        return getattr(mb, kind)(name=self._name(kind), **inputs)

    @property
    def dtype(self) -> str:
        return "fp32" if self.wide else "fp16"

    def const(self, values: Any, leaf: str = "const") -> Var:
        array = np.asarray(values, np.float32 if self.wide else np.float16)
        return mb.const(val=array, name=self._name(leaf))

    def vector_weight(self, tensor: Tensor | None, leaf: str, length: int = 0) -> Var:
        """A bias, or the scale of a norm; zeros where there is none."""
        return self.const(np.zeros(length) if tensor is None else tensor.numpy(), leaf)

    def weight(self, tensor: Tensor, shape: Sequence[int] | None = None) -> Var:
        """A layer's weight in its compressed form, read as `shape`."""
        name = self._name("weight")
        return self.weights.emit(self.label, name, tensor, tuple(shape or tensor.shape), self.wide)

    def as_type(self, x: Var, wide: bool) -> Var:
        """The tensor in fp32 or fp16; integers stay what they are."""
        wanted, have = ("fp32" if wide else "fp16"), type_name(x)
        if have not in ("fp16", "fp32") or have == wanted:
            return x
        return self.emit("cast", x=x, dtype=wanted)

    @contextmanager
    def island(self) -> Iterator[None]:
        """Computes in fp32 within."""
        before, self.wide = self.wide, True
        yield
        self.wide = before

    def add(self, x: Var, y: Var) -> Var:
        return self.emit("add", x=x, y=y)

    def join(self, first: Var, second: Var) -> Var:
        return self.emit("concat", values=[first, second], axis=1)

    def conv(
        self,
        x: Var,
        weight: Tensor,
        bias: Tensor,
        stride: int,
        padding: Sequence[int],
        upsample: int,
    ) -> Var:
        # x [b, c, h, w], padding (left, right, top, bottom)
        if upsample > 1:
            x = self.emit(
                "upsample_nearest_neighbor",
                x=x, scale_factor_height=upsample, scale_factor_width=upsample,
            )  # fmt: skip
        left, right, top, bottom = padding
        return self.emit(
            "conv",
            x=self.narrowed(x),
            weight=self.weight(weight),
            bias=self.vector_weight(bias, "bias"),
            strides=[stride, stride],
            pad_type="custom",
            pad=[top, bottom, left, right],
        )

    def group_norm(
        self, x: Var, weight: Tensor, bias: Tensor, groups: int, epsilon: float, silu: bool
    ) -> Var:
        b, c, h, w = x.shape
        g = self.emit("reshape", x=x, shape=[b, groups, c // groups, h * w])
        y = self.emit("reshape", x=self.standardised(g, (2, 3), epsilon), shape=[b, c, h, w])
        y = self.affine(y, weight, bias)
        return self.emit("silu", x=y) if silu else y

    def geglu(self, x: Var, weight: Tensor, bias: Tensor) -> Var:
        both = self.linear(x, weight, bias, "")
        value, gate = self.emit("split", x=both, num_splits=2, axis=self.channels)
        return self.emit("mul", x=value, y=self.activated(gate, "gelu"))

    def standardised(self, x: Var, axes: Sequence[int], epsilon: float) -> Var:
        """(x - mean) / sqrt(variance + epsilon), the statistics as the choices want them."""
        form = self.weights.norm_form(self.label, self.choices.norms)
        if form == WIDE and not self.wide:
            with self.island():
                y = self._plain(self.as_type(x, wide=True), axes, epsilon)
            return self.as_type(y, self.wide)
        if form == SCALED and not self.wide:
            return self._scaled(x, axes, epsilon)
        assert self.wide or form == PLAIN
        return self._plain(x, axes, epsilon)

    def affine(self, x: Var, weight: Tensor, bias: Tensor) -> Var:
        """weight * x + bias along axis 1, in one op: Core ML's batch norm with nothing to norm."""
        c = len(weight)
        return self.emit(
            "batch_norm",
            x=x,
            mean=self.const(np.zeros(c), "mean"),
            variance=self.const(np.ones(c), "variance"),
            gamma=self.vector_weight(weight, "gamma"),
            beta=self.vector_weight(bias, "beta"),
            epsilon=self._number(0),
        )

    def activated(self, y: Var, activation: str) -> Var:
        if activation == "silu":
            return self.emit("silu", x=y)
        if activation == "gelu":
            return self.emit("gelu", x=y, mode="EXACT")
        if activation == "quick_gelu":  # what Core ML calls this approximation is CLIP's own
            return self.emit("gelu", x=y, mode="SIGMOID_APPROXIMATION")
        assert activation == "", activation
        return y

    def narrowed(self, x: Var) -> Var:
        """What enters a layer, in int8 where the layer's recipe says so."""
        scale_and_zero = self.weights.activation(self.label)
        if scale_and_zero is None:
            return x
        scale, zero = scale_and_zero
        small = self.emit(
            "quantize",
            input=x, zero_point=np.int8(zero), scale=self._number(scale), output_dtype="int8",
        )  # fmt: skip
        return self.emit(
            "dequantize", input=small, zero_point=np.int8(zero), scale=self._number(scale)
        )

    def sinusoid(self, timestep: Var, width: int, cosine_first: bool, shift: float) -> Var:
        """[b] -> [b, width], in fp32: in fp16 an angle of 981 is rounded to half a radian."""
        half = width // 2
        frequencies = np.exp(-math.log(10000.0) * np.arange(half) / (half - shift))
        with self.island():
            column = self.emit("expand_dims", x=timestep, axes=[1])
            angle = self.emit("mul", x=column, y=self.const(frequencies[None], "frequencies"))
            parts = [self.emit("cos", x=angle), self.emit("sin", x=angle)]
            y = self.emit("concat", values=parts if cosine_first else parts[::-1], axis=1)
        return self.as_type(y, self.wide)

    def looked_up(self, tokens: Var, table: Tensor, positions: Tensor) -> Var:
        """[b, n] -> [b, n, c]"""
        rows = self.emit("gather", x=self.weight(table), indices=tokens, axis=0)
        n = tokens.shape[1]
        return self.add(rows, self.const(positions[:n].numpy()[None], "positions"))

    def _plain(self, x: Var, axes: Sequence[int], epsilon: float) -> Var:
        centred = self._centred(x, axes)
        squares = self.emit("square", x=centred)
        variance = self.emit("reduce_mean", x=squares, axes=list(axes), keep_dims=True)
        factor = self.emit("rsqrt", x=variance, epsilon=self._number(epsilon))
        return self.emit("mul", x=centred, y=factor)

    def _scaled(self, x: Var, axes: Sequence[int], epsilon: float) -> Var:
        """As `converter.ops.standardise`: the deviations are divided by the largest of them."""
        centred = self._centred(x, axes)
        magnitude = self.emit("abs", x=centred)
        largest = self.emit("reduce_max", x=magnitude, axes=list(axes), keep_dims=True)
        largest = self.emit("maximum", x=largest, y=self._number(SMALLEST))
        unit = self.emit("real_div", x=centred, y=largest)
        squares = self.emit("square", x=unit)
        variance = self.emit("reduce_mean", x=squares, axes=list(axes), keep_dims=True)
        share = self.emit("real_div", x=self._number(math.sqrt(epsilon)), y=largest)
        variance = self.add(variance, self.emit("square", x=share))
        factor = self.emit("rsqrt", x=variance, epsilon=self._number(0))
        return self.emit("mul", x=unit, y=factor)

    def _centred(self, x: Var, axes: Sequence[int]) -> Var:
        mean = self.emit("reduce_mean", x=x, axes=list(axes), keep_dims=True)
        return self.emit("sub", x=x, y=mean)

    def _number(self, value: float) -> Any:
        return np.float32(value) if self.wide else np.float16(value)

    def _name(self, kind: str) -> str:
        """Says where an op comes from; Core ML takes no name twice."""
        name = re.sub(r"\W", "_", f"{self.label}.{kind}")
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}_{self._names[name]}"


def type_name(x: Var) -> str:
    from coremltools.converters.mil.mil import types

    return str(types.builtin_to_string(x.dtype))


def future(n: int, wide: bool) -> NDArray[Any]:
    """[n, n], query by key: what is added to the scores of keys that lie ahead."""
    return torch.full((n, n), FUTURE).triu(1).numpy().astype(np.float32 if wide else np.float16)
