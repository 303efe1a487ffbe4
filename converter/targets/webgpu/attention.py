"""Attention in its three forms: scores written out, partially fused, and in one kernel."""

from __future__ import annotations

from typing import Any

from converter.targets.webgpu.builder import Builder, Value
from converter.targets.webgpu.tuning import ceil_div


class Attention(Builder):
    def attend(self, q: Value, k: Value, v: Value, heads: int, causal: bool, form: str) -> Value:
        """q [b, n, heads * d], k and v [b, m, heads * d]; the heads lie in the channels."""
        (b, n, c), m = q.shape, k.shape[1]
        d = c // heads
        assert d % 4 == 0, "heads are whole vec4s"
        y = self.new(b, n, c)
        if form == "flash":
            self._flash(q, k, v, y, heads)
            return y
        pitch = ceil_div(m, 4)  # vec4s from row to row of the scores
        at_once = max(1, self.tuning.score_bytes // (n * pitch * 4 * self.item))
        for first in range(0, b * heads, at_once):
            count = min(at_once, b * heads - first)
            scores = self.new(count * n, m)
            place = {"HEADS": heads, "Z0": first, "M": n}
            self._product(
                [q, k, scores],
                {"form": "rows", "heads": True},
                {**place, "N": m, "N4": pitch, "K4": d // 4, "LDA": c // 4, "LDB": c // 4,
                 "LDC": pitch, "A_BATCH": n * c // 4, "A_HEAD": d // 4, "B_BATCH": m * c // 4,
                 "B_HEAD": d // 4, "C_HEAD": n * pitch, "SCALE": d**-0.5},
                (n, pitch, count), 2 * count * n * m * d,
            )  # fmt: skip
            partial = form == "partial"
            summary = self.new_bytes(count * n * 8) if partial else None
            self.emit(
                "softmax",
                [scores, summary],
                (n, count),
                options={"summary": partial, "causal": causal, "threads": 64},
                constants={"N": n, "M": m, "LD": pitch},
                flops=4 * count * n * m,
            )
            self._product(
                [scores, v, y, summary],
                {"form": "columns", "heads": True, "softmax": partial, "causal": causal},
                {**place, "K": m, "N4": d // 4, "K4": pitch, "LDA": pitch, "LDB": c // 4,
                 "LDC": c // 4, "A_HEAD": n * pitch, "B_BATCH": m * c // 4, "B_HEAD": d // 4,
                 "C_BATCH": n * c // 4, "C_HEAD": d // 4},
                (n, d // 4, count), 2 * count * n * m * d,
            )  # fmt: skip
        return y

    def _product(
        self,
        operands: list[Value | None],
        options: dict[str, Any],
        constants: dict[str, float],
        size: tuple[int, int, int],
        flops: int,
    ) -> None:
        rows, vec4s, count = size
        tile = self.tuning.matmul_tile(rows, vec4s)
        groups = (
            ceil_div(vec4s, tile.across * tile.columns),
            ceil_div(rows, tile.rows * tile.down),
            count,
        )
        form = tile.together()
        self.emit(
            "gemm", operands, groups, options={**options, **tile.options}, constants=constants,
            flops=flops, together=None if form is None else form.options,
        )  # fmt: skip

    def _flash(self, q: Value, k: Value, v: Value, y: Value, heads: int) -> None:
        (b, n, c), m = q.shape, k.shape[1]
        d = c // heads
        threads, queries = 32, 2 if d <= 64 else 1  # what an invocation's registers hold
        self.emit(
            "flash",
            [q, k, v, y],
            (ceil_div(n, threads * queries), b * heads),
            options={"d4": d // 4, "threads": threads, "queries": queries, "block": 4},
            constants={
                "N": n, "M": m, "HEADS": heads, "LDQ": c // 4, "LDK": c // 4, "SCALE": d**-0.5,
            },
            flops=4 * b * heads * n * m * d,
            together={"threads": threads // 4, "queries": queries * 4},
        )  # fmt: skip
