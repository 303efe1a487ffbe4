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
from converter.ops.layout import join_op as join
from converter.ops.layout import over_op as over_picture
from converter.ops.layout import picture_op as to_picture
from converter.ops.layout import tokens_op as to_tokens
from converter.ops.linear import op as linear
from converter.ops.registry import Case, FusedOp, all_ops, fused_op, get_op
from converter.ops.timestep_embedding import op as timestep_embedding
from converter.ops.token_embedding import op as token_embedding

__all__ = [
    "Case",
    "FusedOp",
    "all_ops",
    "attention",
    "conv2d",
    "fused_op",
    "geglu",
    "get_op",
    "group_norm_silu",
    "join",
    "layer_norm",
    "linear",
    "over_picture",
    "same",
    "timestep_embedding",
    "to_picture",
    "to_tokens",
    "token_embedding",
]
