"""pocketsd convert"""

from __future__ import annotations

import time
from pathlib import Path

import click

from runtime_py.cli.options import NamedValue, Size, WeightedFile, overwrite_option, size_options

EPILOG = """\b
Examples:
  pocketsd convert ./stable-diffusion-v1-5
  pocketsd convert model.safetensors --vae better-vae.safetensors -o model.pkg
  pocketsd convert model.ckpt --lora style.safetensors:0.8 --embedding cat.pt:cat
  pocketsd convert ./sd15 --target litert --precision fp16 --height 512 --width 768
  pocketsd convert ./sd15 --target coreml --set ios=17 --set unet.attention=split-einsum-v2
  pocketsd convert ./sd15 --scheduler euler --scheduler lcm --steps 20 --steps 4
"""


@click.command(epilog=EPILOG)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The package to write. [NAME.TARGET]"
)
@click.option("--target", default="torch", show_default=True, help="What the package is for.")
@click.option("--precision", help="How weights are stored. [the target's first]")
@click.option(
    "--recipe",
    type=click.Path(path_type=Path),
    help="A form for each layer's weights, from `pocketsd recipe`; instead of --precision.",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="A recording (`pocketsd record`), for precisions with activations in int8.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    type=NamedValue(),
    metavar="[COMPONENT.]NAME=VALUE",
    help="A setting of the target; repeatable. `pocketsd targets` lists them.",
)
@click.option("--components", help="Only these, separated by commas. [all]")
@size_options
@click.option(
    "--also",
    "sizes",
    multiple=True,
    type=Size(),
    help="A further size in the same package, where the target can share weights; repeatable.",
)
@click.option(
    "--batch-cfg",
    type=click.IntRange(1, 2),
    default=2,
    show_default=True,
    help="UNet batch where shapes are fixed: 2 runs guidance in one pass.",
)
@click.option(
    "--scheduler",
    "schedulers",
    multiple=True,
    default=["dpm++-2m"],
    show_default=True,
    help="Sampler to prepare; repeat for several, the first is the default.",
)
@click.option(
    "--steps",
    multiple=True,
    type=click.IntRange(1, 1000),
    default=[20],
    show_default=True,
    help="Step count to prepare; repeat for several.",
)
@click.option("--vae", type=click.Path(path_type=Path), help="Use this VAE instead.")
@click.option(
    "--lora", "loras", multiple=True, type=WeightedFile(), help="Merge a LoRA; repeatable."
)
@click.option(
    "--embedding",
    "embeddings",
    multiple=True,
    metavar="FILE[:WORD]",
    help="Add a textual inversion; repeatable.",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="Folder with vocab.json and merges.txt, for files that carry none.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Diffusers folder whose JSON says what a single file cannot (heads, norm groups).",
)
@click.option("--ema", is_flag=True, help="Use the EMA weights of a single file.")
@click.option("--dry-run", is_flag=True, help="Read and check everything, write nothing.")
@overwrite_option
def command(
    model: Path,
    output: Path | None,
    target: str,
    precision: str | None,
    recipe: Path | None,
    calibration: Path | None,
    settings: tuple[tuple[str, str], ...],
    components: str | None,
    height: int | None,
    width: int | None,
    sizes: tuple[tuple[int, int], ...],
    batch_cfg: int,
    schedulers: tuple[str, ...],
    steps: tuple[int, ...],
    vae: Path | None,
    loras: tuple[tuple[Path, float], ...],
    embeddings: tuple[str, ...],
    tokenizer: Path | None,
    config: Path | None,
    ema: bool,
    dry_run: bool,
    overwrite: bool,
) -> None:
    """Turn a checkpoint into a package for one target.

    MODEL is a diffusers folder or a single .safetensors or .ckpt file of Stable Diffusion 1.x;
    what it is, is found out from its weights.
    """
    from runtime_py.cli.heavy import converter_module
    from runtime_py.cli.progress import stages
    from runtime_py.files import require_free
    from runtime_py.recording import read

    started = time.perf_counter()
    out = output or Path(
        f"{model.resolve().stem if model.is_file() else model.resolve().name}.{target}"
    )
    if not dry_run:
        require_free(out, overwrite=overwrite)
    conversion = converter_module("convert")
    read_recipe = converter_module("quantize.recipe_file").read
    options = converter_module("options").Options(
        target=target,
        precision=precision,
        components=tuple(c.strip() for c in components.split(",")) if components else (),
        height=height,
        width=width,
        batch_cfg=batch_cfg,
        schedulers=schedulers,
        steps=steps,
        recording=None if calibration is None else read(calibration),
        settings=dict(settings),
        recipe=None if recipe is None else read_recipe(recipe),
        sizes=sizes,
    )
    converter_module("options").check(options)
    with stages("Reading", 4) as announce:
        checkpoint = converter_module("checkpoints").open_checkpoint(
            model,
            vae=vae,
            tokenizer=tokenizer,
            config=config,
            ema=ema,
            loras=loras,
            embeddings=tuple(_embedding(e) for e in embeddings),
            progress=announce,
        )
    if dry_run:
        conversion.plan(checkpoint, options)
        click.echo(f"{model} converts to {target}; nothing was written.")
        return
    with stages("Converting", conversion.stage_count(options)) as announce:
        package = conversion.convert(
            checkpoint, out, options, overwrite=overwrite, announce=announce
        )
    size = sum(entry.bytes for entry in package.manifest.files.values())
    click.echo(f"{out}: {size / 1e6:.1f} MB in {time.perf_counter() - started:.1f} s")


def _embedding(value: str) -> tuple[Path, str | None]:
    path, colon, word = value.rpartition(":")
    return (Path(path), word) if colon and not Path(value).exists() else (Path(value), None)
