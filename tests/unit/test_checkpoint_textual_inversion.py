"""Textual-inversion embeddings become the tokens and vectors that diffusers makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from converter.checkpoints import inspect_file, open_checkpoint
from runtime_py.errors import PocketSDError
from tests.support.checkpoints import CONTEXT, tiny

TABLE = "embeddings.token_embedding.weight"


def vectors(count: int) -> torch.Tensor:
    return torch.randn(count, CONTEXT, generator=torch.Generator().manual_seed(count))


def written(tmp_path: Path, form: str, count: int) -> Path:
    """An embedding file in one of the forms in use."""
    learned = vectors(count)
    if form == "web ui":
        parameter = torch.nn.Parameter(learned)
        content = {"string_to_token": {"*": 265}, "string_to_param": {"*": parameter}}
        torch.save(content | {"name": "<cat>", "step": 100}, tmp_path / "cat.pt")
        return tmp_path / "cat.pt"
    if form == "web ui, first version":
        content = {"string_to_param": torch.nn.ParameterDict({"*": learned}), "name": "<cat>"}
        torch.save(content, tmp_path / "cat.pt")
        return tmp_path / "cat.pt"
    if form == "diffusers":
        torch.save({"<cat>": learned if count > 1 else learned[0]}, tmp_path / "learned_embeds.bin")
        return tmp_path / "learned_embeds.bin"
    save_file({"emb_params": learned}, tmp_path / "<cat>.safetensors")
    return tmp_path / "<cat>.safetensors"


FORMS = ["web ui", "web ui, first version", "diffusers", "safetensors"]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_adds_what_diffusers_adds(tmp_path: Path, form: str, count: int) -> None:
    path = written(tmp_path, form, count)
    oracle = tiny().load()
    if form == "web ui, first version":  # diffusers does not read this one
        oracle.load_textual_inversion({"<cat>": vectors(count)})
    else:
        oracle.load_textual_inversion(str(path), token="<cat>" if form == "safetensors" else None)
    checkpoint = open_checkpoint(tiny().folder, embeddings=[(path, None)])
    table = oracle.text_encoder.get_input_embeddings().weight
    assert torch.equal(checkpoint.weights["text_encoder"][TABLE], table)
    assert checkpoint.text_encoder.vocabulary == table.shape[0] == 55 + count
    assert checkpoint.tokenizer is not None
    expected = {"<cat>": 55} | {f"<cat>_{index}": 55 + index for index in range(1, count)}
    assert checkpoint.tokenizer.added == expected
    assert {k: oracle.tokenizer.convert_tokens_to_ids(k) for k in expected} == expected
    assert checkpoint.ingredients[-1].role == "embedding"


def test_several_embeddings_under_chosen_names(tmp_path: Path) -> None:
    first, second = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    save_file({"emb_params": vectors(2)}, first)
    save_file({"emb_params": vectors(1)}, second)
    checkpoint = open_checkpoint(tiny().folder, embeddings=[(first, "<x>"), (second, None)])
    assert checkpoint.tokenizer is not None
    assert checkpoint.tokenizer.added == {"<x>": 55, "<x>_1": 56, "two": 57}
    assert checkpoint.weights["text_encoder"][TABLE].shape == (58, CONTEXT)


def test_what_cannot_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    path = tmp_path / "thing.safetensors"

    def refusal(tensors: dict[str, torch.Tensor], token: str | None = None) -> str:
        save_file(tensors, path)
        with pytest.raises(PocketSDError) as caught:
            open_checkpoint(tiny().folder, embeddings=[(path, token)])
        return str(caught.value)

    good = {"emb_params": vectors(1)}
    assert "its vectors are 1024 wide" in refusal({"emb_params": torch.ones(1, 1024)})
    assert "SDXL textual-inversion" in refusal({"clip_g": vectors(1), "clip_l": vectors(1)})
    assert "token 'a' exists already" in refusal(good, "a")
    assert "empty or has spaces" in refusal(good, "two words")
    assert "empty or has spaces" in refusal(good, "")
    assert "holds NaN" in refusal({"emb_params": vectors(1) * float("nan")})
    assert "has 3 dimensions" in refusal({"emb_params": torch.ones(1, 2, 3)})
    assert "not a textual-inversion embedding" in refusal({"x": vectors(1), "y": vectors(1)})
    save_file(good, path)
    with pytest.raises(PocketSDError, match="needs the tokenizer"):
        open_checkpoint(tiny().file, embeddings=[(path, None)])


@pytest.mark.parametrize("form", FORMS)
def test_inspection_tells_vectors_and_tokens(tmp_path: Path, form: str) -> None:
    report = inspect_file(written(tmp_path, form, 3))
    assert report.kind == "embedding"
    assert report.summary == f"a textual-inversion embedding of 3 vectors, {CONTEXT} wide"
    assert report.details["tokens"] == "<cat>, <cat>_1, <cat>_2"
