"""Which form of a kernel is used where, and how much each invocation computes.

Every switch is an optimisation that an ablation can take away again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """An invocation's rows and vec4 columns, and a workgroup's invocations along each."""

    rows: int
    columns: int
    across: int
    down: int

    def together(self, run: int = 16) -> Tile | None:
        """The same part of the result for eight neighbours that read rows for each other: twice
        the rows and columns to an invocation, so that what is read serves more products. Its rows
        must come from a `run` of them."""
        if self.rows != 8 or self.across % 8:
            return None
        rows = 2 if run % 16 == 0 and self.down % 2 == 0 else 1
        columns = 2 if self.across % 16 == 0 else 1
        return Tile(8 * rows, columns, self.across // columns, self.down // rows)

    @property
    def options(self) -> dict[str, int]:
        return {"tm": self.rows, "tn": self.columns, "wx": self.across, "wy": self.down}


@dataclass(frozen=True)
class Tuning:
    softmax: str = "partial"  # or "naive": written out, then read by the next product
    flash: bool = True
    fused_norm: bool = True
    fused_gelu: bool = True
    winograd: bool = True

    #: Heads up to this size: larger ones do not fit an invocation's registers.
    flash_head: int = 64
    #: Fewer queries, or fewer keys, than these are not worth it.
    flash_queries: int = 256
    flash_keys: int = 64
    #: Scores of so many bytes at most live at once: one head of 4096 x 4096 in f16.
    score_bytes: int = 2 * 4096 * 4096

    def attention(self, queries: int, keys: int, head: int, causal: bool) -> str:
        few = queries < self.flash_queries or keys < self.flash_keys
        if self.flash and not causal and not few and head <= self.flash_head:
            return "flash"
        return self.softmax

    #: Of a transformed strip; more of a picture is not held at once.
    winograd_bytes: int = 16 * 2**20
    #: Tiles to choose from: larger ones are too inexact for f16.
    winograd_tiles: tuple[int, ...] = (2, 4)
    #: Multiplications in the drawing of one picture that a weight has to save which is stored more
    #: than the plain kernel has. It keeps the larger kernels to where pictures are large and
    #: channels few: deep layers have most of the weights and little of the work.
    winograd_price: float = 3000
    #: Of a transformed kernel: what WebGPU lets every adapter bind at once.
    winograd_kernel_bytes: int = 128 * 2**20

    def winograd_tile(self, pixels: int, into: int, out: int, *, item: int, runs: int) -> int:
        """The tile's side for a 3x3 convolution of so many runs in a picture, 0 for the plain
        kernel. Counted in multiplications, what the transforms cost included."""
        if not self.winograd:
            return 0
        most = self.winograd_kernel_bytes // (into * out * item)
        plain = 9 * ceil_div(pixels, 8) * 8 * into * out

        def gain(tile: int) -> float:
            side, tiles = tile + 2, ceil_div(pixels, tile**2)
            products = side**2 * ceil_div(tiles, 8) * 8 * into * out
            transforms = TRANSFORM * side**2 * tiles * (into + out)
            added = (side**2 - 9) * into * out
            return runs * (plain - products - transforms) - self.winograd_price * added

        possible = [tile for tile in self.winograd_tiles if (tile + 2) ** 2 <= most]
        return max((0, *possible), key=lambda tile: gain(tile) if tile else 0.0)

    def matmul_tile(self, rows: int, vec4s: int, pairs: bool = False) -> Tile:
        """`pairs`: every column comes with a second one, so that one is enough."""
        if rows < 8:
            return Tile(rows, 1, 16, 1)
        wide = ceil_div(vec4s, 16) * 16 <= 1.1 * vec4s and not pairs
        high = Tile(8, 1, 16, 4) if wide else Tile(8, 1, 8, 8)
        # Few rows would leave most of such a workgroup without work. No more than these four: each
        # is another shader to compile.
        eights = ceil_div(rows, 8)
        fits = ceil_div(eights, high.down) * high.down <= 1.1 * eights
        return high if fits else Tile(8, 1, 32 if wide else 8, 1)

    def conv_tile(self, width: int, vec4s: int) -> Tile:
        return Tile(min(8, width) if width % 8 == 0 or width > 8 else 4, 1, 8, 8)


#: Multiplications that the transforms of one value of a tile take as long as.
TRANSFORM = 30


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


BASELINE = Tuning(softmax="naive", flash=False, fused_norm=False, fused_gelu=False, winograd=False)
