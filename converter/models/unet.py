"""SD 1.x's denoiser: a U of residual blocks, most levels with transformers that read the text."""

from __future__ import annotations

from torch import Tensor, nn

from converter import ops
from converter.models.config import UNetConfig
from converter.models.layers import (
    Conv2d,
    GroupNorm,
    LayerNorm,
    Linear,
    Resample,
    ResBlock,
)


class UNet(nn.Module):
    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        widths, last = config.widths, len(config.widths) - 1
        time = 4 * widths[0]
        self.conv_in = Conv2d(config.in_channels, widths[0])
        self.time_embedding = TimeEmbedding(widths[0], time)
        self.down_blocks = nn.ModuleList(
            Down(config, level, time, halve=level < last) for level in range(len(widths))
        )
        self.mid_block = Mid(config, time) if config.mid else None
        self.up_blocks = nn.ModuleList(
            Up(config, level, time, double=level > 0) for level in reversed(range(len(widths)))
        )
        self.conv_norm_out = GroupNorm(config.groups, widths[0], config.epsilon, silu=True)
        self.conv_out = Conv2d(widths[0], config.out_channels)

    def forward(self, latent: Tensor, timestep: Tensor, embedding: Tensor) -> Tensor:
        # latent [b, 4, h, w], timestep [b], embedding [b, n, context] -> noise [b, 4, h, w]
        c = self.config
        sinusoid = ops.timestep_embedding(timestep, c.widths[0], c.flip_sin_to_cos, c.freq_shift)
        time = self.time_embedding(sinusoid.type_as(latent))
        h = self.conv_in(latent)
        skips = [h]
        for down in self.down_blocks:
            h, kept = down(h, time, embedding)
            skips += kept
        if self.mid_block is not None:
            h = self.mid_block(h, time, embedding)
        for up in self.up_blocks:
            h = up(h, skips, time, embedding)
        return self.conv_out(self.conv_norm_out(h))


class TimeEmbedding(nn.Module):
    """Every block begins by applying SiLU to its result, so that is done once, here."""

    def __init__(self, width: int, time: int) -> None:
        super().__init__()
        self.linear_1 = Linear(width, time, activation="silu")
        self.linear_2 = Linear(time, time, activation="silu")

    def forward(self, sinusoid: Tensor) -> Tensor:
        return self.linear_2(self.linear_1(sinusoid))


def _res_block(config: UNetConfig, into: int, out: int, time: int) -> ResBlock:
    return ResBlock(into, out, groups=config.groups, epsilon=config.epsilon, time=time)


class Down(nn.Module):
    """One level on the way in; returns what the way out will want back."""

    def __init__(self, config: UNetConfig, level: int, time: int, halve: bool) -> None:
        super().__init__()
        width = config.widths[level]
        into = [config.widths[max(level - 1, 0)]] + [width] * (config.depth - 1)
        self.resnets = nn.ModuleList(_res_block(config, c, width, time) for c in into)
        self.attentions = _transformers(config, level, len(into))
        self.downsamplers = nn.ModuleList([Resample(width, stride=2)] if halve else [])

    def forward(self, h: Tensor, time: Tensor, embedding: Tensor) -> tuple[Tensor, list[Tensor]]:
        kept = []
        for i, resnet in enumerate(self.resnets):
            h = resnet(h, time)
            if self.attentions:
                h = self.attentions[i](h, embedding)
            kept.append(h)
        for halve in self.downsamplers:
            h = halve(h)
            kept.append(h)
        return h, kept


class Mid(nn.Module):
    def __init__(self, config: UNetConfig, time: int) -> None:
        super().__init__()
        width = config.widths[-1]
        self.resnets = nn.ModuleList(_res_block(config, width, width, time) for _ in range(2))
        self.attentions = nn.ModuleList([Transformer(config, width, config.heads[-1])])

    def forward(self, h: Tensor, time: Tensor, embedding: Tensor) -> Tensor:
        h = self.attentions[0](self.resnets[0](h, time), embedding)
        return self.resnets[1](h, time)


class Up(nn.Module):
    """One level on the way out; takes its skips off the end of the list."""

    def __init__(self, config: UNetConfig, level: int, time: int, double: bool) -> None:
        super().__init__()
        widths, last = config.widths, len(config.widths) - 1
        width, below, outer = widths[level], widths[min(level + 1, last)], widths[max(level - 1, 0)]
        # The last skip of a level is the input of that level, hence as wide as the level outside.
        main = [below] + [width] * config.depth
        skip = [width] * config.depth + [outer]
        self.resnets = nn.ModuleList(
            _res_block(config, m + s, width, time) for m, s in zip(main, skip, strict=True)
        )
        self.attentions = _transformers(config, level, len(main))
        self.upsamplers = nn.ModuleList([Resample(width, upsample=2)] if double else [])

    def forward(self, h: Tensor, skips: list[Tensor], time: Tensor, embedding: Tensor) -> Tensor:
        for i, resnet in enumerate(self.resnets):
            h = resnet(ops.join(h, skips.pop()), time)
            if self.attentions:
                h = self.attentions[i](h, embedding)
        for double in self.upsamplers:
            h = double(h)
        return h


def _transformers(config: UNetConfig, level: int, count: int) -> nn.ModuleList:
    if not config.attention[level]:
        return nn.ModuleList()
    width, heads = config.widths[level], config.heads[level]
    return nn.ModuleList(Transformer(config, width, heads) for _ in range(count))


class Transformer(nn.Module):
    """Treats the picture as a sequence: looks at itself, then at the text, then thinks."""

    def __init__(self, config: UNetConfig, width: int, heads: int) -> None:
        super().__init__()
        self.norm = GroupNorm(config.groups, width, 1e-6)
        self.proj_in = Conv2d(width, width, 1)
        self.transformer_blocks = nn.ModuleList([TransformerBlock(width, heads, config.context)])
        self.proj_out = Conv2d(width, width, 1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        h = ops.to_tokens(self.proj_in(self.norm(x)))  # [b, h * w, width]
        for block in self.transformer_blocks:
            h = block(h, embedding)
        return x + self.proj_out(ops.to_picture(h, *x.shape[2:]))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.norm1 = LayerNorm(width)
        self.attn1 = Attention(width, width, heads)
        self.norm2 = LayerNorm(width)
        self.attn2 = Attention(width, context, heads)
        self.norm3 = LayerNorm(width)
        self.ff = FeedForward(width)

    def forward(self, h: Tensor, embedding: Tensor) -> Tensor:
        n = self.norm1(h)
        h = h + self.attn1(n, n)
        h = h + self.attn2(self.norm2(h), embedding)
        return h + self.ff(self.norm3(h))


class Attention(nn.Module):
    def __init__(self, width: int, context: int, heads: int) -> None:
        super().__init__()
        self.to_q = Linear(width, width, bias=False)
        self.to_k = Linear(context, width, bias=False)
        self.to_v = Linear(context, width, bias=False)
        self.to_out = nn.ModuleList([Linear(width, width)])
        self.heads = heads

    def forward(self, h: Tensor, context: Tensor) -> Tensor:
        q, k, v = self.to_q(h), self.to_k(context), self.to_v(context)
        return self.to_out[0](ops.attention(q, k, v, self.heads, False))


class GeGlu(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.proj = Linear(width, 2 * inner)  # its parameters only: the product is in the op

    def forward(self, h: Tensor) -> Tensor:
        return ops.geglu(h, self.proj.weight, self.proj.bias)


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        # Index 1 is the dropout of training: it keeps checkpoints' numbering.
        self.net = nn.ModuleList([GeGlu(width, 4 * width), nn.Identity(), Linear(4 * width, width)])

    def forward(self, h: Tensor) -> Tensor:
        return self.net[2](self.net[0](h))
