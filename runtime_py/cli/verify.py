"""pocketsd verify"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

EPILOG = """\b
Examples:
  pocketsd verify tiny-sd.litert --source mobile_assets/tiny-sd
  pocketsd verify sd15.litert --source sd15.torch --accelerator cpu -p "an otter"
  pocketsd verify tiny-sd.litert --source tiny-sd.torch --score 50
  pocketsd verify tiny-sd.webgpu --source mobile_assets/tiny-sd --adapter nvidia
"""
PROMPTS = ("a photograph of an astronaut riding a horse", "a red cube on a white table")


@click.command(epilog=EPILOG)
@click.argument("package", type=click.Path(path_type=Path))
@click.option(
    "--source",
    required=True,
    type=click.Path(path_type=Path),
    help="What it was made of: the checkpoint, or a package of the target torch.",
)
@click.option(
    "--accelerator",
    "accelerators",
    multiple=True,
    help="cpu or gpu; repeatable. [all the target has]",
)
@click.option("--adapter", help="Part of a GPU's name, for webgpu. [the likeliest GPU]")
@click.option("-p", "--prompt", "prompts", multiple=True, help="What to draw; repeatable.")
@click.option(
    "--pictures",
    type=click.IntRange(0, 100),
    default=1,
    show_default=True,
    help="Whole pictures to compare.",
)
@click.option(
    "--per-picture",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Timesteps at which the denoiser is compared.",
)
@click.option(
    "--guidance-scale", "--cfg-scale", type=click.FloatRange(0, 100), default=2.0, show_default=True
)
@click.option(
    "--score",
    type=click.IntRange(0, 200),
    default=0,
    help="Also draw this many prompts of the embedded model's exam, and read them.",
)
@click.option(
    "--bisect", is_flag=True, help="Where a component fails on the GPU, find the first op at fault."
)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(package: Path, source: Path, as_json: bool, **options: Any) -> None:
    """Measure a package against its source.

    Every component is run on inputs recorded from the source at several timesteps, on each
    accelerator, and whole pictures are compared. What was measured is written into the manifest.
    Leaves with exit code 1 if a figure misses its gate.
    """
    import msgspec

    from runtime_py.cli.heavy import converter_module
    from runtime_py.cli.opening import open_checked
    from runtime_py.cli.progress import bar
    from runtime_py.errors import GateError
    from runtime_py.package import with_quality

    opened = open_checked(package)
    prompts = options.pop("prompts") or PROMPTS
    run = converter_module("verify.plan")
    with bar(f"Verifying {package.name}", run.stage_count(opened, **options)) as advance:
        report = run.verify(opened, source, prompts, announce=lambda s: advance(1, s), **options)
    with_quality(opened, report.quality())
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        for figure in report.figures:
            click.echo(figure.line())
        for note in report.notes:
            click.echo(note)
    missed = [
        f"{f.what} on {f.where} {f.value:.1f} of {f.gate:g} {f.unit}"
        for f in report.figures
        if not f.passed
    ]
    if not report.passed:
        raise GateError("; ".join([*missed, *report.failures]), where=package)
