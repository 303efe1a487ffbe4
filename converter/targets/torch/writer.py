"""Writes a component as safetensors; the graph is rebuilt from the config beside it."""

from __future__ import annotations

import torch
from safetensors.torch import save_file

from converter.models.config import to_json
from converter.targets import Job, Target
from runtime_py.package import Component

STORED = {"fp32": torch.float32, "fp16": torch.float16}


class TorchTarget(Target):
    name = "torch"
    precisions = tuple(STORED)
    fixed_shapes = False
    calibrated: frozenset[str] = frozenset()

    def write(self, job: Job) -> Component:
        file = f"{job.spec.name}.safetensors"
        state = job.module().state_dict()
        stored = {
            name: tensor.to(STORED[job.precision]).contiguous() for name, tensor in state.items()
        }
        save_file(stored, job.folder / file)
        return job.described((file,), to_json(job.config))


TARGET = TorchTarget()
