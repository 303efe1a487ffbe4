"""A matrix that turns a latent into a small picture, for previews that cost nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Matrix = tuple[tuple[float, ...], ...]


def fit_preview(vae_encoder: nn.Module, shrink: int, pictures: int = 4, cells: int = 16) -> Matrix:
    """Least squares from the latents of made-up pictures to those pictures, shrunk.

    An encoder keeps colour roughly linear in its latent, cell by cell, so patches of colour of all
    sizes are all it takes to find the map: 3 rows of (latent channels, 1).
    """
    picture = _patches(pictures, cells * shrink)
    with torch.no_grad():
        latent = vae_encoder(picture)  # [n, c, cells, cells]
    small = F.avg_pool2d(picture, shrink)  # [n, 3, cells, cells]
    columns = latent.movedim(1, -1).flatten(0, -2).double()  # [n * cells^2, c]
    columns = torch.cat([columns, torch.ones_like(columns[:, :1])], dim=1)
    wanted = small.movedim(1, -1).flatten(0, -2).double()  # [n * cells^2, 3]
    solution = torch.linalg.lstsq(columns, wanted, driver="gelsd").solution
    return tuple(tuple(round(v, 6) for v in row) for row in solution.T.tolist())


def _patches(pictures: int, size: int) -> Tensor:
    """Random colours at every scale from the whole picture down to an eighth of it. [n, 3, s, s]"""
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(pictures, 3, size, size)
    for grid in (1, 2, 4, 8):
        colours = torch.rand(pictures, 3, grid, grid, generator=generator) * 2 - 1
        total += F.interpolate(colours, size=(size, size), mode="nearest")
    return (total / 2).clamp(-1, 1)
