"""Tokens as columns, [b, c, 1, n], and vectors as [b, c, 1, 1]: for the Neural Engine.

It works on four axes with the channels second, and its convolutions are its matrix products. So
projections are 1x1 convolutions, norms run over axis 1, and attention goes head by head: nothing
is transposed but the keys.
"""

from __future__ import annotations

from torch import Tensor

from converter.targets.coreml.builder import Builder, Var, future
from converter.targets.coreml.choices import SPLIT_V2

#: Of attention in its second form: scores of so many queries at a time stay in fast memory.
QUERIES = 512
PRODUCT = "nchw,nwhu->nchu"  # the one equation of matrices that Core ML's einsum takes


class Columns(Builder):
    channels = 1

    def from_sequence(self, x: Var) -> Var:
        # [b, n, c] -> [b, c, 1, n]
        return self.emit("transpose", x=self.emit("expand_dims", x=x, axes=[1]), perm=[0, 3, 1, 2])

    def to_sequence(self, x: Var) -> Var:
        return self.emit("squeeze", x=self.emit("transpose", x=x, perm=[0, 2, 3, 1]), axes=[1])

    def to_tokens(self, x: Var) -> Var:
        b, c, h, w = x.shape
        return self.emit("reshape", x=x, shape=[b, c, 1, h * w])

    def to_picture(self, tokens: Var, height: int, width: int) -> Var:
        b, c = tokens.shape[:2]
        return self.emit("reshape", x=tokens, shape=[b, c, height, width])

    def vector(self, x: Var) -> Var:
        return self.emit("expand_dims", x=x, axes=[2, 3])

    def over_picture(self, vector: Var) -> Var:
        return vector

    def embedded(self, tokens: Var, table: Tensor, positions: Tensor) -> Var:
        return self.from_sequence(self.looked_up(tokens, table, positions))

    def linear(self, x: Var, weight: Tensor, bias: Tensor | None, activation: str) -> Var:
        y = self.emit(
            "conv",
            x=self.narrowed(x),
            weight=self.weight(weight, (*weight.shape, 1, 1)),
            bias=self.vector_weight(bias, "bias", len(weight)),
            pad_type="valid",
        )
        return self.activated(y, activation)

    def layer_norm(self, x: Var, weight: Tensor, bias: Tensor, epsilon: float) -> Var:
        return self.affine(self.standardised(x, (1,), epsilon), weight, bias)

    def attention(self, q: Var, k: Var, v: Var, heads: int, causal: bool) -> Var:
        # q [b, c, 1, n], k and v [b, c, 1, m]
        c, n = q.shape[1], q.shape[3]
        q = self.emit("mul", x=q, y=self._number((c // heads) ** -0.5))
        k = self.emit("transpose", x=k, perm=[0, 3, 2, 1])  # [b, m, 1, c]
        mask = None
        if causal:
            assert n == k.shape[1]
            mask = self.const(future(n, self.wide).T[None, :, None], "mask")  # [1, m, 1, n]
        queries, keys, values = (self._parts(*t, heads) for t in ((q, 1), (k, 3), (v, 1)))
        triples = zip(queries, keys, values, strict=True)
        return self._joined([self._head(*triple, mask) for triple in triples], 1)

    def _head(self, q: Var, k: Var, v: Var, mask: Var | None) -> Var:
        # q [b, d, 1, n], k [b, m, 1, d], v [b, d, 1, m]
        n = q.shape[3]
        if self.choices.attention != SPLIT_V2 or n <= QUERIES:
            return self._queries(q, k, v, mask)
        assert mask is None, "causal attention is never cut: its sequence is short"
        sizes = [QUERIES] * (n // QUERIES) + [n % QUERIES] * (n % QUERIES > 0)
        parts = self.emit("split", x=q, split_sizes=sizes, axis=3)
        return self._joined([self._queries(part, k, v, None) for part in parts], 3)

    def _queries(self, q: Var, k: Var, v: Var, mask: Var | None) -> Var:
        scores = self.emit("einsum", values=[k, q], equation=PRODUCT)  # [b, m, 1, n]
        if mask is not None:
            scores = self.add(scores, mask)
        weights = self.emit("softmax", x=scores, axis=1)
        return self.emit("einsum", values=[v, weights], equation=PRODUCT)  # [b, d, 1, n]

    def _parts(self, t: Var, axis: int, count: int) -> list[Var]:
        return [t] if count == 1 else list(self.emit("split", x=t, num_splits=count, axis=axis))

    def _joined(self, parts: list[Var], axis: int) -> Var:
        return parts[0] if len(parts) == 1 else self.emit("concat", values=parts, axis=axis)
