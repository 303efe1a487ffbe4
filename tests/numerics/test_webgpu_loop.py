"""The step between two runs of the UNet on the GPU, against the same loop on the host."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from converter.targets.webgpu.loop import sampler_plan
from runtime_py import pictures, sampler
from runtime_py.engines import Array
from runtime_py.package import Package, read_table
from runtime_py.sampler import guided
from runtime_py.webgpu import loop
from runtime_py.webgpu.executor import USAGE, Executor
from runtime_py.webgpu.plan import Port, check_plan
from tests.support.webgpu import device, needs_webgpu

pytestmark = [needs_webgpu, pytest.mark.xdist_group("webgpu")]

CHANNELS, SIZE = 4, 6
EMBEDDING = np.array([0.4, -0.9], np.float32).reshape(2, 1, 1)


def answer(latent: Array, timestep: Array, embedding: Array) -> Array:
    """What stands for the UNet: bounded, and different for every prompt and step."""
    factor = embedding.reshape(-1, 1, 1, 1) + timestep.reshape(-1, 1, 1, 1) / 1000
    return (np.tanh(latent[..., ::-1]) * factor).astype(np.float32)


class HostUNet:
    """An executor whose one kernel is `answer`."""

    copy = Executor.copy

    def __init__(self, batch: int) -> None:
        shape = (batch, CHANNELS, SIZE, SIZE)
        ports = Port("input:latent", shape, "float32"), Port("output:noise", shape, "float32")
        self.plan = SimpleNamespace(
            component="unet", inputs={"latent": ports[0]}, outputs={"noise": ports[1]}
        )
        self.device, self.given = device(), {}  # type: ignore[var-annotated]
        self._buffers = {
            port.buffer: self.device.create_buffer(size=port.bytes, usage=USAGE) for port in ports
        }

    def write(self, inputs: dict[str, Array]) -> None:
        self.given |= inputs

    def submit(self) -> None:
        shape = self.plan.inputs["latent"].shape
        held = self.device.queue.read_buffer(self._buffers["input:latent"])
        latent = np.frombuffer(held, np.float32).reshape(shape)
        said = answer(latent, self.given["timestep"], self.given["embedding"])
        self.device.queue.write_buffer(self._buffers["output:noise"], 0, said)


@pytest.fixture
def step(tmp_path: Path) -> Executor:
    plan, weights = sampler_plan(CHANNELS, SIZE, SIZE)
    check_plan(plan)
    save_file(weights, tmp_path / "weights.safetensors")
    return Executor(device(), plan, tmp_path / "weights.safetensors")


@pytest.mark.parametrize(("batch", "prompts"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_every_sampler_plays_as_on_the_host(
    step: Executor, tiny_package: Package, batch: int, prompts: int
) -> None:
    g = np.random.default_rng(0)
    shape = (1, CHANNELS, SIZE, SIZE)
    start, fresh = (g.standard_normal(shape).astype(np.float32) for _ in range(2))
    embedding, unet = EMBEDDING[-prompts:], HostUNet(batch)

    def evaluate(latent: Array, timestep: float) -> Array:
        times = np.full(prompts, timestep, np.float32)
        said = answer(np.repeat(latent, prompts, 0).astype(np.float32), times, embedding)
        return said if prompts == 1 else guided(said[1:], said[:1], 3.0)

    def noise(k: int) -> Array:
        return fresh * np.float32(1 + k / 10)

    for name in tiny_package.manifest.samplers.values():
        schedule = read_table(tiny_package.file(name)).from_noise()
        latent = schedule.begin(start).astype(np.float32)
        want = [x.copy() for _, x in sampler.play(schedule, latent, evaluate, noise)]
        mine: Any = unet
        got = [x for _, x in loop.play(mine, step, schedule, latent, embedding, 3.0, noise)]
        for x, y in zip(want, got, strict=True):
            # sums of up to nine numbers, rounded to f32, over some twenty steps
            assert np.abs(x - y).max() <= 1e-4 * np.abs(x).max(), name


def test_the_preview_is_the_hosts(step: Executor) -> None:
    g = np.random.default_rng(1)
    latent = g.standard_normal((1, CHANNELS, SIZE, SIZE)).astype(np.float32)
    matrix = (g.standard_normal((3, CHANNELS + 1)) / 2).astype(np.float32)
    step.write({"noise": latent, "factors": loop.beginning(0.5), "matrix": matrix})
    step.submit()
    assert np.array_equal(step.read("latent"), latent)
    assert np.array_equal(step.read("next"), latent / 2)
    rgb = step.read("picture").view(np.uint8).reshape(SIZE, SIZE, 4)
    want = pictures.preview(latent, tuple(map(tuple, matrix.tolist())))[0]
    assert (rgb[..., 3] == 255).all()
    assert np.abs(rgb[..., :3].astype(int) - want).max() <= 1  # a half is rounded either way
