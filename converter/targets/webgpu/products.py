"""The two kernels that nearly all arithmetic goes through: matrix products and convolutions."""

from __future__ import annotations

import torch
from torch import Tensor

from converter.targets.webgpu.builder import Builder, Joined, Value
from converter.targets.webgpu.tuning import Tile, ceil_div
from converter.targets.webgpu.winograd import transformed, winograd

#: How often a component runs for one picture, where that is more than once.
RUNS = {"unet": 20}


class Products(Builder):
    """Rows times a matrix, and convolutions, with all that is fused at their ends."""

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
        tile = self.tuning.matmul_tile(x.rows, y.vec4s, pair)
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
                **tile.options,
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
            together=_together(tile),
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
        pixels, runs = b * height * width, RUNS.get(self.component, 1)
        m = self.tuning.winograd_tile(pixels, into, out, item=self.item, runs=runs)
        if plain and m:
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
                **tile.options,
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
            together=_together(tile, width),
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
        kernel = torch.from_numpy(transformed(weight.float().numpy(), m))
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
                options={"form": "float", "planes": True, **tile.options},
                constants={
                    "M": count, "N4": y.vec4s, "K4": x.vec4s, "LDA": x.vec4s, "LDB": y.vec4s,
                    "LDC": y.vec4s,
                },
                flops=2 * planes * count * x.channels * y.channels,
                together=_together(tile),
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


def _together(tile: Tile, run: int = 16) -> dict[str, int] | None:
    form = tile.together(run)
    return None if form is None else form.options
