"""Trains tiny-sd, the embedded model, from nothing, on a CPU.

    python -m tools.train_tiny_sd all --cache build/tiny-sd --out mobile_assets/tiny-sd

The stages - autoencoder, text encoder, latents, denoiser, export - can be run one by one; each
has a budget in minutes, reports its progress, and takes up its checkpoint in the cache folder if
it was interrupted. A finished stage is not run again: delete its file in the cache to redo it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch
from diffusers import AutoencoderKL
from transformers import CLIPTextModel

from tools.tiny_sd import text, unet, vae
from tools.tiny_sd.export import export
from tools.tiny_sd.tokenizer import write_tokenizer

SEED = 1


def _options(command: Callable[..., None]) -> Callable[..., None]:
    cache = click.Path(file_okay=False, path_type=Path)
    command = click.option("--seed", default=SEED, show_default=True)(command)
    command = click.option("--workers", default=2, show_default=True, help="Processes.")(command)
    return click.option("--cache", type=cache, required=True, help="For checkpoints.")(command)


def _minutes(default: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--minutes", type=float, default=default, show_default=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Train the embedded model (see the head of this file)."""
    torch.set_num_threads(1)  # the parallelism is in the workers


@main.command("vae")
@_options
@_minutes(12)
def train_vae(cache: Path, workers: int, seed: int, minutes: float) -> None:
    """Stage 1: the autoencoder."""
    cache.mkdir(parents=True, exist_ok=True)
    model = vae.train(minutes, cache, seed, workers)
    model.save_pretrained(cache / "vae")
    quality = vae.psnr(model, vae.sample_pictures(64, seed + 2))
    click.echo(f"vae: {quality:.2f} dB, scaling factor {model.config.scaling_factor}")


@main.command("text")
@_options
@_minutes(2.5)
def train_text(cache: Path, workers: int, seed: int, minutes: float) -> None:
    """Stage 2: the vocabulary and the text encoder."""
    folder = cache / "tokenizer"
    click.echo(f"text: {len(write_tokenizer(folder))} tokens")
    text.train(minutes, cache, seed, workers, folder)


@main.command("latents")
@_options
@click.option("--count", default=9000, show_default=True, help="Training pictures.")
def prepare_latents(cache: Path, workers: int, seed: int, count: int) -> None:
    """Stage 3: latents and caption embeddings of the training pictures."""
    start = time.monotonic()
    folder = cache / "tokenizer"
    encoder = _text_encoder(cache, workers, seed)
    unet.prepare(count, cache, seed, workers, _vae(cache), encoder, folder)
    click.echo(f"latents: {count} pictures, {(time.monotonic() - start) / 60:.1f} min")


@main.command("unet")
@_options
@_minutes(90)
@click.option(
    "--start", type=click.Path(exists=True, path_type=Path), help="Begin with these weights."
)
def train_unet(
    cache: Path, workers: int, seed: int, minutes: float, start: Path | None = None
) -> None:
    """Stage 4: the denoiser."""
    data = torch.load(cache / "latents.pt", weights_only=True)
    unet.train(minutes, cache, seed, workers, data, start)


@main.command("export")
@_options
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True)
def write_folder(cache: Path, workers: int, seed: int, out: Path) -> None:
    """Stage 5: a diffusers folder, of whatever the checkpoints hold by now."""
    encoder = _text_encoder(cache, workers, seed)
    export(out, encoder, unet.load(cache), _vae(cache), cache / "tokenizer")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    click.echo(f"export: {out}, {size / 1e6:.1f} MB")


@main.command("all")
@_options
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True)
@click.pass_context
def everything(ctx: click.Context, cache: Path, workers: int, seed: int, out: Path) -> None:
    """All stages with their default budgets."""
    common = {"cache": cache, "workers": workers, "seed": seed}
    for stage in (train_vae, train_text, prepare_latents, train_unet):
        ctx.invoke(stage, **common)
    ctx.invoke(write_folder, out=out, **common)


@main.command("take-up")
@click.option("--model", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--cache", type=click.Path(path_type=Path), required=True)
def take_up(model: Path, cache: Path) -> None:
    """Fill a cache from an exported folder, to train its denoiser further.

    Then run latents, `unet --start MODEL` and export.
    """
    # The tokenizer too: a new one would number words after today's captions, not the model's.
    for part in ("vae", "text_encoder", "tokenizer"):
        shutil.copytree(model / part, cache / part)


def _text_encoder(cache: Path, workers: int, seed: int) -> CLIPTextModel:
    """The stage's own, or the one that was taken up."""
    if (cache / "text_encoder").is_dir():
        return CLIPTextModel.from_pretrained(cache / "text_encoder", dtype=torch.float32).eval()
    return text.train(0, cache, seed, workers, cache / "tokenizer")


def _vae(cache: Path) -> AutoencoderKL:
    vae = AutoencoderKL.from_pretrained(cache / "vae", torch_dtype=torch.float32)
    return vae.eval().requires_grad_(False)


if __name__ == "__main__":
    main()
