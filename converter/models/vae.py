"""The autoencoder: pictures in [-1, 1] to latents and back.

Latents here are those the denoiser works on: the scaling factor is applied inside, so that no
caller has to know it.
"""

from __future__ import annotations

from torch import Tensor, nn

from converter import ops
from converter.models.config import VaeConfig
from converter.models.layers import (
    Conv2d,
    GroupNorm,
    Linear,
    Resample,
    ResBlock,
)


class VaeEncoder(nn.Module):
    """Picture in, the mean of its latent out.

    The distribution's width, which checkpoints also predict, is some thousand times smaller than
    its mean in SD 1.x: leaving it out makes img2img repeatable at no visible cost.
    """

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        self.scale = config.scaling_factor
        self.encoder = Encoder(config)
        self.quant_conv = Conv2d(2 * config.latent_channels, 2 * config.latent_channels, 1)

    def forward(self, picture: Tensor) -> Tensor:
        # picture [b, 3, 8h, 8w] -> latent [b, 4, h, w]
        h, last, half = self.encoder(picture), self.quant_conv, len(self.quant_conv.bias) // 2
        # Of its two halves, mean and logarithm of the variance, only the first is computed.
        mean = ops.conv2d(h, last.weight[:half], last.bias[:half], 1, last.padding, 1)
        return mean * self.scale


class VaeDecoder(nn.Module):
    """Latent in, picture out."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        self.scale = config.scaling_factor
        self.post_quant_conv = Conv2d(config.latent_channels, config.latent_channels, 1)
        self.decoder = Decoder(config)

    def forward(self, latent: Tensor) -> Tensor:
        # latent [b, 4, h, w] -> picture [b, 3, 8h, 8w]
        return self.decoder(self.post_quant_conv(latent * (1.0 / self.scale)))


class Vae(nn.Module):
    """Both halves under one roof, as checkpoints store them."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        for half in (VaeEncoder(config), VaeDecoder(config)):
            for name, part in half.named_children():
                self.add_module(name, part)


def _res_block(config: VaeConfig, into: int, out: int) -> ResBlock:
    return ResBlock(into, out, groups=config.groups, epsilon=config.epsilon)


def _through(block: nn.Module, h: Tensor) -> Tensor:
    """A level's residual blocks, then what changes the size, as they were put in."""
    for parts in block.children():
        for part in parts.children():
            h = part(h)
    return h


class Encoder(nn.Module):
    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        widths, last = config.widths, len(config.widths) - 1
        self.conv_in = Conv2d(config.in_channels, widths[0])
        self.down_blocks = nn.ModuleList()
        for level, width in enumerate(widths):
            into = [widths[max(level - 1, 0)]] + [width] * (config.depth - 1)
            # SD pads only after the last row and column when it halves a picture here.
            halve = [Resample(width, stride=2, padding=[0, 1, 0, 1])] if level < last else []
            block = {
                "resnets": nn.ModuleList(_res_block(config, c, width) for c in into),
                "downsamplers": nn.ModuleList(halve),
            }
            self.down_blocks.append(nn.ModuleDict(block))
        self.mid_block = Mid(config)
        self.conv_norm_out = GroupNorm(config.groups, widths[-1], config.epsilon, silu=True)
        self.conv_out = Conv2d(widths[-1], 2 * config.latent_channels)

    def forward(self, picture: Tensor) -> Tensor:
        h = self.conv_in(picture)
        for block in self.down_blocks:
            h = _through(block, h)
        return self.conv_out(self.conv_norm_out(self.mid_block(h)))


class Decoder(nn.Module):
    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        widths = config.widths[::-1]
        self.conv_in = Conv2d(config.latent_channels, widths[0])
        self.mid_block = Mid(config)
        self.up_blocks = nn.ModuleList()
        for level, width in enumerate(widths):
            into = [widths[max(level - 1, 0)]] + [width] * config.depth
            double = [Resample(width, upsample=2)] if level < len(widths) - 1 else []
            block = {
                "resnets": nn.ModuleList(_res_block(config, c, width) for c in into),
                "upsamplers": nn.ModuleList(double),
            }
            self.up_blocks.append(nn.ModuleDict(block))
        self.conv_norm_out = GroupNorm(config.groups, widths[-1], config.epsilon, silu=True)
        self.conv_out = Conv2d(widths[-1], config.in_channels)

    def forward(self, latent: Tensor) -> Tensor:
        h = self.mid_block(self.conv_in(latent))
        for block in self.up_blocks:
            h = _through(block, h)
        return self.conv_out(self.conv_norm_out(h))


class Mid(nn.Module):
    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        width = config.widths[-1]
        self.resnets = nn.ModuleList(_res_block(config, width, width) for _ in range(2))
        self.attentions = nn.ModuleList([SelfAttention(config, width)])

    def forward(self, h: Tensor) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](h)))


class SelfAttention(nn.Module):
    """Every position of the smallest map looks at every other, with a single head."""

    def __init__(self, config: VaeConfig, width: int) -> None:
        super().__init__()
        self.group_norm = GroupNorm(config.groups, width, config.epsilon)
        self.to_q = Linear(width, width)
        self.to_k = Linear(width, width)
        self.to_v = Linear(width, width)
        self.to_out = nn.ModuleList([Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        h = ops.to_tokens(self.group_norm(x))  # [b, h * w, width]
        h = ops.attention(self.to_q(h), self.to_k(h), self.to_v(h), 1, False)
        return x + ops.to_picture(self.to_out[0](h), *x.shape[2:])
