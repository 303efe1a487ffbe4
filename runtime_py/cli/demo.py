"""pocketsd demo"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from runtime_py.package import Package

EPILOG = """\b
Examples:
  pocketsd demo
  pocketsd demo --steps 8 --seed 3 -o sheet.png
"""
MODEL, PACKAGE = "tiny-sd", Path("tiny-sd.torch")
SINGLES, PAIRS = 9, 3


@click.command(epilog=EPILOG)
@click.option("--steps", type=click.IntRange(1, 100), default=20, show_default=True)
@click.option("--guidance-scale", "--cfg-scale", type=click.FloatRange(0, 100), default=2.0,
              show_default=True)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("demo.png"),
              show_default=True, help="The sheet of pictures.")  # fmt: skip
def command(steps: int, guidance_scale: float, seed: int, output: Path) -> None:
    """Convert the embedded tiny model and draw a sheet of prompts.

    The prompts ask for combinations of colour and shape that the model's training never showed; a
    checker reads off every picture whether it got them. Leaves the package, tiny-sd.torch, for
    `pocketsd run`.
    """
    from runtime_py import pictures
    from runtime_py.cli.progress import bar
    from runtime_py.cli.run import table_for
    from runtime_py.engines import open_engine
    from runtime_py.pipeline import Request, draw
    from runtime_py.prompt_score.prompts import held_out_prompts, pair_prompts

    pictures.require_writable(output)
    started = time.perf_counter()
    package = _convert(steps)
    prompts = held_out_prompts()[:SINGLES] + pair_prompts()[:PAIRS]
    table = table_for(package, None, None)
    cells, right = [], 0
    engine = open_engine(package)
    with bar("Drawing", len(prompts)) as advance:
        for index, prompt in enumerate(prompts):
            request = Request(prompt.text, seeds=(seed + index,), guidance_scale=guidance_scale)
            pixels = draw(engine, package, table, request).pictures[0]
            obeyed = prompt.judge(pixels).right
            right += obeyed
            cells.append((f"{'' if obeyed else 'missed: '}{prompt.text}", pixels))
            advance(1, prompt.text)
    engine.close()
    pictures.write(output, pictures.contact_sheet(cells, columns=4, scale=2))
    click.echo(
        f"{output}: {right} of {len(prompts)} pictures show the colours and shapes asked for, "
        f"{time.perf_counter() - started:.0f} s on this host's CPU"
    )
    click.echo(f'Go on with: pocketsd run {PACKAGE} --prompt "a large green star on the left"')


def _convert(steps: int) -> Package:
    from importlib.resources import as_file, files

    from runtime_py.cli.heavy import converter_module
    from runtime_py.cli.progress import stages
    from runtime_py.package import is_package

    conversion = converter_module("convert")
    options = converter_module("options").Options(steps=(steps,))
    with as_file(files("mobile_assets") / MODEL) as folder:
        checkpoint = converter_module("checkpoints").open_checkpoint(folder)
        with stages("Converting", conversion.stage_count(options)) as announce:
            package: Package = conversion.convert(
                checkpoint, PACKAGE, options, overwrite=is_package(PACKAGE), announce=announce
            )
    return package
