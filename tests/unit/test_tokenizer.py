"""Our tokenizer against transformers' CLIPTokenizer on the same files."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runtime_py.errors import PocketSDError
from runtime_py.tokenizer import Tokenizer
from tests.conftest import TINY_SD

VOCAB, MERGES = TINY_SD / "tokenizer/vocab.json", TINY_SD / "tokenizer/merges.txt"


@lru_cache(maxsize=1)
def ours() -> Tokenizer:
    return Tokenizer.from_files(VOCAB, MERGES, 77, {})


@lru_cache(maxsize=1)
def theirs():  # type: ignore[no-untyped-def]
    from transformers import CLIPTokenizer

    return CLIPTokenizer(str(VOCAB), str(MERGES))


WORDS = st.sampled_from(
    ["red", "circle", "a", "Blue", "square's", "it'll", "éa", "42", "+-", "crème"]
)


# What Unicode assigned after this Python was made is a letter to some, unknown to others.
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=60)


@given(st.one_of(TEXT, st.lists(WORDS, max_size=120).map(" ".join)))
@example("a red circle, on a white background")
@example("  two   blanks\tand a tab\n")
@example("don't 2nd ½ ² ǅ Straße İstanbul ΌΣΟΣ 日本語 🐈\u200d")
@example("<|startoftext|>red<|endoftext|>")
@example("red " * 100)
def test_ids_are_those_of_transformers(prompt: str) -> None:
    wanted = theirs()(prompt, padding="max_length", max_length=77, truncation=True)["input_ids"]
    assert ours()(prompt).ids.tolist() == wanted


@given(st.text(max_size=300))
def test_shape_and_frame(prompt: str) -> None:
    tokens = ours()(prompt)
    vocabulary = ours().vocabulary
    assert tokens.ids.shape == (77,) and tokens.ids.dtype == np.int32
    assert tokens.ids[0] == vocabulary["<|startoftext|>"]
    assert tokens.ids[-1] == vocabulary["<|endoftext|>"]


def test_what_does_not_fit_is_told() -> None:
    tokens = ours()("red " * 75 + "square on the left")
    assert tokens.cut == "square on the left"
    assert ours()("a red circle").cut == ""


def test_added_words_give_all_their_ids() -> None:
    tokenizer = Tokenizer(ours().vocabulary, ours().ranks, 77, {"<cat>": (900, 901)})
    ids = tokenizer("a <cat> and a <cat>").ids.tolist()
    assert [id_ for id_ in ids if id_ >= 900] == [900, 901, 900, 901]


def test_broken_files_are_refused(tmp_path: Path) -> None:
    merges = tmp_path / "merges.txt"
    merges.write_text("#version: 0.2\na b c\n")
    with pytest.raises(PocketSDError, match="merge is not a pair"):
        Tokenizer.from_files(VOCAB, merges, 77, {})
    vocab = tmp_path / "vocab.json"
    vocab.write_text("{")
    with pytest.raises(PocketSDError, match="cannot read the tokenizer"):
        Tokenizer.from_files(vocab, MERGES, 77, {})
    vocab.write_text(json.dumps({"a": 0}))
    with pytest.raises(PocketSDError, match="has no <"):
        Tokenizer.from_files(vocab, MERGES, 77, {})
