"""What the peers are given: a piece of SD 1.x's UNet with random weights, inputs, torch's answer.

The same weights are put into this converter's module and into diffusers' own, whose answer in fp32
is the reference and which the other runtimes' exporters start from. Nothing heavy is imported
before it is used: these functions run in children whose memory is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime_py.package import TensorSpec

WIDTHS = {"small": (64, 128, 256, 256), "full": (320, 640, 1280, 1280)}
TOKENS, CONTEXT, TIMESTEP = 77, 768, 981.0


@dataclass(frozen=True)
class Subject:
    folder: Path
    piece: str  # "block" or "unet"
    widths: tuple[int, ...]
    latent: int
    batch: int
    precision: str  # "fp16" or "fp32": of stored weights and of arithmetic

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """In the order of the modules' arguments."""
        b, side = self.batch, self.latent
        embedding = TensorSpec("embedding", (b, TOKENS, CONTEXT), "float32", "NLC")
        if self.piece == "block":
            width = self.widths[0]
            return (
                TensorSpec("hidden", (b, width, side, side), "float32", "NCHW"),
                TensorSpec("time", (b, 4 * width), "float32", "NLC"),
                embedding,
            )
        return (
            TensorSpec("latent", (b, 4, side, side), "float32", "NCHW"),
            TensorSpec("timestep", (b,), "float32", "N"),
            embedding,
        )

    @property
    def output(self) -> TensorSpec:
        channels = self.widths[0] if self.piece == "block" else 4
        shape = (self.batch, channels, self.latent, self.latent)
        return TensorSpec("output", shape, "float32", "NCHW")

    @property
    def weights(self) -> Path:
        return self.folder / "weights.safetensors"

    def arrays(self) -> tuple[dict[str, NDArray[Any]], NDArray[Any]]:
        """The inputs by name, and the reference's answer."""
        with np.load(self.folder / "arrays.npz") as file:
            arrays = dict(file)
        answer = arrays.pop("answer")
        return arrays, answer


def prepare(subject: Subject) -> dict[str, Any]:
    import torch
    from safetensors.torch import save_file

    from tools.bench.litert_conversions import random_weight

    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        state = _empty(subject).state_dict()
    weights = {n: random_weight(n, t.shape, generator).half() for n, t in state.items()}
    save_file(weights, subject.weights)
    inputs = {
        spec.name: torch.full(spec.shape, TIMESTEP)
        if spec.name == "timestep"
        else torch.randn(spec.shape, generator=generator)
        for spec in subject.inputs
    }
    with torch.inference_mode():
        answer = diffusers_module(subject)(*inputs.values())
    arrays = {name: tensor.numpy() for name, tensor in {**inputs, "answer": answer}.items()}
    np.savez(subject.folder / "arrays.npz", **arrays)
    return {"parameters": sum(tensor.numel() for tensor in weights.values())}


def tensors(subject: Subject) -> tuple[Any, ...]:
    import torch

    return tuple(torch.from_numpy(array) for array in subject.arrays()[0].values())


def our_module(subject: Subject) -> Any:
    import torch

    with torch.device("meta"):
        module = _empty(subject)
    return _filled(module, subject)


def _empty(subject: Subject) -> Any:
    from torch import Tensor, nn

    from converter.models import UNetConfig, build
    from converter.models.layers import Linear
    from converter.models.unet import Down

    if subject.piece == "unet":
        config = UNetConfig(widths=subject.widths, context=CONTEXT, sample_size=subject.latent)
        return build("unet", config)
    width = subject.widths[0]

    class Block(nn.Module):
        """A residual block and a transformer, after the last layer of the time embedding."""

        def __init__(self) -> None:
            super().__init__()
            config = UNetConfig(widths=(width,), attention=(True,), depth=1, context=CONTEXT)
            self.time = Linear(4 * width, 4 * width, activation="silu")
            self.down = Down(config, 0, 4 * width, halve=False)

        def forward(self, hidden: Tensor, time: Tensor, embedding: Tensor) -> Tensor:
            return self.down(hidden, self.time(time), embedding)[0]

    return Block()


def diffusers_module(subject: Subject, half: bool = False) -> Any:
    """Tensors in, one tensor out: what exporters ask for."""
    import torch
    from diffusers import UNet2DConditionModel
    from diffusers.models.unets.unet_2d_blocks import CrossAttnDownBlock2D
    from torch import Tensor, nn

    width = subject.widths[0]

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Linear(4 * width, 4 * width)
            self.down = CrossAttnDownBlock2D(
                width, width, 4 * width, num_layers=1, num_attention_heads=8,
                cross_attention_dim=CONTEXT, add_downsample=False, resnet_eps=1e-5,
            )  # fmt: skip

        def forward(self, hidden: Tensor, time: Tensor, embedding: Tensor) -> Tensor:
            # diffusers' residual blocks apply the SiLU that ours find already applied
            return self.down(hidden, self.time(time), embedding)[0]

    class Whole(UNet2DConditionModel):
        def forward(self, latent: Tensor, timestep: Tensor, embedding: Tensor) -> Tensor:
            return super().forward(latent, timestep, embedding, return_dict=False)[0]

    with torch.device("meta"):
        if subject.piece == "block":
            return _filled(Block(), subject, half)
        return _filled(
            Whole(
                sample_size=subject.latent,
                block_out_channels=subject.widths,
                cross_attention_dim=CONTEXT,
            ),
            subject,
            half,
        )


def _filled(module: Any, subject: Subject, half: bool = False) -> Any:
    from safetensors.torch import load_file

    stored = load_file(subject.weights)
    state = {name: tensor if half else tensor.float() for name, tensor in stored.items()}
    module.load_state_dict(state, assign=True)
    return module.eval().requires_grad_(False)
