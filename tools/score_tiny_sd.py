"""How well a tiny-sd folder follows prompts, as painted by diffusers and read by the checker.

    python -m tools.score_tiny_sd mobile_assets/tiny-sd

diffusers paints, not this project's own pipeline: the score belongs to the weights alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import click
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
)
from PIL import Image

from runtime_py.prompt_score.prompts import Prompt, held_out_prompts, pair_prompts
from runtime_py.prompt_score.score import shares

SAMPLERS = {
    "dpm": DPMSolverMultistepScheduler,
    "ddim": DDIMScheduler,
    "pndm": PNDMScheduler,
}
BATCH = 10


def load(folder: Path, sampler: str) -> StableDiffusionPipeline:
    """The folder as a pipeline in single precision (weights as stored, rounded to half)."""
    pipe = StableDiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipe.scheduler = SAMPLERS[sampler].from_config(pipe.scheduler.config)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def paint(
    pipe: StableDiffusionPipeline, texts: Sequence[str], steps: int, guidance: float, seed: int
) -> list[Image.Image]:
    """One picture a text; text `i` gets seed `seed + i` whatever the batching."""
    pictures: list[Image.Image] = []
    for start in range(0, len(texts), BATCH):
        batch = list(texts[start : start + BATCH])
        dice = [torch.Generator().manual_seed(seed + start + i) for i in range(len(batch))]
        result = pipe(batch, num_inference_steps=steps, guidance_scale=guidance, generator=dice)
        pictures += result.images
    return pictures


def score(prompts: Sequence[Prompt], pictures: Sequence[Image.Image]) -> dict[str, float]:
    pairs = zip(prompts, pictures, strict=True)
    return shares(prompts, [prompt.judge(picture) for prompt, picture in pairs])


def contact_sheet(pictures: Sequence[Image.Image], columns: int = 10) -> Image.Image:
    width, height = pictures[0].size
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (width * columns, height * rows))
    for i, picture in enumerate(pictures):
        sheet.paste(picture, (i % columns * width, i // columns * height))
    return sheet


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--count", default=200, show_default=True, help="Held-out single-thing prompts.")
@click.option("--pairs", default=50, show_default=True, help="Two-thing prompts.")
@click.option("--sampler", type=click.Choice(list(SAMPLERS)), default="dpm", show_default=True)
@click.option("--steps", default=20, show_default=True)
@click.option("--guidance", default=2.0, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--sheet", type=click.Path(path_type=Path), help="Save the pictures here.")
def main(
    folder: Path,
    count: int,
    pairs: int,
    sampler: str,
    steps: int,
    guidance: float,
    seed: int,
    sheet: Path | None,
) -> None:
    """Print the prompt-following scores of FOLDER as JSON."""
    torch.set_num_threads(1)
    pipe = load(folder, sampler)
    start = time.monotonic()
    report: dict[str, object] = {"sampler": sampler, "steps": steps, "guidance": guidance}
    shown: list[Image.Image] = []
    # The lists are drawn in full and cut, so that a shorter run asks the same first questions.
    for name, prompts in (
        ("single", held_out_prompts()[:count]),
        ("pair", pair_prompts()[:pairs]),
    ):
        if prompts:
            pictures = paint(pipe, [p.text for p in prompts], steps, guidance, seed)
            report[name] = score(prompts, pictures)
            shown += pictures
    report["seconds"] = round(time.monotonic() - start, 1)
    click.echo(json.dumps(report, indent=2))
    if sheet is not None:
        contact_sheet(shown).save(sheet)


if __name__ == "__main__":
    main()
