"""The layers of a component that have weights to compress, and those not worth it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import nn

from converter.checkpoints import Checkpoint
from converter.components import ComponentSpec
from converter.models import build
from converter.quantize.forms import FP16, WeightForm
from converter.quantize.recipe_file import ComponentRecipe

Shapes = Mapping[str, tuple[int, ...]]

#: Smaller layers stay in fp16 unless a measured recipe says otherwise. Of the embedded model's
#: UNet that is 1 % of the weights and worth 10 dB in palette4, 8 dB in palette6 (VAE decoder: 4 and
#: 9 dB for 2 %).
FEWEST_WEIGHTS = 4096
#: So do those where a latent or a picture enters or leaves, by the end of their path. In SD 1.5
#: they have 11,520 weights; here they alone are worth 3 to 9 dB.
EDGES = ("conv_in", "conv_out", "quant_conv", "post_quant_conv")


def layers_of(component: nn.Module) -> dict[str, nn.Parameter]:
    """The weights by module path: matrices, convolutions and tables of embeddings."""
    return {
        path: module.weight
        for path, module in component.named_modules()
        if isinstance(getattr(module, "weight", None), nn.Parameter) and module.weight.ndim > 1
    }


def shapes_of(component: nn.Module) -> dict[str, tuple[int, ...]]:
    return {path: tuple(weight.shape) for path, weight in layers_of(component).items()}


def shapes_in(checkpoint: Checkpoint, spec: ComponentSpec) -> dict[str, tuple[int, ...]]:
    """As `shapes_of`, without touching a weight."""
    with torch.device("meta"):
        return shapes_of(build(spec.name, spec.config(checkpoint)))


def spared(layer: str, shape: tuple[int, ...]) -> bool:
    return prod(shape) < FEWEST_WEIGHTS or layer.rpartition(".")[2] in EDGES


def uniform(form: WeightForm, shapes: Shapes) -> ComponentRecipe:
    """One form for a whole component, but for the layers that are better spared."""
    small = {layer: FP16 for layer, shape in shapes.items() if spared(layer, shape)}
    return ComponentRecipe(form, {} if form == FP16 else small)
