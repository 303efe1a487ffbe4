"""pocketsd bench"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from runtime_py.engines.webgpu import WebGPUEngine

EPILOG = """\b
Examples:
  pocketsd bench tiny-sd.webgpu --profile
  pocketsd bench tiny-sd.webgpu --profile --component vae_decoder --trace decoder.json
  pocketsd bench mobile_assets/tiny-sd --ablate
  pocketsd bench sd15 --ablate --height 256 --width 256 --adapter llvmpipe
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--profile", is_flag=True, help="Time every kernel of a webgpu package.")
@click.option(
    "--ablate", is_flag=True, help="Of a checkpoint: add one optimisation of the kernels at a time."
)
@click.option("--component", default="unet", show_default=True, help="What to run.")
@click.option("--adapter", help="Part of a GPU's name. [the likeliest GPU]")
@click.option("--trace", type=click.Path(path_type=Path), help="With --profile: for Perfetto.")
@click.option("--layers", is_flag=True, help="With --profile: by layer instead of by kernel.")
@click.option("--height", type=click.IntRange(8, 4096), help="With --ablate. [the model's]")
@click.option("--width", type=click.IntRange(8, 4096), help="With --ablate. [the model's]")
@click.option("--batch-cfg", type=click.IntRange(1, 2), default=2, show_default=True)
@click.option("--precision", type=click.Choice(["fp16", "fp32"]), default="fp16", show_default=True)
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True)
def command(model: Path, profile: bool, ablate: bool, **options: Any) -> None:
    """Say where the time goes on this host's GPU.

    Times are of this host and of the adapter that is named; they say nothing about a phone.
    """
    if profile == ablate:
        raise click.UsageError("one of --profile (of a package) and --ablate (of a checkpoint)")
    if profile:
        _profile(model, **options)
    else:
        _ablate(model, **options)


def _profile(
    path: Path, component: str, adapter: str | None, trace: Path | None, layers: bool, **_: Any
) -> None:
    import msgspec
    import numpy as np

    from runtime_py.cli.opening import open_checked
    from runtime_py.cli.progress import stages
    from runtime_py.engines import open_engine
    from runtime_py.errors import PocketSDError
    from runtime_py.files import atomic_file
    from runtime_py.webgpu import profile

    package = open_checked(path)
    if package.manifest.target != "webgpu":
        raise PocketSDError("only webgpu packages can be profiled", where=path)
    engine: WebGPUEngine = open_engine(package, "webgpu", adapter=adapter)  # type: ignore[assignment]
    generator = np.random.default_rng(0)
    inputs = {}
    for spec in package.manifest.component(component).inputs:
        shape = tuple(n or 1 for n in spec.shape)
        values = 500 if spec.name == "timestep" else generator.standard_normal(shape)
        inputs[spec.name] = np.broadcast_to(np.asarray(values), shape).astype(spec.dtype)
    with stages(f"Profiling {component}", 2) as say:
        say("first run, which compiles")
        engine.run(component, inputs)
        say("timed run")
        _, timings = engine.profile(component, inputs)
    rows = profile.shares(timings, profile.layer if layers else profile.kernel)
    click.echo(f"{component} on {engine.adapter}")
    click.echo(profile.table(rows))
    click.echo(f"{len(timings)} kernels, {1000 * sum(r.seconds for r in rows):.1f} ms together")
    if trace:
        with atomic_file(trace) as file:
            file.write_bytes(msgspec.json.encode(profile.trace(component, timings)))
    engine.close()


def _ablate(
    path: Path,
    component: str,
    adapter: str | None,
    height: int | None,
    width: int | None,
    batch_cfg: int,
    precision: str,
    rounds: int,
    **_: Any,
) -> None:
    from runtime_py.cli.heavy import converter_module
    from runtime_py.cli.progress import stages
    from runtime_py.errors import PocketSDError
    from runtime_py.webgpu.adapters import choose, open_device

    if not path.exists():  # before a GPU is looked for
        raise PocketSDError("there is no such file or folder", where=path)
    run = converter_module("targets.webgpu.ablation")
    chosen = choose(adapter)
    subject = converter_module("targets.webgpu.subject").of_checkpoint(
        path, component, height, width, batch_cfg
    )
    device = open_device(chosen, {"shader-f16", "subgroup"})
    arithmetic = {"fp16": "f16", "fp32": "f32"}[precision]
    with stages("Ablation", len(run.STEPS) * (1 + rounds)) as say:
        rows = run.ablate(device, *subject, arithmetic=arithmetic, rounds=rounds, announce=say)
    click.echo(f"{component} in {precision} on {chosen}; every row with all that is above it")
    click.echo(run.table(rows))
    tiles = converter_module("targets.webgpu.tiles")
    click.echo("\nWinograd's tiles against the direct kernel, 64 channels, on the same adapter")
    click.echo(tiles.tile_table(list(tiles.tile_rows(device, arithmetic))))
