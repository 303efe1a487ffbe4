"""The exam: prompts that training never saw, with what their pictures must show.

Every single-thing prompt names a held-out combination of colour and shape, and if it mentions
both place and background it does so in a held-out phrasing. The lists are fixed by their seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from PIL import Image

from runtime_py.prompt_score.captions import (
    SAY_BACKGROUND,
    SAY_PLACE,
    SAY_SIZE,
    caption_pair,
    caption_single,
)
from runtime_py.prompt_score.checker import Verdict, judge
from runtime_py.prompt_score.scenes import (
    BACKGROUNDS,
    COLOURS,
    HELD_OUT,
    SHAPES,
    Scene,
    pair,
    single,
)


@dataclass(frozen=True)
class Prompt:
    """A prompt and a scene that would satisfy it; the flags say what the prompt mentions.

    The scene's unmentioned details are as good as any others and are not judged.
    """

    text: str
    scene: Scene
    size: bool = False
    place: bool = False
    background: bool = False
    relation: bool = False

    def judge(self, image: Image.Image | np.ndarray) -> Verdict:
        return judge(
            self.scene,
            image,
            size=self.size,
            place=self.place,
            background=self.background,
            relation=self.relation,
        )


def held_out_prompts(count: int = 200, seed: int = 2024) -> list[Prompt]:
    """Prompts for one thing, going round the held-out combinations; no text occurs twice."""
    rng = random.Random(seed)
    combinations = sorted(HELD_OUT)
    prompts: dict[str, Prompt] = {}
    while len(prompts) < count:
        colour, shape = combinations[len(prompts) % len(combinations)]
        size, place, background = (
            rng.random() < share for share in (SAY_SIZE, SAY_PLACE, SAY_BACKGROUND)
        )
        scene = single(rng, shape, colour, size=rng.choice(["small", "large"]) if size else None)
        text = caption_single(
            scene,
            rng,
            say_size=size,
            say_place=place,
            say_background=background,
            held_out_phrasing=place and background,
        )
        prompts.setdefault(text, Prompt(text, scene, size, place, background))
    return list(prompts.values())


def pair_prompts(count: int = 50, seed: int = 2025) -> list[Prompt]:
    """Prompts for two things of different colour and shape, none of them held out alone."""
    rng = random.Random(seed)
    known = [(c, s) for c in COLOURS for s in SHAPES if (c, s) not in HELD_OUT]
    prompts: dict[str, Prompt] = {}
    while len(prompts) < count:
        first, second = rng.sample(known, 2)
        if first[0] == second[0] or first[1] == second[1]:
            continue
        relation, background = rng.random() < 0.75, rng.random() < 0.5
        scene = pair(rng, first, second, background=rng.choice(list(BACKGROUNDS)))
        text = caption_pair(scene, rng, say_relation=relation, say_background=background)
        prompts.setdefault(text, Prompt(text, scene, background=background, relation=relation))
    return list(prompts.values())
