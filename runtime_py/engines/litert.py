"""LiteRT's own runtime: XNNPACK on the CPU, or its delegate on whatever GPU Vulkan shows.

The GPU is asked for alone. With the CPU allowed beside it LiteRT would quietly run there what the
delegate refuses, and nobody would know.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ai_edge_litert
import numpy as np
from ai_edge_litert.compiled_model import (
    CompiledModel,
    CpuOptions,
    Environment,
    EnvironmentOptions,
    GpuOptions,
    HardwareAccelerator,
    Options,
)

from runtime_py.engines import Array, check_inputs
from runtime_py.engines.chain import Link, chain_of, run_chain
from runtime_py.errors import PocketSDError
from runtime_py.native_output import silenced
from runtime_py.package import Package
from runtime_py.tflite_file import read

SIGNATURE = "serving_default"
ACCELERATORS = ("cpu", "gpu")


@dataclass(frozen=True)
class Delegation:
    """What the GPU delegate said about one file."""

    file: str
    operations: int
    delegated: int
    partitions: int
    refused: tuple[str, ...]  # "BROADCAST_TO: Operation is not supported."
    adapter: str

    @property
    def whole(self) -> bool:
        return self.delegated == self.operations and self.partitions == 1


class LiteRTEngine:
    """`arithmetic` is the GPU's, fp32 or fp16; by default that of the stored weights."""

    targets = ("litert",)

    def __init__(
        self,
        package: Package,
        *,
        accelerator: str = "cpu",
        threads: int | None = None,
        arithmetic: str | None = None,
    ) -> None:
        if accelerator not in ACCELERATORS:
            have = ", ".join(ACCELERATORS)
            raise PocketSDError(f"no accelerator {accelerator!r} (litert runs on {have})")
        self.package, self.accelerator = package, accelerator
        self.threads = threads or len(os.sched_getaffinity(0))
        stored = package.manifest.precision
        self.arithmetic = arithmetic or ("fp32" if stored == "fp32" else "fp16")
        self.delegation: dict[str, Delegation] = {}  # by file
        self._chains: dict[str, list[tuple[Link, CompiledModel]]] = {}

    def load(self, component: str) -> None:
        if component not in self._chains:
            described = self.package.manifest.component(component)
            self._refuse_gpu(component, str(described.config.get("runs_on", "")))
            links = chain_of(described)
            self._chains[component] = [(link, self._compile(link.file)) for link in links]

    def run(self, component: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        check_inputs(self.package, component, inputs)
        self.load(component)
        models = dict(self._chains[component])
        outputs = [spec.name for spec in self.package.manifest.component(component).outputs]
        return run_chain(
            tuple(models), inputs, outputs, lambda link, known: _run(models[link], link, known)
        )

    def unload(self, component: str) -> None:
        with silenced():
            for _, model in self._chains.pop(component, []):
                model.close()

    def close(self) -> None:
        with silenced():
            for component in list(self._chains):
                self.unload(component)

    def _refuse_gpu(self, component: str, runs_on: str) -> None:
        """Integers the delegate takes, or refuses, or dies of; nothing says that it is right."""
        if self.accelerator == "gpu" and runs_on and "GPU" not in runs_on:
            raise PocketSDError(
                f"{component} in {self.package.manifest.precision} is for the {runs_on} only",
                where=self.package.path,
                mend="--accelerator cpu, or convert with --precision fp16",
            )

    def _compile(self, name: str) -> CompiledModel:
        path = self.package.file(name)
        read(path)  # the library dies of a file that ends too early
        failure = None
        with silenced() as said:
            try:
                options = _options(self.accelerator, self.threads, self.arithmetic)
                model = CompiledModel.from_file(
                    str(path), environment=_environment(), options=options
                )
            except RuntimeError as error:
                failure = _explained(error, said(), path, self.accelerator)
            # Raised here, not above: a traceback would keep the library's objects alive.
            if failure is not None:
                raise failure
            if self.accelerator == "gpu":
                self.delegation[name] = read_delegation(said(), path)
        return model


def compile_file(path: Path) -> Delegation:
    """What the GPU delegate says to a file, whatever it was made for."""
    failure = None
    with silenced() as said:
        try:
            model = CompiledModel.from_file(
                str(path), environment=_environment(), options=_options("gpu", 1, "fp16")
            )
            model.close()
        except RuntimeError as error:
            failure = _explained(error, said(), path, "gpu")
        if failure is not None:
            raise failure
        return read_delegation(said(), path)


def run_bytes(
    content: bytes, inputs: Mapping[str, Array], accelerator: str, arithmetic: str = "fp32"
) -> dict[str, Array]:
    """Run a file that is in memory once."""
    with silenced():
        model = CompiledModel.from_buffer(
            content, environment=_environment(), options=_options(accelerator, 2, arithmetic)
        )
        signature = model.get_signature_list()[SIGNATURE]
        link = Link("", tuple(signature["inputs"]), tuple(signature["outputs"]))
        result = _run(model, link, inputs)
        model.close()
    return result


def _options(accelerator: str, threads: int, arithmetic: str) -> Options:
    if accelerator == "cpu":
        return Options(HardwareAccelerator.CPU, CpuOptions(num_threads=threads))
    gpu = GpuOptions(
        enforce_f32=arithmetic == "fp32",
        # Without it a result is asked for before it is there, and given up after two minutes.
        hint_waiting_for_completion=True,
    )
    return Options(HardwareAccelerator.GPU, gpu_options=gpu)


@cache
def _environment() -> Environment:
    """One for the process: each reads the libraries and asks for an adapter anew."""
    # It reports its own destruction after Python has ended, when nobody can catch that.
    atexit.register(lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 2))
    folder = Path(ai_edge_litert.__file__).parent
    return Environment.create(options=EnvironmentOptions(runtime_path=str(folder)))


def _run(model: CompiledModel, link: Link, known: Mapping[str, Array]) -> dict[str, Array]:
    with silenced():
        inputs, outputs = {}, {}
        for name in link.inputs:
            inputs[name] = model.create_input_buffer_by_name(SIGNATURE, name)
            inputs[name].write(np.ascontiguousarray(known[name]))
        for name in link.outputs:
            outputs[name] = model.create_output_buffer_by_name(SIGNATURE, name)
        model.run_by_name(SIGNATURE, inputs, outputs)
        details = model.get_output_tensor_details(SIGNATURE)
        return {name: _read(buffer, details[name]) for name, buffer in outputs.items()}


def _read(buffer: Any, detail: Mapping[str, Any]) -> Array:
    shape = tuple(int(n) for n in detail["shape"])
    values: Array = np.asarray(buffer.read(int(np.prod(shape)), np.float32))
    return values.reshape(shape)


def read_delegation(said: str, path: Path) -> Delegation:
    """The delegate's own words, counted."""
    operations = read(path).operation_count
    split = re.search(r"(\d+) operations will run on the GPU", said)
    refused = re.findall(r"^([A-Z][A-Z0-9_]+: .+)$", said, re.MULTILINE)
    return Delegation(
        file=path.name,
        operations=operations,
        delegated=int(split.group(1)) if split else operations,
        partitions=said.count("Initializing WebGPU-based API from graph"),
        refused=tuple(r for r in refused if not r.startswith(("INFO:", "WARNING:", "ERROR:"))),
        adapter=_adapter(said),
    )


def _adapter(said: str) -> str:
    """The GPU in use. It is named once in a process: when it is first asked for."""
    if found := re.search(r"Selected adapter: (.+?), arch=", said):
        _adapters.append(found.group(1))
    return _adapters[-1] if _adapters else ""


_adapters: list[str] = []


def _explained(error: RuntimeError, said: str, path: Path, accelerator: str) -> PocketSDError:
    if "not supported by GPU delegate" in said:
        delegation = read_delegation(said, path)
        return PocketSDError(
            f"the GPU takes {delegation.delegated} of {delegation.operations} ops"
            f" ({'; '.join(delegation.refused)})",
            where=path,
        )
    if "Failed to load model" in str(error):
        return PocketSDError("damaged, LiteRT cannot read it", where=path)
    if accelerator == "gpu" and not _adapter(said):
        return PocketSDError(
            "no GPU: Vulkan shows no adapter that LiteRT can use",
            mend="--accelerator cpu, or install a Vulkan driver",
        )
    reason = " ".join(str(error).splitlines())
    return PocketSDError(f"LiteRT cannot load it, {reason}", where=path)
