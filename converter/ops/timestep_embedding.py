"""Sinusoidal embedding of the timestep. Always computed in fp32: its angles reach 1000 radians."""

import math

import torch
from torch import Tensor

from converter.ops.registry import Case, fused_op


def timestep_embedding(timestep: Tensor, width: int, cosine_first: bool, shift: float) -> Tensor:
    # timestep [b] -> [b, width], fp32
    half = width // 2
    exponent = torch.arange(half, dtype=torch.float32, device=timestep.device) / (half - shift)
    angle = timestep.float()[:, None] * torch.exp(-math.log(10000.0) * exponent)[None]
    parts = (angle.cos(), angle.sin()) if cosine_first else (angle.sin(), angle.cos())
    return torch.cat(parts, dim=-1)


def naive(timestep: Tensor, width: int, cosine_first: bool, shift: float) -> Tensor:
    half = width // 2
    frequency = torch.tensor([10000.0 ** (-i / (half - shift)) for i in range(half)])
    angle = timestep.float().reshape(-1, 1) * frequency.reshape(1, -1).to(timestep.device)
    sine, cosine = torch.sin(angle), torch.cos(angle)
    return torch.cat([cosine, sine] if cosine_first else [sine, cosine], dim=1)


op = fused_op(
    timestep_embedding,
    naive=naive,
    cases=[
        Case("early", lambda g: (torch.tensor([981.0]), 320, True, 0.0)),
        Case("late, between two steps", lambda g: (torch.tensor([1.5, 0.0]), 320, True, 0.0)),
    ],
)
