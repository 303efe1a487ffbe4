"""Finding and reading the tokenizer, which single-file checkpoints do not carry."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from converter.checkpoints.checkpoint import TokenizerFiles
from converter.checkpoints.files import read_json
from runtime_py.errors import PocketSDError

_CACHED_MODELS = ("models--*clip-vit-large-patch14", "models--*stable-diffusion-v1*")


def read_tokenizer(folder: Path) -> tuple[TokenizerFiles, tuple[Path, ...]] | None:
    """The tokenizer of `folder` (or its tokenizer/) and the files it was read from."""
    for place in (folder, folder / "tokenizer"):
        vocab, merges, whole = (
            place / name for name in ("vocab.json", "merges.txt", "tokenizer.json")
        )
        if vocab.is_file() and merges.is_file():
            extra = place / "added_tokens.json"
            files = (vocab, merges, extra) if extra.is_file() else (vocab, merges)
            known = _token_ids(read_json(vocab), vocab.name)
            added = _token_ids(read_json(extra), extra.name) if extra.is_file() else {}
            return _tokenizer(vocab.read_bytes(), merges.read_bytes(), known, added), files
        if whole.is_file():
            return _from_one_file(whole), (whole,)
    return None


def find_tokenizer(
    explicit: Path | None, places: tuple[Path, ...], vocabulary: int
) -> tuple[TokenizerFiles, Path, tuple[Path, ...]] | None:
    """The explicit tokenizer or the first one around that fits the vocabulary, with its files."""
    if explicit is not None:
        found = read_tokenizer(explicit)
        if found is None:
            raise PocketSDError("has no vocab.json with merges.txt", where=explicit.name)
        refuse_larger(found[0], vocabulary)
        return found[0], explicit, found[1]
    for place in (*places, *_cached()):
        found = read_tokenizer(place)
        if found and _highest_id(found[0]) < vocabulary:
            return found[0], place, found[1]
    return None


def refuse_larger(tokenizer: TokenizerFiles, vocabulary: int) -> None:
    """Refuse a tokenizer with ids that the token embedding has no row for."""
    highest = _highest_id(tokenizer)
    if highest >= vocabulary:
        raise PocketSDError(
            f"the tokenizer has token id {highest}, the text encoder only {vocabulary} tokens"
        )


def token_ids(tokenizer: TokenizerFiles) -> dict[str, int]:
    """All tokens, the added ones included."""
    return {**json.loads(tokenizer.vocab), **tokenizer.added}


def _highest_id(tokenizer: TokenizerFiles) -> int:
    return max(token_ids(tokenizer).values(), default=-1)


def _cached() -> Iterator[Path]:
    """Snapshots of models with CLIP's tokenizer in this machine's Hugging Face cache."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    for pattern in _CACHED_MODELS:
        yield from sorted(home.glob(f"hub/{pattern}/snapshots/*"))


def _from_one_file(path: Path) -> TokenizerFiles:
    """tokenizer.json holds what the two files hold, and newer tools write only that."""
    content = read_json(path)
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise PocketSDError("is not a byte-pair tokenizer", where=path.name)
    vocab, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocab, dict) or not isinstance(merges, list):
        raise PocketSDError("has no vocabulary or no merges", where=path.name)
    known = _token_ids(vocab, path.name)
    pairs = [pair if isinstance(pair, str) else " ".join(map(str, pair)) for pair in merges]
    listed = content.get("added_tokens") or []
    added = {
        token["content"]: token["id"]
        for token in listed
        if isinstance(token, dict) and {"content", "id"} <= token.keys()
    }
    return _tokenizer(
        json.dumps(known, ensure_ascii=False).encode(),
        "\n".join(["#version: 0.2", *pairs, ""]).encode(),
        known,
        _token_ids(added, path.name),
    )


def _tokenizer(
    vocab: bytes, merges: bytes, known: dict[str, int], added: dict[str, int]
) -> TokenizerFiles:
    return TokenizerFiles(
        vocab, merges, {token: index for token, index in added.items() if token not in known}
    )


def _token_ids(values: dict[str, Any], where: str) -> dict[str, int]:
    if not all(type(index) is int and index >= 0 for index in values.values()):
        raise PocketSDError("is not a table of token ids", where=where)
    return values
