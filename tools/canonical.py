#!/usr/bin/env python3
"""Unicode's canonical mappings as a Swift table, from Python's own.

    python3 -m tools.canonical     write CanonicalMappings.swift anew

Swift has no public normal form in its standard library, and Foundation's composes U+20041 and an
accent to á: it looks at 16 bits of a character. A prompt must mean the same on every device.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator
from pathlib import Path

SWIFT = (
    Path(__file__).resolve().parent.parent
    / "mobile_assets/ios/Sources/PocketSDCore/CanonicalMappings.swift"
)
HANGUL = range(0xAC00, 0xD7A4)  # by arithmetic, not by table


def mappings() -> Iterator[tuple[int, str]]:
    """Each character with a canonical mapping, and the mapping as the table spells it."""
    for code in range(0x110000):
        decomposition = unicodedata.decomposition(chr(code))
        if not decomposition or decomposition.startswith("<") or code in HANGUL:
            continue
        parts = [int(part, 16) for part in decomposition.split()]
        composed = unicodedata.normalize("NFC", chr(code)) == chr(code)
        yield code, ("+" if composed else "-").join(f"{part:x}" for part in parts)


def swift() -> str:
    runs: list[str] = []
    last = -1
    for code, spelling in mappings():
        runs += [spelling] if code == last + 1 else [f"{code:x}:", spelling]
        last = code
    lines = textwrap.wrap(" ".join(runs), 94, break_on_hyphens=False, break_long_words=False)
    body = "".join(f"    {line}\n" for line in lines)
    return (
        "/// Written by tools/canonical.py from Unicode"
        f" {unicodedata.unidata_version}.\n"
        "///\n"
        '/// "c0:" begins a run of consecutive characters. A mapping is to one character (212b),\n'
        "/// to two that compose again (41+300), or to two that do not (915-93c).\n"
        f'let canonicalMappings = """\n{body}    """\n'
    )


if __name__ == "__main__":
    SWIFT.write_text(swift(), encoding="ascii")
    print(f"{SWIFT.name}: {SWIFT.stat().st_size / 1000:.0f} kB")
