"""The two kernels that nearly all arithmetic goes through: matrix products and convolutions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from converter.targets.webgpu.builder import Builder, Joined, Value, Weight, ceil_div
from converter.targets.webgpu.winograd import transformed, winograd


class Kernels(Builder):
    """The vocabulary that the lowerings of the ops are written in."""

    def matmul(
        self,
        x: Value | Joined,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str = "",
        *,
        vector: Value | None = None,
        residual: Value | None = None,
    ) -> Value:
        """x [..., k] times weight [n, k]; `vector` [b, n] is added to every row of its sample."""
        if isinstance(x, Joined):  # the product of a sum of columns is a sum of products
            assert not activation
            cut = x.first.channels
            label, part = self.label, self.matmul(x.first, weight[:, :cut], residual=residual)
            self.label = f"{label}.second"
            y = self.matmul(x.second, weight[:, cut:], bias, vector=vector, residual=part)
            self.label = label
            return y
        pair = activation == "geglu"
        n = len(weight) // 2 if pair else len(weight)
        y = self.new(*x.shape[:-1], n)
        w, scale = self.matrix(self.label, weight.T)
        b = None if bias is None else self.vector(f"{self.label}.bias", bias)
        tile = self.tuning.matmul_tile(x.rows, y.vec4s)
        self.emit(
            "gemm",
            [x, w, y, scale, b, vector, residual],
            (
                ceil_div(y.vec4s, tile.across * tile.columns),
                ceil_div(x.rows, tile.rows * tile.down),
            ),
            options={
                "form": "float" if scale is None else "int8",
                "bias": b is not None,
                "vector": vector is not None,
                "residual": residual is not None,
                "activation": activation,
                **_tiled(tile),
            },
            constants={
                "M": x.rows,
                "N4": y.vec4s,
                "K4": x.vec4s,
                "LDA": x.vec4s,
                "LDB": y.vec4s * (2 if pair else 1),
                "LDC": y.vec4s,
                **({"ROWS": x.rows // vector.rows} if vector else {}),
            },
            flops=2 * x.rows * len(weight) * x.channels,
            subgroup=tile.shares_rows,
        )
        return y

    def convolve(
        self,
        x: Value,
        weight: Tensor,
        bias: Tensor,
        stride: int,
        padding: list[int],
        upsample: int,
        *,
        vector: Value | None = None,
        residual: Value | None = None,
    ) -> Value:
        """x [b, h, w, c], weight [out, c, k, k], padding (left, right, top, bottom)."""
        b, h, w, _ = x.shape
        out, into, size, _ = weight.shape
        left, right, top, bottom = padding
        height = (h * upsample + top + bottom - size) // stride + 1
        width = (w * upsample + left + right - size) // stride + 1
        y = self.new(b, height, width, out)
        plain = size == 3 and stride == 1 and padding == [1, 1, 1, 1] and not self.int8
        if plain and (m := self.tuning.winograd_tile(height * width * b, into, out)):
            self._winograd(x, y, weight, bias, upsample, m, vector, residual)
            return y
        taps, scale = self.matrix(self.label, weight.permute(2, 3, 1, 0))
        tile = self.tuning.conv_tile(width, y.vec4s)
        self.emit(
            "conv",
            [x, taps, y, scale, self.vector(f"{self.label}.bias", bias), vector, residual],
            (
                ceil_div(y.vec4s, tile.across * tile.columns),
                ceil_div(height * ceil_div(width, tile.rows), tile.down),
                b,
            ),
            options={
                "form": "float" if scale is None else "int8",
                "size": size,
                "stride": stride,
                "up": upsample,
                "vector": vector is not None,
                "residual": residual is not None,
                **_tiled(tile),
            },
            constants={
                "H": h,
                "W": w,
                "C4": x.vec4s,
                "OH": height,
                "OW": width,
                "N4": y.vec4s,
                "TOP": top,
                "LEFT": left,
            },
            flops=2 * b * height * width * out * into * size * size,
            subgroup=tile.shares_rows,
        )
        return y

    def _winograd(
        self,
        x: Value,
        y: Value,
        weight: Tensor,
        bias: Tensor,
        upsample: int,
        m: int,
        vector: Value | None,
        residual: Value | None,
    ) -> None:
        """In strips of tiles, so that what is transformed stays small."""
        form = winograd(m)
        b, height, width, _ = y.shape
        across, planes = ceil_div(width, m), form.side**2
        tiles = b * ceil_div(height, m) * across
        kernel = torch.from_numpy(transformed(weight.numpy(), m)).float()
        w, _ = self.matrix(f"{self.label}.winograd", kernel)
        v = self.vector(f"{self.label}.bias", bias)
        each = planes * max(x.vec4s, y.vec4s) * 4 * self.item
        at_once = max(1, min(tiles, self.tuning.winograd_bytes // each))
        at_once = ceil_div(tiles, ceil_div(tiles, at_once))
        for first in range(0, tiles, at_once):
            count = min(at_once, tiles - first)
            place = {"ACROSS": across, "FIRST": first, "COUNT": count}
            inside = self.new(planes * count, x.channels)
            outside = self.new(planes * count, y.channels)
            self.emit(
                "winograd_in",
                [x, inside],
                self.spread(ceil_div(count * x.vec4s, 32)),
                options={"m": m, "b": form.b.tolist(), "up": upsample},
                constants={
                    **place, "H": x.shape[1], "W": x.shape[2], "C4": x.vec4s, "TOP": 1, "LEFT": 1,
                },
            )  # fmt: skip
            tile = self.tuning.matmul_tile(count, y.vec4s)
            self.emit(
                "gemm",
                [inside, w, outside],
                (
                    ceil_div(y.vec4s, tile.across * tile.columns),
                    ceil_div(count, tile.rows * tile.down),
                    planes,
                ),
                options={"form": "float", "planes": True, **_tiled(tile)},
                constants={
                    "M": count, "N4": y.vec4s, "K4": x.vec4s, "LDA": x.vec4s, "LDB": y.vec4s,
                    "LDC": y.vec4s,
                },
                flops=2 * planes * count * x.channels * y.channels,
                subgroup=tile.shares_rows,
            )  # fmt: skip
            self.emit(
                "winograd_out",
                [outside, y, v, vector, residual],
                self.spread(ceil_div(count * y.vec4s, 32)),
                options={
                    "m": m,
                    "a": form.a.tolist(),
                    "vector": vector is not None,
                    "residual": residual is not None,
                },
                constants={**place, "OH": height, "OW": width, "N4": y.vec4s},
            )

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
        self.emit(
            "gemm", operands, groups, options={**options, **_tiled(tile)}, constants=constants,
            flops=flops, subgroup=tile.shares_rows,
        )  # fmt: skip

    def _flash(self, q: Value, k: Value, v: Value, y: Value, heads: int) -> None:
        (b, n, c), m = q.shape, k.shape[1]
        d = c // heads
        threads, queries = 32, 2
        self.emit(
            "flash",
            [q, k, v, y],
            (ceil_div(n, threads * queries), b * heads),
            options={"d4": d // 4, "threads": threads, "queries": queries, "block": 4},
            constants={
                "N": n, "M": m, "HEADS": heads, "LDQ": c // 4, "LDK": c // 4, "SCALE": d**-0.5,
            },
            flops=4 * b * heads * n * m * d,
            subgroup=True,
        )  # fmt: skip

    def group_norm(
        self,
        x: Value | Joined,
        weight: Tensor,
        bias: Tensor,
        groups: int,
        epsilon: float,
        silu: bool,
    ) -> Value:
        """One kernel for all of it; a joined tensor is read where its halves lie."""
        if not self.tuning.fused_norm:
            y = self._group_norm_naive(self.materialise(x), weight, bias, groups, epsilon)
            return self.elementwise("silu", y) if silu else y
        y = self.new(*x.shape)
        parts = [x.first, x.second] if isinstance(x, Joined) else [x]
        size = y.channels // groups
        wide = all(n % 4 == 0 for n in (size, *(part.channels for part in parts)))
        unit = 4 if wide else 1  # what the kernel counts in
        pixels = math.prod(y.shape[1:-1])
        constants: dict[str, float] = {
            "PIXELS": pixels,
            "C": y.channels // unit,
            "GROUP": size // unit,
            "LD": y.vec4s * 4 // unit,
            "EPSILON": epsilon,
        }
        if len(parts) > 1:
            constants["FIRST"] = parts[0].channels // unit
            constants["LDA"], constants["LDB"] = (part.vec4s * 4 // unit for part in parts)
        self.emit(
            "group_norm",
            [
                *parts,
                self.vector(f"{self.label}.weight", weight),
                self.vector(f"{self.label}.bias", bias),
                y,
            ],
            (groups, y.shape[0]),
            options={"wide": wide, "join": len(parts) > 1, "silu": silu, "threads": 128},
            constants=constants,
            flops=10 * y.rows * y.channels,
        )
        return y

    def _group_norm_naive(
        self, x: Value, weight: Tensor, bias: Tensor, groups: int, epsilon: float
    ) -> Value:
        y = self.new(*x.shape)
        b, width = x.shape[0], x.vec4s * 4
        means, factors = (self.new_bytes(4 * b * groups) for _ in range(2))
        sizes = {
            "PIXELS": math.prod(x.shape[1:-1]),
            "GROUPS": groups,
            "GROUP": x.channels // groups,
            "LD": width,
        }
        affine = [
            self.vector(f"{self.label}.{n}", t) for n, t in (("weight", weight), ("bias", bias))
        ]
        steps: dict[str, tuple[list[Value | Weight | None], dict[str, float]]] = {
            "mean": ([x, means], {}),
            "variance": ([x, means, factors], {"EPSILON": epsilon}),
            "apply": ([x, means, factors, *affine, y], {"COUNT": x.rows * width}),
        }
        for step, (operands, more) in steps.items():
            spread = self.spread(ceil_div(x.rows * width, 64)) if step == "apply" else (groups, b)
            self.emit(
                "group_norm_naive",
                operands,
                spread,
                options={"step": step, "threads": 128},
                constants={**sizes, **more},
                flops=3 * x.rows * x.channels,
            )
        return y

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


def _tiled(tile: Any) -> dict[str, int]:
    return {"tm": tile.rows, "tn": tile.columns, "wx": tile.across, "wy": tile.down}
