"""An engine of plain arithmetic, small enough to be written again in any language.

Ports of the loop are held to the pictures that Python draws with it. Every operation is one that
IEEE 754 rounds in one way (no sine, no exponential), so ports can agree to the last bit or nearly.
All in float32; b counts the batch, c channels, y and x cells.

    text_encoder   embedding[b, i, c] = ((tokens[b, i] (c + 1) + i) mod 64) / 64     2 channels
    unet           noise[b, c, y, x] = (0.25 z - 0.125 w + bias) / (1 + |z|) + timestep[b] / 2048
                   z, w, bias = latent[b, c, y, x], latent[b, c - 1 mod 4, y, x],
                                sum(embedding[b]) / 128 - 0.5
    vae_encoder    latent[b, c, y, x] = picture[b, c mod 3, 8 y, 8 x] / 2            4 channels
    vae_decoder    picture[b, c, y, x] = latent[b, c, y div 8, x div 8] / 2 + ((x + y) mod 8) / 16
                                                                                     3 channels
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runtime_py.engines import Array, check_inputs
from runtime_py.package import Component, Package, TensorSpec

SHRINK, LENGTH, WIDTH = 8, 77, 2


class FakeEngine:
    """Keeps a list of its calls: [component, batch], ["unload", component]."""

    targets = ("fake",)

    def __init__(self, package: Package, **options: Any) -> None:
        self.package = package
        self.calls: list[list[str | int]] = []

    def load(self, component: str) -> None:
        pass

    def run(self, component: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        check_inputs(self.package, component, inputs)
        self.calls.append([component, len(next(iter(inputs.values())))])
        answer = _ANSWERS[component](**inputs).astype(np.float32, copy=False)
        return {self.package.manifest.component(component).outputs[0].name: answer}

    def unload(self, component: str) -> None:
        self.calls.append(["unload", component])

    def close(self) -> None:
        pass


def components(batch: int | None) -> tuple[Component, ...]:
    """The fake's components for a manifest; `batch` is the UNet's, None for any."""
    others = None if batch is None else 1
    latent, picture = (4, 16 // SHRINK, 24 // SHRINK), (3, 16, 24)

    def spec(name: str, size: int | None, *shape: int, dtype: str = "float32") -> TensorSpec:
        layout = {0: "N", 1: "NL", 2: "NLC", 3: "NCHW"}[len(shape)]
        return TensorSpec(name, (size, *shape), dtype, layout)

    def component(name: str, inputs: tuple[TensorSpec, ...], output: TensorSpec) -> Component:
        return Component(name, (f"{name}.bin",), inputs, (output,))

    tokens = spec("tokens", others, LENGTH, dtype="int32")
    denoised = (spec("latent", batch, *latent), spec("timestep", batch))
    embedding = spec("embedding", batch, LENGTH, WIDTH)
    return (
        component("text_encoder", (tokens,), spec("embedding", others, LENGTH, WIDTH)),
        component("unet", (*denoised, embedding), spec("noise", batch, *latent)),
        component(
            "vae_decoder", (spec("latent", others, *latent),), spec("picture", others, *picture)
        ),
        component(
            "vae_encoder", (spec("picture", others, *picture),), spec("latent", others, *latent)
        ),
    )


def _text_encoder(tokens: Array) -> Array:
    channel = np.arange(1, WIDTH + 1)
    sums = tokens[:, :, None] * channel + np.arange(tokens.shape[1])[None, :, None]  # [b, i, c]
    return (sums % 64 / np.float32(64)).astype(np.float32)


def _unet(latent: Array, timestep: Array, embedding: Array) -> Array:
    bias = embedding.sum(axis=(1, 2)) / np.float32(128) - np.float32(0.5)  # [b]
    before = np.roll(latent, 1, axis=1)
    mixed = np.float32(0.25) * latent - np.float32(0.125) * before + bias[:, None, None, None]
    return mixed / (1 + np.abs(latent)) + (timestep / np.float32(2048))[:, None, None, None]


def _vae_encoder(picture: Array) -> Array:
    return picture[:, [0, 1, 2, 0], ::SHRINK, ::SHRINK] * np.float32(0.5)


def _vae_decoder(latent: Array) -> Array:
    large = latent[:, :3].repeat(SHRINK, axis=2).repeat(SHRINK, axis=3)
    y, x = np.indices(large.shape[2:])
    return large * np.float32(0.5) + ((x + y) % 8 / 16).astype(np.float32)


_ANSWERS = {
    "text_encoder": _text_encoder,
    "unet": _unet,
    "vae_encoder": _vae_encoder,
    "vae_decoder": _vae_decoder,
}
