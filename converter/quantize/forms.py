"""The forms in which a layer's weights can be stored, and the names that people type for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import prod

from runtime_py.errors import PocketSDError

PALETTE_BITS = (1, 2, 3, 4, 6, 8)
AFFINE_BITS = (4, 8)
#: One scale for a whole channel is too coarse at four bits, so there `int4` means blocks of 32.
USUAL_BLOCK = {4: 32, 8: None}
_NAME = re.compile(
    r"fp16|palette(?P<entries>\d)(-g(?P<group>\d+))?|int(?P<bits>\d)(-(b(?P<block>\d+)|channel))?"
)


@dataclass(frozen=True)
class Half:
    """As they are, in fp16."""

    def __str__(self) -> str:
        return "fp16"


@dataclass(frozen=True)
class Palette:
    """Numbers into a table of 2**bits values: one for all, or one per `group` output channels."""

    bits: int
    group: int | None = None

    def __post_init__(self) -> None:
        _require(self.bits, PALETTE_BITS, "a palette", self.group)

    def __str__(self) -> str:
        return f"palette{self.bits}" + (f"-g{self.group}" if self.group else "")


@dataclass(frozen=True)
class Affine:
    """Integers times a scale: one per output channel, or one per `block` of its inputs."""

    bits: int
    block: int | None = None

    def __post_init__(self) -> None:
        _require(self.bits, AFFINE_BITS, "an integer", self.block)

    def __str__(self) -> str:
        if self.block == USUAL_BLOCK[self.bits]:
            return f"int{self.bits}"
        return f"int{self.bits}-" + (f"b{self.block}" if self.block else "channel")


WeightForm = Half | Palette | Affine
FP16 = Half()
#: What help and error messages list; any group and any block can be typed.
NAMES = (
    "fp16",
    *("int8", "int4"),
    *(f"palette{bits}" for bits in reversed(PALETTE_BITS)),
    *("palette4-g16", "int4-b64", "int4-channel"),
)


def parse_form(name: str) -> WeightForm:
    """The inverse of `str`."""
    found = _NAME.fullmatch(name)
    if found is None:
        near = get_close_matches(name, NAMES, n=1) or [f"there are {', '.join(NAMES)}"]
        raise PocketSDError(f"no form {name!r} of weights", mend=near[0])
    if found["entries"]:
        return Palette(int(found["entries"]), int(found["group"]) if found["group"] else None)
    if found["bits"]:
        bits = int(found["bits"])
        usual = None if name.endswith("-channel") else USUAL_BLOCK.get(bits)
        return Affine(bits, int(found["block"]) if found["block"] else usual)
    return FP16


def fitted(form: WeightForm, shape: Sequence[int]) -> WeightForm:
    """The form that weights [out, in, ...] really get: groups and blocks have to divide evenly.

    Where they do not, they shrink to the next divisor. One of less than half the size would cost
    more in tables or scales than it is worth: then one table, or one scale per channel, has to do.
    """
    if isinstance(form, Palette) and form.group:
        return replace(form, group=_piece(shape[0], form.group))
    if isinstance(form, Affine) and form.block:
        return replace(form, block=_piece(shape[1], form.block))
    return form


def bits_per_weight(form: WeightForm, shape: Sequence[int]) -> float:
    """With tables and scales."""
    form, count = fitted(form, shape), prod(shape)
    if isinstance(form, Half):
        return 16.0
    if isinstance(form, Palette):
        tables = shape[0] // (form.group or shape[0])
        return form.bits + tables * 2**form.bits * 16 / count
    scales = shape[0] * (shape[1] // form.block if form.block else 1)
    return form.bits + scales * 16 / count


def _piece(length: int, wanted: int) -> int | None:
    largest = max(n for n in range(1, min(wanted, length) + 1) if length % n == 0)
    return None if largest == length or 2 * largest < wanted else largest


def _require(bits: int, allowed: tuple[int, ...], what: str, piece: int | None) -> None:
    if bits not in allowed:
        raise PocketSDError(f"{what} of {bits} bits is none of {', '.join(map(str, allowed))}")
    if piece is not None and piece < 1:
        raise PocketSDError(f"{what} form needs groups or blocks of at least 1, not {piece}")
