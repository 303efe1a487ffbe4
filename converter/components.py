"""The components of a package: which weights they are made of, what goes in and what comes out.

The one list that every target, test and report walks over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from converter.checkpoints import Checkpoint
from converter.models import ComponentConfig, build
from runtime_py.package import TensorSpec

Size = int | None  # None: any


@dataclass(frozen=True)
class Geometry:
    """The sizes of one conversion; None leaves a size free, where the target can."""

    height: Size
    width: Size
    shrink: int
    latent_channels: int
    text_length: int
    text_width: int
    prompts: Size = None  # batch of the text encoder
    samples: Size = None  # batch of the denoiser: 2 when guidance runs both passes at once
    pictures: Size = None  # batch of the VAE

    def latent(self, name: str, batch: Size) -> TensorSpec:
        height, width = (n and n // self.shrink for n in (self.height, self.width))
        return TensorSpec(name, (batch, self.latent_channels, height, width), "float32", "NCHW")

    def picture(self) -> TensorSpec:
        return TensorSpec("picture", (self.pictures, 3, self.height, self.width), "float32", "NCHW")

    def embedding(self, batch: Size) -> TensorSpec:
        shape = (batch, self.text_length, self.text_width)
        return TensorSpec("embedding", shape, "float32", "NLC")

    def tokens(self) -> TensorSpec:
        return TensorSpec("tokens", (self.prompts, self.text_length), "int32", "NL")

    def timestep(self) -> TensorSpec:
        return TensorSpec("timestep", (self.samples,), "float32", "N")


@dataclass(frozen=True)
class ComponentSpec:
    name: str
    part: str  # of the checkpoint
    inputs: Callable[[Geometry], tuple[TensorSpec, ...]]  # in the order of the module's arguments
    outputs: Callable[[Geometry], tuple[TensorSpec, ...]]

    def config(self, checkpoint: Checkpoint) -> ComponentConfig:
        config: ComponentConfig = getattr(checkpoint, self.part)
        return config

    def module(self, checkpoint: Checkpoint) -> nn.Module:
        """The module with the checkpoint's weights in fp32, ready to run or export."""
        return with_weights(
            self.name, self.config(checkpoint), lambda name: checkpoint.weights[self.part][name]
        )


COMPONENTS: tuple[ComponentSpec, ...] = (
    ComponentSpec(
        "text_encoder",
        "text_encoder",
        inputs=lambda g: (g.tokens(),),
        outputs=lambda g: (g.embedding(g.prompts),),
    ),
    ComponentSpec(
        "unet",
        "unet",
        inputs=lambda g: (g.latent("latent", g.samples), g.timestep(), g.embedding(g.samples)),
        outputs=lambda g: (g.latent("noise", g.samples),),
    ),
    ComponentSpec(
        "vae_decoder",
        "vae",
        inputs=lambda g: (g.latent("latent", g.pictures),),
        outputs=lambda g: (g.picture(),),
    ),
    ComponentSpec(
        "vae_encoder",
        "vae",
        inputs=lambda g: (g.picture(),),
        outputs=lambda g: (g.latent("latent", g.pictures),),
    ),
)


def get_component(name: str) -> ComponentSpec:
    return next(spec for spec in COMPONENTS if spec.name == name)


def geometry(
    checkpoint: Checkpoint, height: Size, width: Size, samples: Size = None, fixed: Size = None
) -> Geometry:
    """The sizes for a checkpoint; `fixed` is the batch of everything but the denoiser."""
    return Geometry(
        height=height,
        width=width,
        shrink=checkpoint.vae.shrink,
        latent_channels=checkpoint.unet.in_channels,
        text_length=checkpoint.text_encoder.positions,
        text_width=checkpoint.text_encoder.width,
        prompts=fixed,
        samples=samples,
        pictures=fixed,
    )


def with_weights(
    component: str, config: ComponentConfig, weight: Callable[[str], Tensor]
) -> nn.Module:
    """Build a component around weights; no memory is spent on initial values."""
    with torch.device("meta"):
        module = build(component, config)
    state = {name: weight(name).to(torch.float32) for name in module.state_dict()}
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)


def example(specs: tuple[TensorSpec, ...], seed: int = 0) -> tuple[Tensor, ...]:
    """Inputs of the right shape for tracing; free sizes become small ones."""
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for spec in specs:
        shape = [2 if n is None else n for n in spec.shape]
        if spec.dtype == "int32":
            inputs.append(torch.randint(0, 100, shape, generator=generator, dtype=torch.int32))
        elif spec.name == "timestep":
            inputs.append(torch.full(shape, 981.0))
        else:
            inputs.append(torch.randn(shape, generator=generator))
    return tuple(inputs)
