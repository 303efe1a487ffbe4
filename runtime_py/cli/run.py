"""pocketsd run"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime_py.cli.options import Margins, engine_options, overwrite_option, size_options

if TYPE_CHECKING:
    from runtime_py.package import Package
    from runtime_py.pipeline import Request
    from runtime_py.sampler import SamplerTable

EPILOG = """\b
Examples:
  pocketsd run tiny-sd.torch --prompt "a red circle on a white background"
  pocketsd run sd15.litert --accelerator gpu --prompt "an otter"
  pocketsd run sd15.webgpu --adapter nvidia --prompt "an otter"
  pocketsd run sd15.torch --prompt "an otter" --negative-prompt blurry --seed 1 --seed 2
  pocketsd run sd15.torch --prompt "in winter" --image house.jpg --strength 0.6
  pocketsd run sd15.torch --prompt "a red door" --image house.jpg --mask door.png
  pocketsd run sd15.torch --prompt "a wide meadow" --image cow.jpg --outpaint left=128,right=128
"""


@click.command(epilog=EPILOG)
@click.argument("package", type=click.Path(path_type=Path))
@click.option("-p", "--prompt", required=True, help="What to draw.")
@click.option("-n", "--negative-prompt", default="", help="What to keep away from.")
@click.option(
    "--steps", "--num-inference-steps", type=click.IntRange(1, 1000), help="[the package's]"
)
@click.option("--scheduler", help="[the package's first]")
@click.option(
    "--guidance-scale",
    "--cfg-scale",
    type=click.FloatRange(0, 100),
    default=7.5,
    show_default=True,
    help="1 skips the unconditional pass.",
)
@click.option(
    "--seed",
    "seeds",
    type=click.IntRange(0, 2**64 - 1),
    multiple=True,
    default=[0],
    show_default=True,
    help="Repeat for several pictures.",
)
@size_options
@click.option("--image", type=click.Path(path_type=Path), help="Start from this picture.")
@click.option("--mask", type=click.Path(path_type=Path), help="White where to draw anew.")
@click.option("--outpaint", type=Margins(), help="Extend the image by margins.")
@click.option(
    "--strength",
    type=click.FloatRange(0, 1, min_open=True),
    help="How much to change the image. [0.75; 1 with a mask]",
)
@click.option("--engine", help="What runs the package. [the target's own]")
@engine_options
@click.option(
    "--preview", type=click.Path(path_type=Path), help="Rewrite this picture after each step."
)
@click.option("--low-memory", is_flag=True, help="Hold one component at a time.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("picture.png"),
    show_default=True,
    help="With several seeds, the seed is added to the name.",
)
@overwrite_option
def command(
    package: Path,
    scheduler: str | None,
    steps: int | None,
    image: Path | None,
    mask: Path | None,
    outpaint: dict[str, int] | None,
    strength: float | None,
    engine: str | None,
    accelerator: str | None,
    adapter: str | None,
    threads: int | None,
    compute_units: str | None,
    preview: Path | None,
    output: Path,
    overwrite: bool,
    **wanted: Any,
) -> None:
    """Draw a picture with a package."""
    from runtime_py import pictures
    from runtime_py.cli.opening import open_checked
    from runtime_py.engines import open_engine
    from runtime_py.pipeline import Request

    if outpaint and (mask or not image):
        raise click.UsageError("--outpaint needs --image and makes its own mask")
    opened = open_checked(package)
    request = Request(
        **wanted,
        image=None if image is None else pictures.read(image),
        mask=None if mask is None else pictures.read(mask, "L"),
        strength=strength or (1.0 if mask or outpaint else 0.75),
    )
    if outpaint:
        request = _extended(opened, request, outpaint)
    outputs = _outputs(output, request.seeds, overwrite)
    table = table_for(opened, scheduler, steps)
    running = open_engine(
        opened,
        engine,
        accelerator=accelerator,
        adapter=adapter,
        threads=threads,
        compute_units=compute_units,
    )
    try:
        drawn = _draw(running, opened, table, request, preview)
    finally:
        running.close()
    for path, pixels in zip(outputs, drawn, strict=True):
        pictures.write(path, pixels)
    click.echo(" ".join(map(str, outputs)))


def table_for(package: Package, scheduler: str | None, steps: int | None) -> SamplerTable:
    """The package's own table, or a new one from the package's noise schedule."""
    default_name, _, default_steps = package.manifest.default_sampler.partition("/")
    scheduler, steps = scheduler or default_name, steps or int(default_steps)
    table = package.table(scheduler, steps)
    if table is None:
        from runtime_py.cli.heavy import converter_module

        table = converter_module("sampling").table(scheduler, steps, package.manifest.schedule)
    return table


def _draw(
    engine: Any, package: Package, table: SamplerTable, request: Request, preview: Path | None
) -> Any:
    from runtime_py import pictures
    from runtime_py.cli.progress import bar
    from runtime_py.pipeline import Done, Stage, Step, generate

    started, steps = time.perf_counter(), 0
    with bar("Drawing", len(table.rows)) as advance:
        for event in generate(engine, package, table, request):
            if isinstance(event, Stage):
                advance(0, event.name)
            elif isinstance(event, Step):
                steps += 1
                advance(1, "denoising")
                if preview is not None:
                    pictures.write(
                        preview,
                        pictures.preview(event.latents[:1], package.manifest.picture.preview)[0],
                    )
            elif isinstance(event, Done):
                done = event
    if done.cut:
        click.echo(f"pocketsd: the prompt is too long, this was left out: {done.cut}", err=True)
    click.echo(f"{steps} steps in {time.perf_counter() - started:.2f} s on this host", err=True)
    return done.pictures


def _extended(package: Package, request: Request, margins: dict[str, int]) -> Request:
    """The request with the image on a larger canvas, as large as the package can draw."""
    from runtime_py import pictures

    assert request.image is not None
    spec, picture = package.manifest.component("unet").inputs[0], package.manifest.picture
    height, width = request.height or picture.height, request.width or picture.width
    if spec.shape[2] is None and not (request.height or request.width):
        grown = (
            request.image.shape[0] + margins.get("top", 0) + margins.get("bottom", 0),
            request.image.shape[1] + margins.get("left", 0) + margins.get("right", 0),
        )
        height, width = (max(round(n / picture.unit), 1) * picture.unit for n in grown)
    image, mask = pictures.outpaint_canvas(request.image, margins, height, width)
    return replace(request, image=image, mask=mask, height=height, width=width)


def _outputs(output: Path, seeds: tuple[int, ...], overwrite: bool) -> list[Path]:
    from runtime_py import pictures
    from runtime_py.files import require_free

    pictures.require_writable(output)
    several = len(seeds) > 1
    paths = [output.with_stem(f"{output.stem}-{seed}") if several else output for seed in seeds]
    for path in paths:
        require_free(path, overwrite=overwrite)
    return paths
