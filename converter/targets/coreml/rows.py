"""Tokens as rows, [b, n, c], and vectors as [b, c]: for the GPU, and for iOS 18's attention op."""

from __future__ import annotations

from torch import Tensor

from converter.targets.coreml.builder import Builder, Var, future
from converter.targets.coreml.choices import SDPA


class Rows(Builder):
    channels = 2

    def from_sequence(self, x: Var) -> Var:
        return x

    def to_sequence(self, x: Var) -> Var:
        return x

    def to_tokens(self, x: Var) -> Var:
        b, c, h, w = x.shape
        flat = self.emit("reshape", x=x, shape=[b, c, h * w])
        return self.emit("transpose", x=flat, perm=[0, 2, 1])

    def to_picture(self, tokens: Var, height: int, width: int) -> Var:
        b, _, c = tokens.shape
        flat = self.emit("transpose", x=tokens, perm=[0, 2, 1])
        return self.emit("reshape", x=flat, shape=[b, c, height, width])

    def vector(self, x: Var) -> Var:
        return x

    def over_picture(self, vector: Var) -> Var:
        return self.emit("expand_dims", x=vector, axes=[2, 3])

    def embedded(self, tokens: Var, table: Tensor, positions: Tensor) -> Var:
        return self.looked_up(tokens, table, positions)

    def linear(self, x: Var, weight: Tensor, bias: Tensor | None, activation: str) -> Var:
        y = self.emit(
            "linear",
            x=self.narrowed(x),
            weight=self.weight(weight),
            bias=self.vector_weight(bias, "bias", len(weight)),
        )
        return self.activated(y, activation)

    def layer_norm(self, x: Var, weight: Tensor, bias: Tensor, epsilon: float) -> Var:
        return self.emit(
            "layer_norm",
            x=x,
            axes=[-1],
            gamma=self.vector_weight(weight, "gamma"),
            beta=self.vector_weight(bias, "beta"),
            epsilon=self._number(epsilon),
        )

    def attention(self, q: Var, k: Var, v: Var, heads: int, causal: bool) -> Var:
        # q [b, n, c], k and v [b, m, c]
        n, c = q.shape[1:]
        mask = self.const(future(n, self.wide), "mask") if causal else None
        if self.choices.attention == SDPA:
            q, k, v = (self._split(t, heads) for t in (q, k, v))
            named = {"query": q, "key": k, "value": v}
            named |= {} if mask is None else {"attn_mask": mask}
            return self._merge(self.emit("scaled_dot_product_attention", **named))
        q = self.emit("mul", x=q, y=self._number((c // heads) ** -0.5))  # n * c products, not n * m
        q, k, v = (self._split(t, heads) for t in (q, k, v))
        scores = self.emit("matmul", x=q, y=k, transpose_y=True)  # [b, heads, n, m]
        if mask is not None:
            scores = self.add(scores, mask)
        return self._merge(self.emit("matmul", x=self.emit("softmax", x=scores, axis=-1), y=v))

    def _split(self, t: Var, heads: int) -> Var:
        b, n, c = t.shape
        t = self.emit("reshape", x=t, shape=[b, n, heads, c // heads])
        return self.emit("transpose", x=t, perm=[0, 2, 1, 3])  # [b, heads, n, d]

    def _merge(self, t: Var) -> Var:
        b, heads, n, d = t.shape
        t = self.emit("transpose", x=t, perm=[0, 2, 1, 3])
        return self.emit("reshape", x=t, shape=[b, n, heads * d])
