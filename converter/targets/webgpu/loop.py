"""The step between two runs of the UNet as a plan, so that latents need not leave the GPU."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from converter.targets.webgpu.kernels import Kernels
from converter.targets.webgpu.tuning import Tuning, ceil_div
from runtime_py.sampler import HISTORY
from runtime_py.webgpu.loop import FACTORS
from runtime_py.webgpu.plan import Plan, Port


def sampler_plan(channels: int, height: int, width: int) -> tuple[Plan, dict[str, NDArray[Any]]]:
    """Latents and answers of earlier rows stay in the arena from run to run."""
    cells, count = height * width, channels * height * width
    one = (1, channels, height, width)
    ins = {
        "answer": Port("input:answer", (2, *one[1:]), "float32"),
        "factors": Port("input:factors", (FACTORS,), "float32"),
        "noise": Port("input:noise", one, "float32"),
        "matrix": Port("input:matrix", (3, channels + 1), "float32"),
    }
    outs = {
        "latent": Port("output:latent", one, "float32"),
        "next": Port("output:next", one, "float32"),
        "picture": Port("output:picture", (height, width), "uint32"),
    }
    builder = Kernels("sampler", "f32", Tuning())
    builder.label = "sampler"
    latents, answers = (builder.new_bytes(4 * HISTORY * count) for _ in range(2))
    builder.emit(
        "sampler_step",
        [ins["answer"], ins["factors"], ins["noise"], latents, answers, outs["latent"],
         outs["next"]],
        (ceil_div(count, 64),),
        constants={"COUNT": count},
    )  # fmt: skip
    builder.emit(
        "latent_rgb",
        [outs["latent"], ins["matrix"], outs["picture"]],
        (ceil_div(cells, 64),),
        constants={"COUNT": cells, "C": channels},
    )
    plan = builder.plan(ins, outs)
    return plan, {name: builder.arrays[name] for name in plan.weights}
