"""Golden vectors of the tokenizer: prompts of all kinds, and how characters are read."""

from __future__ import annotations

import json
import random
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime_py.tokenizer import END, START, Tokenizer, _byte_alphabet, normalise, words
from tools.fake_engine import LENGTH
from tools.tiny_sd.tokenizer import learn_merges

TINY_TOKENIZER = Path(__file__).resolve().parent.parent / "mobile_assets/tiny-sd/tokenizer"
USUAL_MARKS = "\u0300\u0301\u0302\u0308\u030a\u0323\u0327\u0342"

PROMPTS = (
    "",
    " ",
    "a red circle, on a white background",
    "  two   blanks\tand a tab\n and a line  ",
    "A Lighthouse at DUSK, 35mm (masterpiece:1.2), [trees], don't; it'll we've I'd you're 'S",
    "!'s 'sx 'll''ve ''' it's'nt",
    "don't 2nd ½ ² ٣ Ⅷ ǅ Straße İstanbul ΌΣΟΣ ΣΑΣ ﬁne ＦＵＬＬ",
    "日本語の桜、夜の東京タワー 한국어 그림 中文",
    "日本",  # one word of three pieces at most
    "🐈\u200d⬛ cat 👩🏽\u200d🚀 🇩🇪 1️⃣ ☎\ufe0f",
    "e\u0301 \u00e9 A\u030a \u212b \u1e9b\u0323 q\u0307\u0323 q\u0323\u0307 ᄒ\u1161\u11ab 각",
    "control \x00\x01\x07\x1b\x1c\x1d\x1e\x1f\x7f\x80\x85\x9f marks",
    "spaces \u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u180e\u200b\ufeff done",
    "right \u202eleft\u202c عربى हिन्दी ไทย עברית\u05b0 \U0001d400\U0001f600\U00020000\U000e0041",
    "\ue000\U000f0000\ufffd\ufffe private and not characters",
    "<|startoftext|>red<|endoftext|> <|STARTOFTEXT|> <|endoftext| >",
    "red " * 100,
    "red " * 74 + "bluegreenish square, cut in the middle of a word",
    "unbelievablylongwordthatneverends" * 12,
    "日" * 60,
    "the\r\nred\rcircle\v\f.",
    "a <Cat> and <cat> and my-style, <cat><cat> <cat",
)
ADDED = {"<cat>": (900, 901), "my-style": (902,), "<cat": (903,), "日本": (904,)}
CORPUS = (
    "an éclair in the café, naïve crème brûlée, the lighthouse at dusk, a painting of the sea",
    "日本語 日本 桜の絵 東京タワー 日本の桜, 🐈 🐈 🚀 cats, the cat's painting",
    "don't 12345 +++ ... !!!",
    "Straße straße İstanbul, ΌΣΟΣ, the the the, digital art, 4k, highly detailed, sharp focus",
)


def tokenizer() -> dict[str, Any]:
    tiny = Tokenizer.from_files(
        TINY_TOKENIZER / "vocab.json", TINY_TOKENIZER / "merges.txt", LENGTH, {}
    )
    learned = _learned()
    cases = [("tiny-sd", tiny, {}), ("learned", learned, {}), ("learned", learned, ADDED)]
    return {
        "about": "A case's ids come from the tokenizer it names and the added words given. tiny-sd"
        " is ../tiny-sd/tokenizer; learned stands here, as the contents of its two files.",
        "length": LENGTH,
        "learned": {
            "vocab": json.dumps(learned.vocabulary),
            "merges": "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in learned.ranks),
        },
        "cases": [
            {
                "tokenizer": name,
                "added": {word: list(ids) for word, ids in added.items()},
                "prompt": prompt,
                "ids": tokens.ids.tolist(),
                "cut": tokens.cut,
            }
            for name, source, added in cases
            for prompt in PROMPTS
            for tokens in [Tokenizer(source.vocabulary, source.ranks, LENGTH, added)(prompt)]
        ],
        "characters": _characters(),
    }


def _learned() -> Tokenizer:
    """A vocabulary with merges of every kind of character, which tiny-sd's does not have."""
    counts = Counter(
        "".join(alphabet[byte] for byte in word.encode())
        for alphabet in [_byte_alphabet()]
        for word in words(normalise(" ".join(CORPUS)))
    )
    merges = learn_merges(counts, 260)
    characters = list(_byte_alphabet().values())
    entries = [*characters, *(c + "</w>" for c in characters), *(a + b for a, b in merges)]
    entries = [*dict.fromkeys(entries), START, END]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    return Tokenizer(vocabulary, {pair: rank for rank, pair in enumerate(merges)}, LENGTH)


def _characters() -> dict[str, Any]:
    """All characters of Unicode 3.2, whose properties no later version is likely to touch."""
    known = [
        code
        for code in range(0x110000)
        if unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs")
    ]
    ranges: list[list[int]] = []
    for code in known:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    pages: dict[int, list[str]] = {}
    for code in known:
        text = normalise(f"{chr(code)}a{chr(code)}\u0301'{chr(code)}7{chr(code)}")
        pages.setdefault(code >> 12, []).append("\x00".join([text, *words(text)]) + "\x01")
    return {
        "about": "For each character c of these ranges (both ends included): normalise"
        ' c "a" c U+0301 "\'" c "7" c, and write that, then each of its words after a byte 0, then'
        " a byte 1. The CRC-32 of it all, for each page of 4096 characters, in their order."
        " `composed` has texts and their normal form C.",
        "composed": list(_accented(known)),
        "ranges": ranges,
        "crc32": [[page, zlib.crc32("".join(text).encode())] for page, text in pages.items()],
    }


def _accented(known: list[int]) -> Iterator[list[str]]:
    """Texts of letters, Korean ones too, each with a heap of marks to be sorted and joined."""
    rng = random.Random(0)
    marks = [chr(code) for code in known if unicodedata.combining(chr(code))]
    joined = [
        chr(c) for c in known if unicodedata.decomposition(chr(c)).partition(" ")[0].isalnum()
    ]
    korean = [
        chr(code)
        for code in (*range(0x1100, 0x1113), *range(0x1161, 0x1176), *range(0x11A7, 0x11C3))
    ]
    for _ in range(200):
        text = "".join(
            rng.choice(rng.choice((joined, marks, USUAL_MARKS, korean, "aeiousgAEO")))
            for _ in range(rng.randint(2, 8))
        )
        yield [text, unicodedata.normalize("NFC", text)]
