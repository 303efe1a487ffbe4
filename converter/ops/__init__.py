"""The fused ops that the models are written on; one file each.

A file holds the op's meaning (`reference`), its unfused form (`naive`, the baseline of ablations),
and its cases. Importing this package registers all of them as `torch.ops.pocketsd.*`.
"""

from converter.ops.attention import op as attention
from converter.ops.conv2d import op as conv2d
from converter.ops.conv2d import same
from converter.ops.geglu import op as geglu
from converter.ops.group_norm_silu import op as group_norm_silu
from converter.ops.layer_norm import op as layer_norm
from converter.ops.linear import op as linear
from converter.ops.registry import Case, FusedOp, all_ops, fused_op
from converter.ops.timestep_embedding import op as timestep_embedding

__all__ = [
    "Case",
    "FusedOp",
    "all_ops",
    "attention",
    "conv2d",
    "fused_op",
    "geglu",
    "group_norm_silu",
    "layer_norm",
    "linear",
    "same",
    "timestep_embedding",
]
