"""The parts of Stable Diffusion 1.x as plain PyTorch, written on the fused ops of `converter.ops`.

Parameter names are those of diffusers (and of transformers for the text encoder): these are the
names that checkpoints, LoRAs and tools in the wild agree on.
"""

from __future__ import annotations

from torch import nn

from converter.models.config import ComponentConfig, TextEncoderConfig, UNetConfig, VaeConfig
from converter.models.text_encoder import TextEncoder
from converter.models.unet import UNet
from converter.models.vae import Vae, VaeDecoder, VaeEncoder

__all__ = [
    "ComponentConfig",
    "TextEncoder",
    "TextEncoderConfig",
    "UNet",
    "UNetConfig",
    "Vae",
    "VaeConfig",
    "VaeDecoder",
    "VaeEncoder",
    "build",
]

_BUILDERS: dict[str, type[nn.Module]] = {
    "text_encoder": TextEncoder,
    "unet": UNet,
    "vae": Vae,
    "vae_decoder": VaeDecoder,
    "vae_encoder": VaeEncoder,
}


def build(component: str, config: ComponentConfig) -> nn.Module:
    """The module of a checkpoint part or of a package component, its weights not yet set."""
    return _BUILDERS[component](config)
