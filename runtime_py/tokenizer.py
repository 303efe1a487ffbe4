"""CLIP's tokenizer: lower-cased words, cut into byte-level BPE pieces, padded to a fixed length."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime_py.errors import PocketSDError

START, END = "<|startoftext|>", "<|endoftext|>"
_BLANKS = re.compile(r"[^\S\x1c-\x1f]+")  # Unicode's white space: four less than Python's
_CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


@dataclass(frozen=True)
class Tokens:
    """Ids ready for the text encoder, and the end of the prompt that did not fit."""

    ids: NDArray[np.int32]  # [length]
    cut: str


@dataclass(frozen=True, eq=False)
class Tokenizer:
    vocabulary: Mapping[str, int]
    ranks: Mapping[tuple[str, str], int]
    length: int = 77
    added: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def from_files(
        cls, vocab: Path, merges: Path, length: int, added: Mapping[str, tuple[int, ...]]
    ) -> Tokenizer:
        try:
            vocabulary = json.loads(vocab.read_text(encoding="utf-8"))
            lines = merges.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise PocketSDError(f"cannot read the tokenizer, {error}", where=vocab.parent) from None
        pairs = [line.split() for line in lines if line.strip() and not line.startswith("#version")]
        if any(len(pair) != 2 for pair in pairs):
            raise PocketSDError("a merge is not a pair of pieces", where=merges)
        missing = [t for t in (START, END) if t not in vocabulary]
        if missing:
            raise PocketSDError(f"the vocabulary has no {missing[0]}", where=vocab)
        ranks = {(first, second): rank for rank, (first, second) in enumerate(pairs)}
        return cls(vocabulary, ranks, length, added)

    def __call__(self, prompt: str) -> Tokens:
        pieces = list(self._pieces(prompt))
        room = self.length - 2
        kept = [id_ for id_, _ in pieces[:room]]
        cut = "".join(word for _, word in pieces[room:])
        start, end = self.vocabulary[START], self.vocabulary[END]
        ids = [start, *kept] + [end] * (self.length - 1 - len(kept))  # SD 1.x pads with the end
        return Tokens(np.array(ids, np.int32), cut.strip())

    def _pieces(self, prompt: str) -> Iterator[tuple[int, str]]:
        """Each token's id with the text it stands for (for the message about what was cut)."""
        prompt = normalise(prompt)
        special = {**{t: (self.vocabulary[t],) for t in (START, END)}, **self.added}
        by_length = sorted(special, key=len, reverse=True)
        for part in re.split(f"({'|'.join(re.escape(token) for token in by_length)})", prompt):
            if part in special:
                yield from ((id_, f" {part}") for id_ in special[part])
                continue
            for word in words(part):
                for piece in self._merge(word):
                    # Every byte is in a CLIP vocabulary; a trimmed one falls back as CLIP does.
                    id_ = self.vocabulary.get(piece, self.vocabulary[END])
                    yield id_, _readable(piece)

    def _merge(self, word: str) -> list[str]:
        alphabet = _byte_alphabet()
        pieces = [alphabet[byte] for byte in word.encode("utf-8")]
        pieces[-1] += "</w>"
        while len(pieces) > 1:
            pairs = list(zip(pieces, pieces[1:], strict=False))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            merged, i = [], 0
            while i < len(pieces):
                if tuple(pieces[i : i + 2]) == best:
                    merged.append(pieces[i] + pieces[i + 1])
                    i += 2
                else:
                    merged.append(pieces[i])
                    i += 1
            pieces = merged
        return pieces


def normalise(prompt: str) -> str:
    """Compose accents, make every run of blanks one space, and lower the case."""
    composed = _BLANKS.sub(" ", unicodedata.normalize("NFC", prompt))
    # One by one: as a whole string Python would give a final sigma its own form; CLIP does not.
    return "".join(character.lower() for character in composed)


def words(text: str) -> Iterator[str]:
    """Contractions, runs of letters, single digits, runs of anything else that is not a blank."""
    i = 0
    while i < len(text):
        contraction = next((c for c in _CONTRACTIONS if text.startswith(c, i)), None)
        if contraction:
            yield contraction
            i += len(contraction)
            continue
        kind, end = _kind(text[i]), i + 1
        if kind in ("letter", "other"):
            while end < len(text) and _kind(text[end]) == kind:
                end += 1
        if kind != "blank":
            yield text[i:end]
        i = end


def _kind(character: str) -> str:
    if _BLANKS.match(character):
        return "blank"
    return {"L": "letter", "N": "digit"}.get(unicodedata.category(character)[0], "other")


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[int, str]:
    """A printable character for every byte: itself where it prints, else one from 256 upwards."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }


def _readable(piece: str) -> str:
    back = {character: byte for byte, character in _byte_alphabet().items()}
    text = bytes(back[c] for c in piece.removesuffix("</w>")).decode("utf-8", "replace")
    return text + (" " if piece.endswith("</w>") else "")
