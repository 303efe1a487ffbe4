"""A GPU that dies, or has less than a plan needs: one line, and never a wrong result."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wgpu
from safetensors.numpy import save_file

from runtime_py.engines import open_engine
from runtime_py.errors import PocketSDError
from runtime_py.pipeline import Request, draw
from runtime_py.webgpu import adapters, failures
from runtime_py.webgpu.executor import Executor
from runtime_py.webgpu.plan import ARENA, Binding, Dispatch, Plan, Port
from tests.support.webgpu import ADAPTER, needs_webgpu

pytestmark = [needs_webgpu, pytest.mark.xdist_group("webgpu")]

TOKENS = {"tokens": np.arange(77, dtype=np.int32)[None]}
COPY = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) {
  y[id.x] = x[id.x];
}
"""


@pytest.fixture
def engine(webgpu_package: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(failures, "LINGER", 0)
    opened = open_engine(webgpu_package("fp32"), adapter=ADAPTER)
    yield opened
    opened.close()


def copying(elements: int) -> Plan:
    """A plan that binds so much of its arena."""
    x, y = Port("x", (64,), "float32"), Port("y", (64,), "float32")
    bindings = (Binding(ARENA, 0, 4 * elements), Binding("y", 0, 256))
    return Plan(
        component="copy",
        arithmetic="f32",
        features=(),
        arena=4 * elements,
        live=4 * elements,
        shaders={"copy": COPY},
        dispatches=(Dispatch("copy", "copy", (1, 1, 1), bindings),),
        inputs={"x": x},
        outputs={"y": y},
        weights={},
    )


def destroyed_before(engine: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device dies when the executor comes to its method `name`."""
    method = getattr(Executor, name)

    def dying(self: Executor, *arguments: Any) -> Any:
        self.device.destroy()
        return method(self, *arguments)

    monkeypatch.setattr(Executor, name, dying)


@pytest.mark.parametrize("moment", ["_write", "_encode", "_read"])
def test_a_lost_device(engine: Any, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Before the inputs are written, in mid-run, before the result is read; then a new start."""
    before = engine.run("text_encoder", TOKENS)["embedding"]
    with monkeypatch.context() as patched:
        destroyed_before(engine, moment, patched)
        with pytest.raises(
            PocketSDError, match="the GPU was lost while it ran text_encoder.*again"
        ):
            engine.run("text_encoder", TOKENS)
    with pytest.raises(PocketSDError, match="the GPU was lost"):
        engine.run("text_encoder", TOKENS)
    engine.close()
    assert np.array_equal(engine.run("text_encoder", TOKENS)["embedding"], before)


def test_a_device_lost_while_its_result_is_read(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes came, but nobody knows of which moment."""
    engine.load("text_encoder")
    queue = type(engine._device.queue)
    read = queue.read_buffer

    def dying(self: Any, buffer: Any) -> Any:
        content = read(self, buffer)
        engine._device.destroy()
        return content

    monkeypatch.setattr(queue, "read_buffer", dying)
    with pytest.raises(PocketSDError, match="the GPU was lost while it ran text_encoder"):
        engine.run("text_encoder", TOKENS)


def raising(error: Exception) -> Callable[..., Any]:
    def method(*_: Any, **__: Any) -> Any:
        raise error

    return method


@pytest.mark.parametrize(
    ("where", "error", "complaint"),
    [
        ("read_buffer", RuntimeError("Could not map buffer (3 : )."), "the GPU was lost"),
        ("write_buffer", wgpu.GPUValidationError("Parent device is lost"), "the GPU was lost"),
        ("submit", wgpu.GPUInternalError("what is this"), "refused text_encoder: what is this"),
    ],
)
def test_what_the_queue_raises(
    engine: Any, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, complaint: str
) -> None:
    engine.load("text_encoder")
    monkeypatch.setattr(type(engine._device.queue), where, raising(error))
    with pytest.raises(PocketSDError, match=complaint):
        engine.run("text_encoder", TOKENS)


def test_what_wgpu_only_logs(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors that belong to no call: there would be a result, but a wrong one."""
    read = Executor._read

    def logging_read(self: Executor, names: Any) -> Any:
        logging.getLogger("wgpu").error("Validation Error: late")
        return read(self, names)

    monkeypatch.setattr(Executor, "_read", logging_read)
    with pytest.raises(PocketSDError, match="the GPU refused text_encoder: Validation Error: late"):
        engine.run("text_encoder", TOKENS)


@pytest.mark.parametrize(
    "error",
    [
        wgpu.GPUOutOfMemoryError("Out of Memory"),
        wgpu.GPUValidationError("In wgpuDeviceCreateBuffer\n    Not enough memory left."),
    ],
)
def test_no_memory_left(engine: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    engine.load("text_encoder")  # so that there is a device
    monkeypatch.setattr(type(engine._device), "create_buffer", raising(error))
    with pytest.raises(PocketSDError, match="no memory left on the GPU .* MiB of unet.*low-memory"):
        engine.load("unet")


def test_a_device_that_cannot_be_opened(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("Request device failed (3): Not enough memory left.")
    monkeypatch.setattr(type(engine.adapter.gpu), "request_device_sync", raising(error))
    with pytest.raises(PocketSDError, match="cannot be opened: Request device failed.*--adapter"):
        engine.load("text_encoder")


def test_a_device_with_128_mib_in_a_binding(tmp_path: Path) -> None:
    """What WebGPU promises at least, and many phones have at most."""
    adapter = adapters.choose(ADAPTER)
    device = adapter.gpu.request_device_sync(
        required_limits={"max-storage-buffer-binding-size": 2**27, "max-buffer-size": 2**28}
    )
    weights = tmp_path / "none.safetensors"
    save_file({}, weights)
    fits, exceeds = copying(2**25), copying(2**25 + 64)
    x = np.arange(64, dtype=np.float32)
    assert Executor(device, fits, weights).run({"x": x})["y"].shape == (64,)
    with pytest.raises(PocketSDError, match="134217728.*smaller --height"):
        Executor(device, exceeds, weights)
    with pytest.raises(PocketSDError, match="maximum buffer size.*smaller --height"):
        Executor(device, copying(2**26 + 64), weights)


LOSES = """
import sys
from pathlib import Path
import numpy as np
from runtime_py.engines import open_engine
from runtime_py.package import open_package
engine = open_engine(open_package(Path(sys.argv[1])), adapter={adapter!r})
engine.load("text_encoder")
queue = type(engine._device.queue)
submit = queue.submit
def dying(self, commands):
    engine._device.destroy()
    submit(self, commands)
queue.submit = dying
engine.run("text_encoder", dict(tokens=np.zeros((1, 77), np.int32)))
print("there is a result")
"""


def test_a_loss_that_wgpu_does_not_survive(webgpu_package: Any) -> None:
    """Where the driver notices it, wgpu ends the process: one line is still said."""
    program = LOSES.format(adapter=ADAPTER)
    done = subprocess.run(
        [sys.executable, "-c", program, str(webgpu_package("fp32").path)],
        capture_output=True,
        text=True,
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("pocketsd: the GPU was lost while it ran text_encoder")
    assert done.returncode == 2 and done.stdout == ""


@pytest.mark.parametrize("component", ["text_encoder", "unet", "vae_decoder"])
def test_no_picture_of_what_are_no_numbers(
    engine: Any, monkeypatch: pytest.MonkeyPatch, component: str
) -> None:
    read = Executor._read

    # The UNet's own answer stays on the GPU: what comes back is the sampler's latent.
    spoiled = "sampler" if component == "unet" else component

    def spoilt(self: Executor, names: Any) -> Any:
        outputs = read(self, names)
        if self.plan.component == spoiled:
            for name, values in outputs.items():
                outputs[name] = values.copy()
                outputs[name].flat[-1] = np.nan
        return outputs

    monkeypatch.setattr(Executor, "_read", spoilt)
    table = engine.package.table("dpm++-2m", 20)
    with pytest.raises(PocketSDError, match=f"{component} gave values that are no numbers.*fp32"):
        draw(engine, engine.package, table, Request("a red circle"))
