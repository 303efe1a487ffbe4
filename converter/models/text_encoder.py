"""CLIP's text tower: tokens in, one embedding per token out."""

from __future__ import annotations

from torch import Tensor, nn

from converter import ops
from converter.models.config import TextEncoderConfig
from converter.models.layers import LayerNorm, Linear


class TextEncoder(nn.Module):
    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.encoder = nn.ModuleDict({"layers": layers})
        self.final_layer_norm = LayerNorm(config.width, config.epsilon)

    def forward(self, tokens: Tensor) -> Tensor:
        # tokens [b, n] -> embedding [b, n, width]
        h = self.embeddings(tokens)
        for layer in self.encoder["layers"].children():
            h = layer(h)
        return self.final_layer_norm(h)


class Embeddings(nn.Module):
    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        self.position_embedding = nn.Embedding(config.positions, config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        table, positions = self.token_embedding.weight, self.position_embedding.weight
        return ops.token_embedding(tokens, table, positions)


class Layer(nn.Module):
    def __init__(self, config: TextEncoderConfig) -> None:
        super().__init__()
        self.layer_norm1 = LayerNorm(config.width, config.epsilon)
        self.self_attn = CausalAttention(config.width, config.heads)
        self.layer_norm2 = LayerNorm(config.width, config.epsilon)
        fc1 = Linear(config.width, config.inner, activation=config.activation)
        self.mlp = nn.ModuleDict({"fc1": fc1, "fc2": Linear(config.inner, config.width)})

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.self_attn(self.layer_norm1(h))
        return h + self.mlp["fc2"](self.mlp["fc1"](self.layer_norm2(h)))


class CausalAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.out_proj = Linear(width, width)
        self.heads = heads

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.q_proj(h), self.k_proj(h), self.v_proj(h)
        return self.out_proj(ops.attention(q, k, v, self.heads, True))
