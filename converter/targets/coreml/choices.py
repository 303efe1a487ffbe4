"""What a Core ML component can be asked for, and what does not go together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from converter.targets import Setting
from runtime_py.errors import PocketSDError

IOS = ("18", "17", "16")
SDPA, ORIGINAL, SPLIT, SPLIT_V2 = "sdpa", "original", "split-einsum", "split-einsum-v2"
ATTENTION = (SDPA, ORIGINAL, SPLIT, SPLIT_V2)
SCALED, PLAIN, WIDE, MEASURED = "scaled", "plain", "fp32", "measured"
NORMS = (SCALED, PLAIN, WIDE, MEASURED)

SETTINGS = (
    Setting("ios", "18", "the oldest iOS it must run on", IOS),
    Setting(
        "attention",
        "",
        "its form: one op (iOS 18), plain matrices (GPU), or split by head for the Neural Engine;"
        " v2 also takes 512 queries at a time [sdpa from iOS 18 on, else split-einsum]",
        ("", *ATTENTION),
    ),
    Setting(
        "norms",
        SCALED,
        "GroupNorm's statistics: in fp16 after scaling, so that squares cannot overflow; plainly in"
        " fp16; in fp32; or whichever of the last two a calibration shows to be needed",
        NORMS,
    ),
    Setting("islands", "", "layers computed in fp32: regular expressions, separated by commas"),
    Setting("chunks", "1", "into how many parts of about equal weight the component is cut"),
)


@dataclass(frozen=True)
class Choices:
    """The settings of one component."""

    ios: int = 18
    attention: str = SDPA
    norms: str = SCALED
    islands: tuple[re.Pattern[str], ...] = ()
    chunks: int = 1

    @property
    def columns(self) -> bool:
        """Whether tokens are laid out for the Neural Engine."""
        return self.attention in (SPLIT, SPLIT_V2)

    def is_island(self, layer: str) -> bool:
        return any(pattern.search(layer) for pattern in self.islands)


def choices(settings: Mapping[str, str]) -> Choices:
    ios = int(settings["ios"])
    attention = settings["attention"] or (SDPA if ios >= 18 else SPLIT)
    if attention == SDPA and ios < 18:
        raise PocketSDError(
            f"attention sdpa needs iOS 18, not {ios}",
            mend=f"--set ios=18, or --set attention={SPLIT}",
        )
    return Choices(
        ios=ios,
        attention=attention,
        norms=settings["norms"],
        islands=tuple(_pattern(p) for p in settings["islands"].split(",") if p),
        chunks=_count(settings["chunks"]),
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise PocketSDError(f"islands: {text!r} is no regular expression, {error}") from None


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 16:
        raise PocketSDError(f"chunks is {text!r}, must be 1 to 16")
    return int(text)
