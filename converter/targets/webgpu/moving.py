"""What computes little and mostly moves tensors."""

from __future__ import annotations

from converter.targets.webgpu.builder import Builder, Joined, Value
from converter.targets.webgpu.tuning import ceil_div


class Moving(Builder):
    def joined(self, first: Value, second: Value) -> Joined:
        return Joined(first, second)

    def elementwise(self, op: str, x: Value, y: Value | None = None) -> Value:
        """An activation of x, or its sum or product with y; y may hold one row for many."""
        result = self.new(*x.shape)
        rows = 0 if y is None or y.rows == x.rows else x.rows // y.rows
        count = x.rows * x.vec4s
        self.emit(
            "elementwise",
            [x, y, result],
            self.spread(ceil_div(count, 64)),
            options={"op": op},
            constants={"COUNT": count} | ({"ROWS": rows, "C4": x.vec4s} if op == "add" else {}),
        )
        return result

    def materialise(self, x: Value | Joined) -> Value:
        """Two tensors copied side by side, where what comes next cannot read them apart."""
        if isinstance(x, Value):
            return x
        assert x.first.channels % 4 == 0, "the first of two joined tensors fills its vec4s"
        y = self.new(*x.shape)
        offset = 0
        for part in (x.first, x.second):
            count = part.rows * part.vec4s
            self.emit(
                "elementwise",
                [part, y],
                self.spread(ceil_div(count, 64)),
                options={"op": "copy"},
                constants={
                    "COUNT": count, "C4": part.vec4s, "LD": y.vec4s, "OFFSET": offset,
                },
            )  # fmt: skip
            offset += part.vec4s
        return y
