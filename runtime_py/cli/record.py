"""pocketsd record"""

from __future__ import annotations

from pathlib import Path

import click

from runtime_py.cli.options import overwrite_option

EPILOG = """\b
Examples:
  pocketsd record tiny-sd.torch --exam 8 -o tiny-sd.npz
  pocketsd record sd15.torch -p "an otter" -p "a tram in the rain" -o sd15.npz
  pocketsd convert ./sd15 --target litert --precision w8a8 --calibration sd15.npz
"""


@click.command(epilog=EPILOG)
@click.argument("package", type=click.Path(path_type=Path))
@click.option("-p", "--prompt", "prompts", multiple=True, help="What to draw; repeatable.")
@click.option(
    "--exam",
    type=click.IntRange(0, 200),
    default=0,
    help="Draw this many prompts of the embedded model's exam.",
)
@click.option(
    "--per-picture",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Denoiser calls to keep of each picture, spread over the schedule.",
)
@click.option(
    "--guidance-scale", "--cfg-scale", type=click.FloatRange(0, 100), default=7.5, show_default=True
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("recording.npz"),
    show_default=True,
)
@overwrite_option
def command(
    package: Path,
    prompts: tuple[str, ...],
    exam: int,
    per_picture: int,
    guidance_scale: float,
    seed: int,
    output: Path,
    overwrite: bool,
) -> None:
    """Keep what goes into and comes out of each component, to calibrate on.

    Draws the prompts with the package and writes the components' inputs and outputs at several
    timesteps to an .npz file.
    """
    from runtime_py.cli.opening import open_checked
    from runtime_py.cli.progress import stages
    from runtime_py.cli.run import table_for
    from runtime_py.engines import open_engine
    from runtime_py.errors import PocketSDError
    from runtime_py.files import require_free
    from runtime_py.prompt_score.prompts import held_out_prompts
    from runtime_py.recording import record, save

    wanted = [*prompts, *(p.text for p in held_out_prompts(max(exam, 1))[:exam])]
    if not wanted:
        raise PocketSDError("nothing to draw", mend="--prompt TEXT, or --exam 8 for tiny-sd")
    require_free(output, overwrite=overwrite)
    opened = open_checked(package)
    engine = open_engine(opened)
    try:
        with stages("Recording", len(wanted)) as announce:
            recording = record(
                engine,
                opened,
                table_for(opened, None, None),
                wanted,
                guidance=guidance_scale,
                per_picture=per_picture,
                seed=seed,
                advance=announce,
            )
    finally:
        engine.close()
    save(recording, output)
    counts = ", ".join(f"{len(kept)} of {name}" for name, kept in recording.samples.items())
    click.echo(f"{output}: {counts}")
