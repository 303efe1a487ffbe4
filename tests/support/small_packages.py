"""A whole package of random bytes, for tests that only carry it about."""

from __future__ import annotations

import random
from pathlib import Path

from runtime_py.package import (
    Component,
    Manifest,
    Package,
    Picture,
    TensorSpec,
    TokenizerSpec,
    seal,
)


def small_package(folder: Path, *, seed: int = 0, size: int = 2_000_000) -> Package:
    (folder / "tokenizer").mkdir(parents=True)
    names = ("unet.bin", "vae.bin", "tokenizer/vocab.json", "tokenizer/merges.txt", "ddim.json")
    for number, name in enumerate(names):
        count = size // (1 if number == 0 else 20)
        (folder / name).write_bytes(random.Random(f"{seed} {name}").randbytes(count))
    latent = TensorSpec("latent", (1, 4, 8, 8), "float32", "NCHW")
    manifest = Manifest(
        model="test",
        target="litert",
        precision="fp16",
        picture=Picture(64, 64, 8, 64, 4, ((0.5,) * 5,) * 3),
        tokenizer=TokenizerSpec("tokenizer/vocab.json", "tokenizer/merges.txt", 77),
        components=tuple(
            Component(name, (f"{name}.bin",), (latent,), (latent,)) for name in ("unet", "vae")
        ),
        samplers={"ddim/4": "ddim.json"},
        default_sampler="ddim/4",
        schedule={"beta_start": 0.00085},
        sources=(),
    )
    return seal(folder, manifest)
