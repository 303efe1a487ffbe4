"""A part of a graph to a .tflite file, by LiteRT's own exporter."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from converter.fold import fold_constants
from converter.partition import Part
from converter.targets.litert.lowered import Lowered
from runtime_py.native_output import captured


def write_tflite(part: Part, inputs: dict[str, Tensor], file: Path) -> None:
    """Write the part with its weights in fp32; inputs and outputs go by the part's names."""
    with _quiet():
        import litert_torch

        import converter.targets.litert.builtins  # noqa: F401  registers our ops' lowerings

        lowered = Lowered(part)
        sample = lowered.example(inputs)
        with torch.no_grad():
            program = torch.export.export(lowered, (), kwargs=sample, strict=False)
        folded = fold_constants(program.module(check_guards=False))
        folded.training = False
        litert_torch.convert(folded, sample_kwargs=sample).export(str(file))


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter narrates on both outputs; what it says is shown only if it fails."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("litert_torch").setLevel(logging.ERROR)
    with captured(1), captured(2):
        yield
