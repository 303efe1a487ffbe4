"""Stage 2: the text encoder, taught what captions mean by asking it about the scenes.

Throw-away linear heads must read every attribute of the scene (or "not mentioned") off the end
token and off the padding after it - which, padded as Stable Diffusion pads, is most of what the
denoiser's cross-attention looks at. Afterwards the encoder is frozen, as Stable Diffusion's is,
so the embeddings of the training captions can be computed once.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from transformers import CLIPTextModel, CLIPTokenizer

from runtime_py.prompt_score.captions import RELATION_WORDS, caption
from runtime_py.prompt_score.scenes import (
    BACKGROUNDS,
    COLOURS,
    PLACES,
    RELATIONS,
    SHAPES,
    Scene,
    training_scene,
)
from tools.tiny_sd.budget import Budget, set_rate
from tools.tiny_sd.models import MAX_TOKENS, TEXT_WIDTH, new_text_encoder
from tools.tiny_sd.workers import share_and_run

BATCH, PEAK_RATE = 32, 1e-3
#: Most of the budget is spent on sequences cut to SHORT tokens (every caption fits): it is the
#: padding that costs, and padding behaves alike wherever it stands.
SHORT, SHORT_SHARE = 32, 0.7

#: Question -> possible answers; index 0 always means "the caption does not say".
QUESTIONS: dict[str, tuple[str, ...]] = {
    "background": ("", *BACKGROUNDS),
    "place": ("", *PLACES),
    "relation": ("", *RELATIONS, "and"),
    "size": ("", "small", "large"),
    "striped": ("", "striped"),
    "colour 1": ("", *COLOURS),
    "shape 1": ("", *SHAPES),
    "colour 2": ("", *COLOURS),
    "shape 2": ("", *SHAPES),
}


def answers(scene: Scene, text: str) -> list[int]:
    """What the caption says about its scene: an answer index per question.

    Colours and shapes are numbered in the order the caption names them.
    """
    things = sorted(scene.things, key=lambda thing: text.index(f"{thing.colour} {thing.shape}"))
    said = dict.fromkeys(QUESTIONS, "")
    if f"{scene.background} background" in text:
        said["background"] = scene.background
    if "striped" in text:
        said["striped"] = "striped"
    if scene.place is not None:
        names = ("centre", "center", "middle") if scene.place == "centre" else (scene.place,)
        said["place"] = scene.place if any(name in text for name in names) else ""
        said["size"] = things[0].size if things[0].size in text.split() else ""
    if scene.relation is not None:
        words = RELATION_WORDS[scene.relation]
        said["relation"] = scene.relation if any(f" {w} " in text for w in words) else "and"
    for number, thing in enumerate(things, start=1):
        said[f"colour {number}"], said[f"shape {number}"] = thing.colour, thing.shape
    return [options.index(said[name]) for name, options in QUESTIONS.items()]


def tokenise(tokenizer: CLIPTokenizer, texts: list[str], length: int = MAX_TOKENS) -> torch.Tensor:
    """Token ids padded as Stable Diffusion pads: to full length, with the end token."""
    return tokenizer(
        texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt"
    ).input_ids


def _positions(encoder: CLIPTextModel) -> torch.Tensor:
    """The learnt position vectors, one row a position."""
    found = [w for name, w in encoder.named_parameters() if "position_embedding" in name]
    return found[0]


def _loss(
    encoder: CLIPTextModel, heads: nn.Linear, ids: torch.Tensor, asked: torch.Tensor
) -> torch.Tensor:
    """How badly the heads answer, from the end token and from one padding position by lot."""
    states = encoder(ids).last_hidden_state
    length, rows = ids.shape[1], torch.arange(len(ids))
    end = (ids == encoder.config.eos_token_id).int().argmax(dim=1)
    later = end + (torch.rand(len(end)) * (length - end)).long()
    sizes = [len(options) for options in QUESTIONS.values()]
    loss = torch.zeros(())
    for position in (end, later):
        told = heads(states[rows, position]).split(sizes, dim=1)
        loss = loss + sum(F.cross_entropy(t, a) for t, a in zip(told, asked.T, strict=True))
    return loss


def _open_budget(minutes: float, cache: Path) -> Budget:
    return Budget("text", minutes, cache / "text.pt")


def _work(
    number: int,
    encoder: CLIPTextModel,
    heads: nn.Linear,
    folder: Path,
    minutes: float,
    cache: Path,
    seed: int,
) -> None:
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    weights = [*encoder.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(weights, PEAK_RATE, (0.9, 0.98), weight_decay=0.01)
    state = {"encoder": encoder, "heads": heads, "optimiser": optimiser}
    budget = _open_budget(minutes, cache)
    budget.resume(**state)
    torch.manual_seed(seed * 1_000_003 + 10 * budget.step + number)
    rng = random.Random(torch.initial_seed())
    length = MAX_TOKENS if budget.progress > SHORT_SHARE else SHORT
    while budget.left:
        set_rate(optimiser, budget.rate(PEAK_RATE))
        if length == SHORT and budget.progress > SHORT_SHARE:
            length = MAX_TOKENS
            if number == 0:  # positions not met so far start as the last one that was
                rows = _positions(encoder).data
                rows[SHORT:] = rows[SHORT - 1]
        scenes = [training_scene(rng) for _ in range(BATCH)]
        texts = [caption(scene, rng) for scene in scenes]
        asked = [answers(scene, text) for scene, text in zip(scenes, texts, strict=True)]
        loss = _loss(encoder, heads, tokenise(tokenizer, texts, length), torch.tensor(asked))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if number == 0:
            budget.tick(loss)
            budget.save(**state)
    if number == 0:
        budget.save(every=0, **state)


def train(minutes: float, cache: Path, seed: int, workers: int, folder: Path) -> CLIPTextModel:
    """Train (or take up) the text encoder for the tokenizer in `folder`; returns it frozen.

    With no minutes the checkpoint is taken as it is.
    """
    torch.manual_seed(seed)
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    encoder = new_text_encoder(len(tokenizer), tokenizer.bos_token_id, tokenizer.eos_token_id)
    heads = nn.Linear(TEXT_WIDTH, sum(len(options) for options in QUESTIONS.values()))
    if minutes > 0:
        share_and_run(_work, workers, encoder, heads, folder, minutes, cache, seed)
    _open_budget(minutes, cache).resume(encoder=encoder)
    return encoder.eval().requires_grad_(False)


@torch.no_grad()
def embed(encoder: CLIPTextModel, tokenizer: CLIPTokenizer, texts: list[str]) -> torch.Tensor:
    """The 77 hidden states of each text, half precision."""
    return encoder(tokenise(tokenizer, texts)).last_hidden_state.half()
