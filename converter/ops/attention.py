"""Multi-head attention on projected tokens: softmax(Q K^T / sqrt(d)) V as one op.

Heads stay packed in the last axis, as the projections write them; each target unpacks them in the
layout that its kernels want.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from converter.ops import tflite
from converter.ops.registry import Case, fused_op

if TYPE_CHECKING:
    from converter.targets.coreml.builder import Builder, Var
    from converter.targets.webgpu.builder import Value
    from converter.targets.webgpu.kernels import Kernels

#: The largest tensor of scores that a phone's GPU is asked to hold.
SCORE_BYTES = 64 * 2**20
#: Added to scores of tokens that lie ahead; fp16 can still hold it with a score on top.
FUTURE = -3e4


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool) -> Tensor:
    # q [b, n, heads * d], k and v [b, m, heads * d] -> [b, n, heads * d]
    q, k, v = (split_heads(t, heads) for t in (q, k, v))
    return merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=causal))


def litert(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool) -> Tensor:
    # q [b, 1, n, c], k and v [b, 1, m, c]; the scale goes into Q: n * d products, not n * m, and
    # smaller scores.
    q = q * (q.shape[-1] // heads) ** -0.5
    if heads > 1:
        q, k, v = (split_heads(t.squeeze(1), heads) for t in (q, k, v))
    rows = rows_at_once(q.shape, k.shape[2])
    n = q.shape[2]
    parts = [_rows(q[:, :, i : i + rows], k, v, causal) for i in range(0, n, rows)]
    y = torch.cat(parts, dim=2) if len(parts) > 1 else parts[0]
    return y if heads == 1 else merge_heads(y).unsqueeze(1)


def rows_at_once(q: Sequence[int], m: int) -> int:
    """How many queries to handle together so that their scores stay below SCORE_BYTES."""
    b, heads, n, _ = q
    rows = n
    while rows % 2 == 0 and b * heads * rows * m * 4 > SCORE_BYTES:
        rows //= 2
    return rows


def _rows(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    scores = tflite.batch_matmul(q, k, True)  # [b, heads, rows, m]
    if causal:
        assert q.shape[2] == k.shape[2], "causal attention is never split: its sequence is short"
        scores = scores + torch.full(scores.shape[-2:], FUTURE).triu(1)
    return tflite.batch_matmul(scores.softmax(dim=-1), v, False)


def webgpu(b: "Kernels", q: "Value", k: "Value", v: "Value", heads: int, causal: bool) -> "Value":
    form = b.tuning.attention(q.shape[1], k.shape[1], q.channels // heads, causal)
    return b.attend(q, k, v, heads, causal, form)


def coreml(b: "Builder", q: "Var", k: "Var", v: "Var", heads: int, causal: bool) -> "Var":
    return b.attention(q, k, v, heads, causal)


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
    lowerings={"litert": litert, "webgpu": webgpu, "coreml": coreml},
    cases=[
        _case("self 4096 d=40", 4096, 4096, 320, 8),
        _case("cross 4096x77 d=40", 4096, 77, 320, 8),
        _case("self 256 d=160", 256, 256, 1280, 8),
        _case("text encoder, causal", 77, 77, 768, 12, causal=True),
        _case("VAE, one head d=512", 1024, 1024, 512, 1),
    ],
)
