"""Writes a component as a plan (JSON, its shaders within) and its weights (safetensors)."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from converter.components import example
from converter.graph import export
from converter.targets import Job, Target
from runtime_py.package import Component
from runtime_py.webgpu.plan import Plan, check_plan, write_plan

NAME = "webgpu"
#: How activations are stored, and whether weights are in int8.
PRECISIONS = {"fp16": ("f16", False), "fp32": ("f32", False), "int8": ("f16", True)}


class WebGPUTarget(Target):
    name = NAME
    precisions = tuple(PRECISIONS)
    needs = ("jinja2",)
    fixed_shapes = True
    calibrated: frozenset[str] = frozenset()

    def write(self, job: Job) -> Component:
        from converter.targets.webgpu.loop import sampler_plan
        from converter.targets.webgpu.lower import lower

        arithmetic, int8 = PRECISIONS[job.precision]
        inputs, outputs = job.spec.inputs(job.geometry), job.spec.outputs(job.geometry)
        with torch.no_grad():
            program = export(job.module(), example(inputs))
            plan, weights = lower(job.spec.name, program, inputs, outputs, arithmetic, int8=int8)
        files = _written(job, job.spec.name, plan, weights)
        if latent := plan.inputs.get("latent") if job.spec.name == "unet" else None:
            files += _written(job, "sampler", *sampler_plan(*latent.shape[1:]))
        kinds = {"dispatches": len(plan.dispatches), "arena": plan.arena, "live": plan.live}
        return job.described(files, kinds)


def _written(job: Job, name: str, plan: Plan, weights: dict[str, NDArray[Any]]) -> tuple[str, ...]:
    check_plan(plan)
    files = (f"{name}.plan.json", f"{name}.safetensors")
    write_plan(plan, job.folder / files[0])
    save_file(weights, job.folder / files[1])
    return files


TARGET = WebGPUTarget()
