"""Multi-head attention on projected tokens: softmax(Q K^T / sqrt(d)) V as one op.

Heads stay packed in the last axis, as the projections write them; each target unpacks them in the
layout that its kernels want.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from converter.ops.registry import Case, fused_op


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool) -> Tensor:
    # q [b, n, heads * d], k and v [b, m, heads * d] -> [b, n, heads * d]
    q, k, v = (split_heads(t, heads) for t in (q, k, v))
    return merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=causal))


def naive(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool) -> Tensor:
    q, k, v = (split_heads(t, heads) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # [b, heads, n, m]
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    exponentials = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return merge_heads(exponentials / exponentials.sum(dim=-1, keepdim=True) @ v)


def split_heads(t: Tensor, heads: int) -> Tensor:
    b, n, c = t.shape
    return t.reshape(b, n, heads, c // heads).transpose(1, 2)  # [b, heads, n, d]


def merge_heads(t: Tensor) -> Tensor:
    b, heads, n, d = t.shape
    return t.transpose(1, 2).reshape(b, n, heads * d)


def _case(label: str, n: int, m: int, width: int, heads: int, causal: bool = False) -> Case:
    def make(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor, int, bool]:
        q, k, v = (torch.randn(1, tokens, width, generator=g) for tokens in (n, m, m))
        return q * 3, k, v, heads, causal  # peaky rows, as trained models have

    return Case(label, make)


op = fused_op(
    attention,
    naive=naive,
    cases=[
        _case("self 4096 d=40", 4096, 4096, 320, 8),
        _case("cross 4096x77 d=40", 4096, 77, 320, 8),
        _case("self 256 d=160", 256, 256, 1280, 8),
        _case("text encoder, causal", 77, 77, 768, 12, causal=True),
        _case("VAE, one head d=512", 1024, 1024, 512, 1),
    ],
)
