"""GroupNorm, in one kernel or, to compare with, in three."""

from __future__ import annotations

import math

from torch import Tensor

from converter.targets.webgpu.builder import Joined, Value, Weight
from converter.targets.webgpu.moving import Moving
from converter.targets.webgpu.tuning import ceil_div

#: As many as WebGPU lets every adapter have: there are few groups, and each is large.
THREADS = 256


class Norms(Moving):
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
            options={
                "wide": wide,
                "join": len(parts) > 1,
                "silu": silu,
                "threads": THREADS,
            },
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
                options={"step": step, "threads": THREADS},
                constants={**sizes, **more},
                flops=3 * x.rows * x.channels,
            )
        return y
