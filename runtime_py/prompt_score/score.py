"""The exam: draw each prompt, read each picture, count."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from runtime_py.prompt_score.checker import Verdict
from runtime_py.prompt_score.prompts import Prompt

Pixels = NDArray[np.uint8]
DETAILS = ("size", "place", "background", "relation")


def examine(
    prompts: Sequence[Prompt],
    draw: Callable[[str, int], Pixels],
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, float]:
    """Score `draw(text, seed)`; prompt i gets seed i, so that any two engines draw the same."""
    verdicts = []
    for index, prompt in enumerate(prompts):
        verdicts.append(prompt.judge(draw(prompt.text, index)))
        advance(1)
    return shares(prompts, verdicts)


def shares(prompts: Sequence[Prompt], verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Shares of right pictures; each detail is counted among the prompts that mention it."""
    table = {
        "prompts": float(len(prompts)),
        "colour and shape": _share([v.right for v in verdicts]),
        "colour": _share([v.colour for v in verdicts]),
        "shape": _share([v.shape for v in verdicts]),
    }
    for detail in DETAILS:
        pairs = zip(verdicts, prompts, strict=True)
        asked = [bool(getattr(v, detail)) for v, p in pairs if getattr(p, detail)]
        if asked:
            table[detail] = _share(asked)
    return table


def _share(right: Sequence[bool]) -> float:
    return sum(right) / len(right)
