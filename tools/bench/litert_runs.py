"""Running a conversion's files: timed on the CPU, questioned and checked on the GPU.

These functions run in children; what is heavy is imported there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.litert_conversions import Link, Setting, operations


class Runner:
    """A conversion's files, loaded one after another and kept."""

    def __init__(self, folder: Path, options: Any) -> None:
        self.folder, self.options = folder, options
        self.loaded: list[tuple[Link, Any]] = []

    def load(self, link: Link) -> None:
        from ai_edge_litert.compiled_model import CompiledModel

        file = str(self.folder / link.file)
        self.loaded.append((link, CompiledModel.from_file(file, options=self.options)))

    def run(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays, and all that was made of them."""
        known = dict(arrays)
        for link, model in self.loaded:
            (signature,) = model.get_signature_list()
            details = model.get_output_tensor_details(signature)
            inputs = {n: model.create_input_buffer_by_name(signature, n) for n in link.inputs}
            outputs = {n: model.create_output_buffer_by_name(signature, n) for n in link.outputs}
            for name, buffer in inputs.items():
                buffer.write(np.ascontiguousarray(known[link.inputs[name]]))
            model.run_by_name(signature, inputs, outputs)
            for name, buffer in outputs.items():
                shape = tuple(int(n) for n in details[name]["shape"])
                values = np.asarray(buffer.read(int(np.prod(shape)), np.float32))
                known[link.outputs[name]] = values.reshape(shape)
        return known


def run_on_cpu(setting: Setting, links: Sequence[Link], runs: int) -> dict[str, Any]:
    from ai_edge_litert.compiled_model import CpuOptions, HardwareAccelerator, Options

    from runtime_py.quality import psnr

    arrays = _arrays(setting)
    threads = CpuOptions(num_threads=setting.threads)
    runner = Runner(setting.folder, Options(HardwareAccelerator.CPU, threads))
    for link in links:
        runner.load(link)
    noise = runner.run(arrays)["noise"]  # not timed: caches are cold
    begin = time.process_time()
    seconds = _timed(runner, arrays, runs)
    # Of all threads together: what stays comparable when the machine has other work.
    busy = (time.process_time() - begin) / runs
    return {"seconds": seconds, "busy_seconds": busy, "psnr": psnr(arrays["answer"], noise)}


def run_on_gpu(
    setting: Setting, links: Sequence[Link], run: bool, fp16: bool = False, beside_cpu: bool = False
) -> dict[str, Any]:
    """What the delegate says about the files; with the CPU beside it, also how it cuts them."""
    from ai_edge_litert.compiled_model import GpuOptions, HardwareAccelerator, Options

    from runtime_py.engines.litert import read_delegation
    from runtime_py.native_output import captured
    from runtime_py.quality import psnr

    accelerators = HardwareAccelerator.GPU
    if beside_cpu:
        accelerators |= HardwareAccelerator.CPU
    gpu = GpuOptions(enforce_f32=not fp16, hint_waiting_for_completion=True)
    runner = Runner(setting.folder, Options(accelerators, gpu_options=gpu))
    files, off, failure, begin = [], 0, "", time.perf_counter()
    for link in links:
        path = setting.folder / link.file
        with captured() as said:
            try:
                runner.load(link)
            except RuntimeError as error:
                failure = str(error).splitlines()[0]
            delegation = read_delegation(said(), path)
        if failure and not delegation.refused:  # it failed before it looked at the ops
            raise RuntimeError(failure)
        if delegation.refused:
            main, _ = operations(path)
            off += sum(main.values()) - delegation.delegated
        files.append(delegation)
    answer = {
        "off": off,
        "partitions": sum(file.partitions for file in files),
        "refused": sorted({reason for file in files for reason in file.refused}),
        "adapter": files[0].adapter,
        "compile_seconds": time.perf_counter() - begin,
    }
    if run and not failure:
        arrays = _arrays(setting)
        with captured():
            try:
                answer["psnr"] = psnr(arrays["answer"], runner.run(arrays)["noise"])
                answer["seconds"] = _timed(runner, arrays, 1)
            except RuntimeError as error:
                answer["run"] = str(error).splitlines()[-1]
    return answer


def _timed(runner: Runner, arrays: dict[str, np.ndarray], runs: int) -> list[float]:
    times = [time.perf_counter()]
    for _ in range(runs):
        runner.run(arrays)
        times.append(time.perf_counter())
    return np.diff(times).tolist()


def _arrays(setting: Setting) -> dict[str, np.ndarray]:
    with np.load(setting.arrays) as file:
        arrays = dict(file)
    return {"answer": arrays.pop("noise"), **arrays}
