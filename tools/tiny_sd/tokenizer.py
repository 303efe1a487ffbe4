"""A small vocabulary in CLIP's format: byte-level BPE with an end-of-word mark.

Like CLIP's, the vocabulary is the 256 bytes, the 256 bytes as word ends, one entry per merge and
the two marks of beginning and end - so that any text at all has tokens, known word or not.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

from runtime_py.prompt_score.captions import caption
from runtime_py.prompt_score.scenes import training_scene

BEGIN, END, WORD_END = "<|startoftext|>", "<|endoftext|>", "</w>"
#: CLIP's way to cut text into words (for our plain captions; Unicode classes spelt simply).
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d|[^\W\d_]+|\d|[^\s\w]+", re.IGNORECASE)
MERGES = 320


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in CLIP's order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(others))]


def corpus(count: int, seed: int) -> Counter[str]:
    """Words of many training captions; pure ASCII, so a byte's stand-in is its character."""
    rng = random.Random(seed)
    words: Counter[str] = Counter()
    for _ in range(count):
        words.update(WORDS.findall(caption(training_scene(rng), rng).lower()))
    return words


def learn_merges(words: Counter[str], limit: int) -> list[tuple[str, str]]:
    """Plain BPE: join the most frequent pair until every word is one token or `limit` is hit."""
    pieces = {word: (*word[:-1], word[-1] + WORD_END) for word in words}
    merges: list[tuple[str, str]] = []
    while len(merges) < limit:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in pieces.items():
            for pair in zip(parts, parts[1:], strict=False):
                pairs[pair] += words[word]
        if not pairs:
            break
        # Ties broken by spelling, so that the vocabulary does not depend on dictionary order.
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        pieces = {word: _join(parts, best) for word, parts in pieces.items()}
    return merges


def _join(parts: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    joined: list[str] = []
    for part in parts:
        if joined and (joined[-1], part) == pair:
            joined[-1] += part
        else:
            joined.append(part)
    return tuple(joined)


def write_tokenizer(folder: Path, seed: int = 0) -> dict[str, int]:
    """Learn the vocabulary and write the four files of a CLIP tokenizer; returns the vocabulary."""
    merges = learn_merges(corpus(20_000, seed), MERGES)
    alphabet = byte_alphabet()
    entries = [*alphabet, *(c + WORD_END for c in alphabet), *(a + b for a, b in merges)]
    vocab = {entry: i for i, entry in enumerate(dict.fromkeys([*entries, BEGIN, END]))}
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["#version: 0.2", *(f"{a} {b}" for a, b in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_json(folder / "vocab.json", vocab)
    marks = {
        name: {
            "content": text,
            "lstrip": False,
            "normalized": norm,
            "rstrip": False,
            "single_word": False,
        }
        for name, text, norm in (
            ("bos_token", BEGIN, True),
            ("eos_token", END, True),
            ("unk_token", END, True),
        )
    }
    _write_json(folder / "special_tokens_map.json", {**marks, "pad_token": END})
    added = {
        str(vocab[text]): {
            "content": text,
            "lstrip": False,
            "normalized": True,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for text in (BEGIN, END)
    }
    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "bos_token": BEGIN,
        "clean_up_tokenization_spaces": True,
        "do_lower_case": True,
        "eos_token": END,
        "errors": "replace",
        "model_max_length": 77,
        "pad_token": END,
        "tokenizer_class": "CLIPTokenizer",
        "unk_token": END,
    }
    _write_json(folder / "tokenizer_config.json", config)
    return vocab


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
