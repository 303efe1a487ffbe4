"""The layers where a latent or a picture enters or leaves a network, found in a .tflite file."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Latents have 4 channels (8 before the mean is taken), pictures 3; nothing inside has so few.
FEW_CHANNELS = 8


def edge_layers(file: Path) -> str:
    """An expression that matches the names of their results, as the quantiser knows ops by them."""
    with file.open("rb") as opened:
        content = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    names = "|".join(re.escape(name) for name in _edges(content))
    return f"^({names});?$" if names else "^$"  # the quantiser ends every name with a semicolon


def _edges(content: mmap.mmap) -> Iterator[str]:
    from ai_edge_litert import schema_py_generated as schema

    model: Any = schema.Model.GetRootAs(content, 0)
    conv = schema.BuiltinOperator.CONV_2D
    for g in range(model.SubgraphsLength()):
        graph = model.Subgraphs(g)
        for o in range(graph.OperatorsLength()):
            operator = graph.Operators(o)
            if model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode() == conv:
                weight, result = (
                    graph.Tensors(operator.Inputs(1)),
                    graph.Tensors(operator.Outputs(0)),
                )
                out, _, _, into = weight.ShapeAsNumpy()
                if min(out, into) <= FEW_CHANNELS:
                    yield result.Name().decode()
