"""What each recipe of LiteRT or Core ML costs and saves on the embedded model.

    python -m tools.bench.quantisation --score 100
    python -m tools.bench.quantisation --target coreml --score 40 --bits 4 --bits 5

Every recipe is converted; its files are run on inputs recorded from the reference (guidance,
prompts and timesteps as in the exam), and its pictures are read by the exam's checker. Of LiteRT's
a denoiser step is timed on the CPU, all recipes in turn in every round, and what the GPU delegate
makes of each file is asked of the delegate itself, in a process of its own. Core ML packages are
evaluated op by op, which says nothing of their speed. `--bits` drafts a recipe of that many bits a
weight from the sensitivity of every layer, as `pocketsd recipe --quick --samples 4` does.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from converter.checkpoints import Checkpoint, open_checkpoint
from converter.components import get_component
from converter.convert import convert
from converter.options import RECIPE, Options
from converter.quantize.draft import draft
from converter.quantize.forms import parse_form
from converter.quantize.recipe_file import WeightRecipe
from converter.quantize.sensitivity import subject
from converter.targets import get_target
from runtime_py.cli.progress import stages
from runtime_py.engines import Engine, open_engine
from runtime_py.package import Package
from runtime_py.pipeline import Request, draw, run_component
from runtime_py.prompt_score.prompts import held_out_prompts
from runtime_py.prompt_score.score import examine
from runtime_py.quality import psnr
from runtime_py.recording import Recording, record

GUIDANCE, SAMPLER = 2.0, ("dpm++-2m", 20)
ASK_GPU = """
import sys
from pathlib import Path
from runtime_py.engines.litert import compile_file
from runtime_py.errors import PocketSDError
try:
    print("whole" if all(compile_file(Path(f)).whole for f in sys.argv[1:]) else "in parts")
except PocketSDError as error:
    print(error.what)
"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--model", type=click.Path(exists=True, path_type=Path),
              default=Path("mobile_assets/tiny-sd"), show_default=True)  # fmt: skip
@click.option("--score", default=100, show_default=True, help="Prompts of the exam.")
@click.option("--rounds", default=9, show_default=True, help="Timed steps of each recipe.")
@click.option("--target", type=click.Choice(["litert", "coreml"]), default="litert")
@click.option("--recipes", help="Precisions, separated by commas. [all of the target]")
@click.option("--bits", multiple=True, type=float, help="Also a drafted recipe; repeatable.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write this.")
def main(
    model: Path,
    score: int,
    rounds: int,
    target: str,
    recipes: str | None,
    bits: tuple[float, ...],
    json_file: Path | None,
) -> None:
    """Print a table of recipe, component, size, PSNR, prompt score and step time."""
    every = [name for name in get_target(target).precisions if name != RECIPE]
    names = [*(recipes.split(",") if recipes else every), *(f"{b:g} bits" for b in bits)]
    stage_count = 2 + 3 * len(names) + len(bits)
    with tempfile.TemporaryDirectory() as folder, stages("Measuring", stage_count) as say:
        say("reference")
        checkpoint = open_checkpoint(model)
        source = convert(checkpoint, Path(folder) / "torch", Options())
        recording, calibration = _recordings(source)
        packages: dict[str, Package] = {}
        for name in names:
            options = Options(target=target, precision=name, recording=calibration)
            if name.endswith(" bits"):
                say(f"drafting {name}")
                recipe = _draft(checkpoint, calibration, float(name.split()[0]))
                options = replace(options, precision=None, recipe=recipe)
            say(f"converting {name}")
            packages[name] = convert(checkpoint, Path(folder) / name, options)
        say("step times")
        times = _step_times(packages, recording, rounds) if target == "litert" else {}
        rows = []
        for name, package in packages.items():
            say(f"quality of {name}")
            quality = _quality(package, recording)
            say(f"exam of {name}")
            obeyed = _exam(package, score)
            for component in package.manifest.components:
                size = sum(package.manifest.files[f].bytes for f in component.files)
                rows.append(
                    {
                        "recipe": name,
                        "component": component.name,
                        "MB": size / 1e6,
                        "PSNR": quality[component.name],
                        "score": obeyed,
                        "step ms": times.get(name, math.nan),
                        "GPU": _ask_gpu(package, component.name) if times else "",
                    }
                )
    _print(rows, score)
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1))


def _recordings(source: Package) -> tuple[Recording, Recording]:
    """One to compare on, one to calibrate on: other prompts, every timestep."""
    engine, table = open_engine(source), source.table(*SAMPLER)
    assert table is not None
    compare = [p.text for p in held_out_prompts(4)]
    calibrate = [p.text for p in held_out_prompts(8, seed=99)]
    return (
        record(engine, source, table, compare, guidance=GUIDANCE, per_picture=5),
        record(engine, source, table, calibrate, guidance=GUIDANCE, per_picture=20, seed=1000),
    )


def _draft(checkpoint: Checkpoint, recording: Recording, bits: float) -> WeightRecipe:
    """For text encoder and UNet; the VAE stays in fp16."""
    found = {}
    for name in ("text_encoder", "unet"):
        forms = [parse_form(form) for form in ("palette8", "palette6", "palette4", "palette2")]
        samples = subject(get_component(name), checkpoint, recording, 4)
        measured = draft(samples, forms, bits, quick=True)
        found[name] = measured.recipe
    return WeightRecipe(found)


def _quality(package: Package, recording: Recording) -> dict[str, float]:
    engine = open_engine(package)
    found = {}
    for component in package.manifest.components:
        found[component.name] = min(
            psnr(
                next(iter(s.outputs.values())),
                run_component(engine, package, component.name, **s.inputs),
            )
            for s in recording.of(component.name)
        )
    engine.close()
    return found


def _exam(package: Package, count: int) -> float:
    engine, table = open_engine(package), package.table(*SAMPLER)
    assert table is not None

    def paint(text: str, seed: int) -> Any:
        request = Request(text, seeds=(seed,), guidance_scale=GUIDANCE)
        return draw(engine, package, table, request).pictures[0]

    shares = examine(held_out_prompts(count), paint)
    engine.close()
    return 100 * shares["colour and shape"]


def _step_times(
    packages: dict[str, Package], recording: Recording, rounds: int
) -> dict[str, float]:
    """Milliseconds of one denoiser run; the recipes take turns, so that all meet the same noise."""
    (sample, *_) = recording.of("unet")
    engines: dict[str, Engine] = {name: open_engine(p) for name, p in packages.items()}
    times: dict[str, list[float]] = {name: [] for name in packages}
    for number in range(rounds + 1):
        for name, engine in engines.items():
            started = time.perf_counter()
            run_component(engine, packages[name], "unet", **sample.inputs)
            if number:  # the first one loads
                times[name].append(1000 * (time.perf_counter() - started))
    for engine in engines.values():
        engine.close()
    return {name: statistics.median(taken) for name, taken in times.items()}


def _ask_gpu(package: Package, component: str) -> str:
    files = [str(package.file(name)) for name in package.manifest.component(component).files]
    command = [sys.executable, "-c", ASK_GPU, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode < 0:
        return f"dies (signal {-done.returncode})"
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def _print(rows: list[dict[str, Any]], score: int) -> None:
    print(f"Score: % of {score} exam prompts obeyed. Step: one UNet run (batch 2) on this CPU.\n")
    print("| recipe | component | MB | PSNR dB | score % | step ms | GPU delegate |")
    print("|---|---|---|---|---|---|---|")
    for r in rows:
        print(
            f"| {r['recipe']} | {r['component']} | {r['MB']:.2f} | {r['PSNR']:.1f} "
            f"| {r['score']:.1f} | {r['step ms']:.0f} | {r['GPU']} |"
        )


if __name__ == "__main__":
    main()
