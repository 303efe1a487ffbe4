"""All that the lowerings of the ops are written in."""

from __future__ import annotations

from converter.targets.webgpu.attention import Attention
from converter.targets.webgpu.norms import Norms
from converter.targets.webgpu.products import Products


class Kernels(Products, Attention, Norms):
    """A builder that knows every kernel."""
