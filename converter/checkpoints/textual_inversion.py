"""Textual-inversion embeddings: learned vectors that become extra tokens of the text encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from converter.checkpoints.checkpoint import Tensors, TokenizerFiles
from converter.checkpoints.detect import kind_of
from converter.checkpoints.tokenizer_files import token_ids
from converter.checkpoints.weights import read_headers, read_weights, refuse_unusable
from converter.models.config import TextEncoderConfig
from runtime_py.errors import PocketSDError

TABLE = "embeddings.token_embedding.weight"
_PARAMETERS = "string_to_param."


@dataclass(frozen=True)
class Embedding:
    """The vectors (count x width) that a placeholder token stands for."""

    file: str
    token: str
    vectors: torch.Tensor

    @property
    def tokens(self) -> tuple[str, ...]:
        """One token per vector: `token`, `token_1`, `token_2`, ..."""
        extra = (f"{self.token}_{index}" for index in range(1, self.vectors.shape[0]))
        return (self.token, *extra)


def read_embedding(
    path: Path, token: str | None = None, *, headers_only: bool = False
) -> Embedding:
    """An embedding in the form of the web UI (.pt, .safetensors) or of diffusers (.bin).

    Without `token` the placeholder is the one the file names, or else the file's own name.
    """
    file = read_headers(path) if headers_only else read_weights(path)
    kind = kind_of(file.tensors)
    if kind.name != "embedding":
        raise PocketSDError(f"is {kind.what}, not a textual-inversion embedding", where=path.name)
    learned = {k: t for k, t in file.tensors.items() if k.startswith(_PARAMETERS)} or {
        k: t for k, t in file.tensors.items() if k == "emb_params" or len(file.tensors) == 1
    }
    if len(learned) != 1:
        raise PocketSDError(f"holds {len(learned)} embeddings instead of one", where=path.name)
    ((key, vectors),) = learned.items()
    if vectors.ndim not in (1, 2) or not vectors.numel():
        raise PocketSDError(
            f"its embedding has {vectors.ndim} dimensions, not 1 or 2", where=path.name
        )
    named = file.metadata.get("name") if key.startswith(_PARAMETERS) else key
    if not isinstance(named, str) or named in ("", "emb_params"):
        named = path.stem
    chosen = named if token is None else token
    if not chosen or chosen != "".join(chosen.split()):
        raise PocketSDError(
            f"its token {chosen!r} is empty or has spaces", where=path.name, mend="give a token"
        )
    if not headers_only:
        refuse_unusable({key: vectors}, path.name)
    return Embedding(path.name, chosen, vectors if vectors.ndim == 2 else vectors[None])


def extended(
    config: TextEncoderConfig,
    tensors: Tensors,
    tokenizer: TokenizerFiles | None,
    embeddings: Sequence[Embedding],
) -> tuple[TextEncoderConfig, dict[str, torch.Tensor], TokenizerFiles]:
    """The text encoder with the vectors as new last rows of its table, and the tokenizer to it."""
    if tokenizer is None:
        raise PocketSDError(
            "an embedding needs the tokenizer, and none was found",
            where=embeddings[0].file,
            mend="give a folder with vocab.json and merges.txt as tokenizer",
        )
    table = tensors[TABLE]
    taken = token_ids(tokenizer)
    added = dict(tokenizer.added)
    rows = [table]
    size = config.vocabulary
    for embedding in embeddings:
        width = embedding.vectors.shape[1]
        if width != config.width:
            raise PocketSDError(
                f"its vectors are {width} wide, the text encoder {config.width}",
                where=embedding.file,
                mend="it was trained for another model",
            )
        for token in embedding.tokens:
            if token in taken or token in added:
                raise PocketSDError(
                    f"token {token!r} exists already", where=embedding.file, mend="give another"
                )
            added[token] = size
            size += 1
        rows.append(embedding.vectors.to(table.dtype))
    grown = {name: torch.cat(rows) if name == TABLE else t for name, t in tensors.items()}
    return (
        dataclasses.replace(config, vocabulary=size),
        grown,
        dataclasses.replace(tokenizer, added=added),
    )
