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

    @property
    def shares_rows(self) -> bool:
        """Whether eight neighbours have eight rows to read for each other."""
        return self.rows == self.across == 8


@dataclass(frozen=True)
class Tuning:
    softmax: str = "partial"  # or "naive": written out, then read by the next product
    flash: bool = True
    fused_norm: bool = True
    fused_gelu: bool = True
    winograd: bool = True

    #: Heads up to this size: larger ones do not fit an invocation's registers.
    flash_head: int = 64
    #: Fewer keys or queries than these are not worth it.
    flash_tokens: int = 256
    #: Scores of so many bytes at most live at once: one head of 4096 x 4096 in f16.
    score_bytes: int = 2 * 4096 * 4096

    def attention(self, queries: int, keys: int, head: int, causal: bool) -> str:
        few = min(queries, keys) < self.flash_tokens
        if self.flash and not causal and not few and head <= self.flash_head:
            return "flash"
        return self.softmax

    #: Of a transformed strip; more of a picture is not held at once.
    winograd_bytes: int = 16 * 2**20
    #: Fewer channels, or fewer tiles, and the transforms cost more than the products save. It also
    #: keeps the four times larger weights to where pictures are large and channels few.
    winograd_channels: int = 128
    winograd_tiles: int = 128
    winograd_size: int = 4

    def winograd_tile(self, pixels: int, into: int, out: int) -> int:
        """The tile's side for a 3x3 convolution, 0 for the plain kernel."""
        few = pixels < self.winograd_tiles * self.winograd_size**2
        if not self.winograd or min(into, out) < self.winograd_channels or few:
            return 0
        return self.winograd_size

    def matmul_tile(self, rows: int, vec4s: int) -> Tile:
        if rows < 8:
            return Tile(rows, 1, 16, 1)
        return Tile(8, 1, 8, 8)

    def conv_tile(self, width: int, vec4s: int) -> Tile:
        return Tile(min(8, width) if width % 8 == 0 or width > 8 else 4, 1, 8, 8)


BASELINE = Tuning(softmax="naive", flash=False, fused_norm=False, fused_gelu=False, winograd=False)
