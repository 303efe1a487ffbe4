"""The denoising loop with its latents on the GPU: of a row, the host sends the factors only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from runtime_py.engines import Array
from runtime_py.sampler import HISTORY, Row, Schedule
from runtime_py.webgpu.executor import Executor

#: See the kernel: by slot HISTORY for latents and as many for answers, then six more.
FACTORS = 2 * HISTORY + 6


def play(
    unet: Executor,
    sampler: Executor,
    schedule: Schedule,
    latent: Array,  # [1, 4, h, w]
    embedding: Array,  # [1 or 2, tokens, width]: unconditional first
    scale: float,
    noise: Callable[[int], Array],
) -> Iterator[tuple[int, Array]]:
    """Like `runtime_py.sampler.play`, guidance and the UNet included."""
    size, prompts = unet.plan.inputs["latent"].shape[0], len(embedding)
    (output,) = unet.plan.outputs
    each = sampler.plan.outputs["next"].bytes
    rows = schedule.rows
    sampler.write({"noise": latent, "factors": beginning(rows[0].input_scale)})
    sampler.submit()
    for k, row in enumerate(rows):
        unet.write({"timestep": np.full(size, row.timestep, np.float32)})
        for first in range(0, prompts, size):
            chosen = np.minimum(np.arange(first, first + size), prompts - 1)
            unet.write({"embedding": embedding[chosen]})
            for place in range(size):
                sampler.copy("next", unet, "latent", to=place * each)
            unet.submit()
            unet.copy(output, sampler, "answer", to=first * each)
        following = rows[k + 1].input_scale if k + 1 < len(rows) else 1.0
        sampler.write({"factors": factors(k, row, following, scale, prompts == 2)})
        if row.noise:
            sampler.write({"noise": noise(k)})
        sampler.submit()
        yield k, sampler.read("latent")


def beginning(input_scale: float) -> Array:
    """The first latent comes in as noise, into slot 0."""
    packed = np.zeros(FACTORS, np.float32)
    packed[2 * HISTORY :] = 1, input_scale, 0, HISTORY - 1, 0, 0
    return packed


def factors(k: int, row: Row, following: float, scale: float, paired: bool) -> Array:
    """Row k as the kernel wants it: x_k and e_k lie in slot k % HISTORY."""
    packed = np.zeros(FACTORS, np.float32)
    for begin, weights in ((0, row.latents), (HISTORY, row.outputs)):
        for back, weight in enumerate(weights):
            packed[begin + (k - back) % HISTORY] = weight
    tail = row.noise, following, scale, k % HISTORY, (k + 1) % HISTORY, float(paired)
    packed[2 * HISTORY :] = tail
    return packed
