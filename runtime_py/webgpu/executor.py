"""A plan made ready on a device, and run: buffers, pipelines, one list of dispatches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import wgpu
from safetensors import safe_open

from runtime_py.engines import Array
from runtime_py.errors import PocketSDError
from runtime_py.webgpu.failures import explained, watched
from runtime_py.webgpu.plan import NUMBERS, Dispatch, Plan
from runtime_py.webgpu.subgroups import shares_rows

USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
#: A GPU that is busy for too long with one submission is taken for hung, so they are cut.
FLOPS_AT_ONCE = 40e9


@dataclass(frozen=True)
class Timing:
    """What one dispatch took on the GPU, by its own clock."""

    dispatch: Dispatch
    begin: int  # nanoseconds
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) / 1e9


class Executor:
    """`pool` keeps weights for other plans of the same component, by name and size."""

    def __init__(
        self,
        device: Any,
        plan: Plan,
        weights: Path,
        pool: dict[tuple[str, int], Any] | None = None,
        *,
        subgroups: bool = True,
    ) -> None:
        self.device, self.plan, self.subgroups = device, plan, subgroups
        shared = {} if pool is None else pool
        with explained(plan):
            known = {name: shared.get((name, size)) for name, size in plan.weights.items()}
            known.pop(NUMBERS, None)  # every plan has its own
            self._buffers = {
                name: known.get(name) or device.create_buffer(size=max(size, 4), usage=_usage(name))
                for name, size in plan.sizes.items()
            }
            self._upload(weights, [name for name in plan.weights if known.get(name) is None])
            if pool is not None:
                pool |= {(name, plan.weights[name]): self._buffers[name] for name in known}
            self._commands = list(self._prepare())

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Once, from inputs to outputs."""
        with watched(self.plan):
            self._write(inputs)
            self._submit()
            return self._read(self.plan.outputs)

    # What `run` does in one, in parts: between them tensors can go from one plan to another.

    def write(self, inputs: Mapping[str, Array]) -> None:
        with watched(self.plan):
            self._write(inputs)

    def submit(self) -> None:
        with watched(self.plan):
            self._submit()

    def read(self, output: str) -> Array:
        with watched(self.plan):
            return self._read([output])[output]

    def copy(self, output: str, other: Executor, into: str, *, to: int = 0) -> None:
        """An output to byte `to` of an input of another plan on this device."""
        source, target = self.plan.outputs[output], other.plan.inputs[into]
        with watched(self.plan):
            encoder = self.device.create_command_encoder()
            encoder.copy_buffer_to_buffer(
                self._buffers[source.buffer], 0, other._buffers[target.buffer], to, source.bytes
            )
            self.device.queue.submit([encoder.finish()])

    def _submit(self) -> None:
        for group in _portions(self.plan.dispatches):
            encoder = self.device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            for index in group:
                self._encode(compute, index)
            compute.end()
            self.device.queue.submit([encoder.finish()])

    def profile(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[Timing]]:
        """A run with the time of every dispatch; slower, as each has a pass of its own."""
        count = len(self.plan.dispatches)
        with watched(self.plan):
            queries = self.device.create_query_set(type="timestamp", count=2 * count)
            times = self.device.create_buffer(
                size=16 * count, usage=wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
            )
            self._write(inputs)
            for group in _portions(self.plan.dispatches):
                encoder = self.device.create_command_encoder()
                for index in group:
                    compute = encoder.begin_compute_pass(
                        timestamp_writes={
                            "query_set": queries,
                            "beginning_of_pass_write_index": 2 * index,
                            "end_of_pass_write_index": 2 * index + 1,
                        }
                    )
                    self._encode(compute, index)
                    compute.end()
                self.device.queue.submit([encoder.finish()])
            encoder = self.device.create_command_encoder()
            encoder.resolve_query_set(queries, 0, 2 * count, times, 0)
            self.device.queue.submit([encoder.finish()])
            outputs = self._read(self.plan.outputs)
            stamps = np.frombuffer(self.device.queue.read_buffer(times), np.uint64).reshape(-1, 2)
        return outputs, [
            Timing(dispatch, int(begin), int(end))
            for dispatch, (begin, end) in zip(self.plan.dispatches, stamps, strict=True)
        ]

    def close(self) -> None:
        for buffer in self._buffers.values():
            buffer.destroy()
        self._buffers, self._commands = {}, []

    def _upload(self, path: Path, names: Sequence[str]) -> None:
        with safe_open(path, framework="numpy") as file:
            stored = set(file.keys())
            for name in names:
                size = self.plan.weights[name]
                if name not in stored:
                    raise PocketSDError(f"incomplete weights, {name} is missing", where=path)
                values = np.ascontiguousarray(file.get_tensor(name))
                if values.nbytes != size:
                    raise PocketSDError(
                        f"damaged weights, {name} has {values.nbytes} bytes instead of {size}",
                        where=path,
                    )
                self.device.queue.write_buffer(self._buffers[name], 0, values)

    def _prepare(self) -> Iterator[tuple[Any, Any]]:
        """For each dispatch its pipeline and its bindings."""
        modules = {
            name: self.device.create_shader_module(label=name, code=source)
            for name, source in self._sources().items()
        }
        layouts: dict[tuple[str, ...], Any] = {}
        pipelines: dict[tuple[str, tuple[str, ...]], Any] = {}
        for dispatch in self.plan.dispatches:
            kinds = tuple(self._kind(b.buffer) for b in dispatch.bindings)
            if kinds not in layouts:
                layouts[kinds] = self._layout(kinds)
            key = (dispatch.shader, kinds)
            if key not in pipelines:
                pipelines[key] = self.device.create_compute_pipeline(
                    label=dispatch.shader,
                    layout=self.device.create_pipeline_layout(bind_group_layouts=[layouts[kinds]]),
                    compute={"module": modules[dispatch.shader], "entry_point": "main"},
                )
            yield pipelines[key], self._bind(dispatch, layouts[kinds])

    def _sources(self) -> dict[str, str]:
        if self.subgroups and self.plan.subgroup_shaders and shares_rows(self.device):
            return {**self.plan.shaders, **self.plan.subgroup_shaders}
        return dict(self.plan.shaders)

    def _kind(self, buffer: str) -> str:
        if buffer == NUMBERS:
            return "uniform"
        return "read-only-storage" if buffer in self.plan.weights else "storage"

    def _layout(self, kinds: Sequence[str]) -> Any:
        return self.device.create_bind_group_layout(
            entries=[
                {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
                for i, kind in enumerate(kinds)
            ]
        )

    def _bind(self, dispatch: Dispatch, layout: Any) -> Any:
        return self.device.create_bind_group(
            layout=layout,
            entries=[
                {
                    "binding": i,
                    "resource": {
                        "buffer": self._buffers[b.buffer],
                        "offset": b.offset,
                        "size": b.size,
                    },
                }
                for i, b in enumerate(dispatch.bindings)
            ],
        )

    def _encode(self, compute: Any, index: int) -> None:
        pipeline, group = self._commands[index]
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(*self.plan.dispatches[index].groups)

    def _write(self, inputs: Mapping[str, Array]) -> None:
        for name, given in inputs.items():
            port = self.plan.inputs[name]
            values = np.ascontiguousarray(given, port.dtype)
            self.device.queue.write_buffer(self._buffers[port.buffer], 0, values)

    def _read(self, names: Iterable[str]) -> dict[str, Array]:
        outputs = {
            name: np.frombuffer(
                self.device.queue.read_buffer(self._buffers[port.buffer]), port.dtype
            ).reshape(port.shape)
            for name, port in ((name, self.plan.outputs[name]) for name in names)
        }
        self.device.create_command_encoder().finish()  # raises if the GPU was lost meanwhile
        return outputs


def _usage(name: str) -> int:
    return int(USAGE | (wgpu.BufferUsage.UNIFORM if name == NUMBERS else 0))


def _portions(dispatches: Sequence[Dispatch]) -> Iterator[range]:
    begin, work = 0, 0
    for index, dispatch in enumerate(dispatches):
        work += dispatch.flops
        if work > FLOPS_AT_ONCE:
            yield range(begin, index + 1)
            begin, work = index + 1, 0
    if begin < len(dispatches):
        yield range(begin, len(dispatches))
