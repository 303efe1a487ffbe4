"""Any SD 1.x checkpoint in, one checked set of weights under canonical names out.

Canonical names are diffusers' for the UNet and the VAE, and transformers' without the
`text_model.` prefix for the text encoder.
"""

from converter.checkpoints.checkpoint import (
    COMPONENTS,
    Checkpoint,
    TokenizerFiles,
)
from converter.checkpoints.inspect import Part, Report, inspect_file
from converter.checkpoints.opening import open_checkpoint
from runtime_py.package import Ingredient

__all__ = [
    "COMPONENTS",
    "Checkpoint",
    "Ingredient",
    "Part",
    "Report",
    "TokenizerFiles",
    "inspect_file",
    "open_checkpoint",
]
