"""The runtimes that are compared on one GPU: how each gets its model, and how it runs it.

Every function here is called in a child of its own, so what is heavy is imported within, and a
runtime that is missing or dies costs no more than its row.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.bench.litert_conversions import Link
from tools.bench.peers_subject import Subject, diffusers_module, our_module, tensors

#: Later ones have attention and GroupNorm as ops, but onnxruntime runs that attention on the CPU.
OPSET = 20
CONVERTED = "converted"  # a file in a conversion's folder once all is there


@dataclass(frozen=True)
class Facts:
    """What a runtime says about itself after a run."""

    kernels: str
    off_gpu: str  # what the GPU was not given, "0" where that is nothing
    adapter: str  # "" where it does not say


@dataclass(frozen=True)
class Session:
    """A loaded model. `run` brings the inputs in and the answer out."""

    run: Callable[[], NDArray[Any]]
    facts: Callable[[], Facts]


@dataclass(frozen=True)
class Peer:
    label: str
    needs: tuple[str, ...]  # modules; several are those of the extra `peers`
    convert: Callable[[Subject, Path], None]
    #: subject, its folder, the adapter as this host's wgpu lists it, whether to profile
    load: Callable[[Subject, Path, str, bool], Session]


# --- What the children do -----------------------------------------------------------------------


def convert(subject: Subject, key: str) -> None:
    folder = subject.folder / key
    folder.mkdir(exist_ok=True)
    PEERS[key].convert(subject, folder)
    (folder / CONVERTED).touch()


def ask(subject: Subject, key: str, adapter: str) -> dict[str, Any]:
    """What it launches and how right it is; shaders are compiled, and kept by the driver."""
    from runtime_py.quality import psnr

    session = PEERS[key].load(subject, subject.folder / key, adapter, True)
    quality = psnr(subject.arrays()[1], session.run())
    return {"psnr": quality, **asdict(session.facts())}


def measure(subject: Subject, key: str, adapter: str, runs: int) -> dict[str, list[float]]:
    """Seconds of each run, and of all processors together; one run before them is not timed.

    Where the GPU is software, what the processors spent stays comparable on a machine that has
    other work.
    """
    session = PEERS[key].load(subject, subject.folder / key, adapter, False)
    session.run()
    times: dict[str, list[float]] = {"seconds": [], "busy": []}
    for _ in range(runs):
        begin, busy = time.perf_counter(), time.process_time()
        session.run()
        times["seconds"].append(time.perf_counter() - begin)
        times["busy"].append(time.process_time() - busy)
    return times


# --- PocketSD's plans ---------------------------------------------------------------------------


def _plan(subject: Subject, folder: Path) -> None:
    from safetensors.numpy import save_file

    from converter.graph import export
    from converter.targets.webgpu.lower import lower
    from runtime_py.webgpu.plan import write_plan

    program = export(our_module(subject), tensors(subject))
    arithmetic = {"fp16": "f16", "fp32": "f32"}[subject.precision]
    plan, weights = lower(subject.piece, program, subject.inputs, [subject.output], arithmetic)
    write_plan(plan, folder / "plan.json")
    save_file(weights, folder / "weights.safetensors")


def _run_plan(subject: Subject, folder: Path, adapter: str, profile: bool) -> Session:
    from runtime_py.webgpu.adapters import check, choose, open_device
    from runtime_py.webgpu.executor import Executor
    from runtime_py.webgpu.plan import read_plan

    plan, chosen = read_plan(folder / "plan.json"), choose(adapter)
    check(chosen, plan)
    device = open_device(chosen, {*plan.features, "subgroup"})
    executor = Executor(device, plan, folder / "weights.safetensors")
    arrays, facts = subject.arrays()[0], Facts(str(len(plan.dispatches)), "0", chosen.name)
    return Session(lambda: executor.run(arrays)[subject.output.name], lambda: facts)


# --- LiteRT's delegate --------------------------------------------------------------------------


def _tflite(subject: Subject, folder: Path) -> None:
    from converter.graph import export
    from converter.partition import partition
    from converter.quantize import get_recipe
    from converter.targets.litert.writer import LARGEST, WIDEST, write_part

    inputs = tensors(subject)
    named = {spec.name: tensor for spec, tensor in zip(subject.inputs, inputs, strict=True)}
    rules = get_recipe("litert", subject.precision).of("unet")
    program = export(our_module(subject), inputs)
    links: list[Link] = []
    for part in partition(program, [subject.output.name], WIDEST if rules else LARGEST):
        file = folder / f"{len(links)}.tflite"
        write_part(rules, part, named, file)
        links.append(Link(file.name, {n: n for n in part.inputs}, {n: n for n in part.outputs}))
    (folder / "links.json").write_text(json.dumps([asdict(link) for link in links]))


def _run_tflite(subject: Subject, folder: Path, adapter: str, profile: bool) -> Session:
    from ai_edge_litert.compiled_model import GpuOptions, HardwareAccelerator, Options

    from runtime_py.engines.litert import read_delegation
    from runtime_py.native_output import silenced
    from tools.bench.litert_runs import Runner

    gpu = GpuOptions(enforce_f32=subject.precision == "fp32", hint_waiting_for_completion=True)
    runner = Runner(folder, Options(HardwareAccelerator.GPU, gpu_options=gpu))
    files = []
    for link in json.loads((folder / "links.json").read_text()):
        with silenced() as said:
            runner.load(Link(**link))
            files.append(read_delegation(said(), folder / link["file"]))
    arrays, _ = subject.arrays()
    operations, taken = (sum(getattr(f, k) for f in files) for k in ("operations", "delegated"))
    facts = Facts(f"? ({operations} ops)", str(operations - taken), files[0].adapter)
    return Session(lambda: runner.run(arrays)[subject.output.name], lambda: facts)


# --- onnxruntime --------------------------------------------------------------------------------


def _onnx(subject: Subject, folder: Path) -> None:
    _export_onnx(subject, folder, diffusers_module(subject, subject.precision == "fp16"))


def _onnx_fused(subject: Subject, folder: Path) -> None:
    """With every attention as the one op that onnxruntime has its FlashAttention for."""
    import torch
    from diffusers.models.attention_processor import Attention

    def attend(layer: Any, h: Any, encoder_hidden_states: Any = None, **_: Any) -> Any:
        context = h if encoder_hidden_states is None else encoder_hidden_states
        fused = torch.onnx.ops.symbolic(
            "com.microsoft::MultiHeadAttention",
            (layer.to_q(h), layer.to_k(context), layer.to_v(context)),
            {"num_heads": layer.heads}, dtype=h.dtype, shape=h.shape, version=1,
        )  # fmt: skip
        return layer.to_out[0](fused)

    module = diffusers_module(subject, subject.precision == "fp16")
    for layer in module.modules():
        if isinstance(layer, Attention):
            layer.processor = attend
    _export_onnx(subject, folder, module)


def _export_onnx(subject: Subject, folder: Path, module: Any) -> None:
    import torch

    inputs = tuple(
        tensor.half() if _halved(subject, spec.name) else tensor
        for spec, tensor in zip(subject.inputs, tensors(subject), strict=True)
    )
    with torch.inference_mode():
        torch.onnx.export(
            module,
            inputs,
            folder / "model.onnx",
            input_names=[spec.name for spec in subject.inputs],
            output_names=[subject.output.name],
            opset_version=OPSET,
            dynamo=True,
            external_data=True,
        )


def _halved(subject: Subject, name: str) -> bool:
    """A timestep of 981 has no neighbours in fp16 that are as close as its sinusoid needs."""
    return subject.precision == "fp16" and name != "timestep"


def _run_onnx(subject: Subject, folder: Path, adapter: str, profile: bool) -> Session:
    import onnxruntime

    provider = "WebGpuExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise RuntimeError("the onnxruntime that is installed is not onnxruntime-webgpu")
    options = onnxruntime.SessionOptions()
    options.enable_profiling = profile
    options.profile_file_prefix = str(folder / "profile")
    file = str(folder / "model.onnx")
    session = onnxruntime.InferenceSession(file, options, providers=[provider])
    arrays, _ = subject.arrays()

    def run() -> NDArray[Any]:
        halves = {n: a.astype(np.float16) if _halved(subject, n) else a for n, a in arrays.items()}
        (answer,) = session.run(None, halves)
        return answer.astype(np.float32)

    return Session(run, lambda: profiled(Path(session.end_profiling())))


def profiled(file: Path) -> Facts:
    """Of a profile of one run: a kernel's event is an `Api`, a node's says where it ran."""
    events = json.loads(file.read_text())
    nodes = [e["args"] for e in events if e.get("cat") == "Node" and "provider" in e["args"]]
    elsewhere = Counter(n["op_name"] for n in nodes if n["provider"] == "CPUExecutionProvider")
    kernels = sum(e.get("cat") == "Api" for e in events)
    return Facts(f"{kernels} (of {len(nodes)} nodes)", _listed(elsewhere), "")


def _listed(kinds: Counter[str]) -> str:
    return f"{kinds.total()} ({', '.join(sorted(kinds))})" if kinds else "0"


# --- ncnn ---------------------------------------------------------------------------------------


def _ncnn(subject: Subject, folder: Path) -> None:
    """ncnn knows no batches: the model is of one sample."""
    import pnnx
    import torch

    inputs = tuple(tensor[:1] for tensor in tensors(subject))
    traced = folder / "model.pt"
    with torch.no_grad():
        torch.jit.trace(diffusers_module(subject), inputs, check_trace=False).save(traced)
    shapes = ",".join(str(list(tensor.shape)).replace(" ", "") + "f32" for tensor in inputs)
    command = [pnnx.EXEC_PATH, traced.name, f"inputshape={shapes}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode or not (folder / "model.ncnn.bin").exists():
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise RuntimeError(f"pnnx writes no model (exit code {done.returncode}) {' '.join(words)}")
    for file in folder.glob("model.p*"):  # larger than what it made of them
        file.unlink()


def _run_ncnn(subject: Subject, folder: Path, adapter: str, profile: bool) -> Session:
    import ncnn

    names = [ncnn.get_gpu_info(i).device_name() for i in range(ncnn.get_gpu_count())]
    index = next((i for i, name in enumerate(names) if name in adapter), None)
    if index is None:
        raise RuntimeError(f"ncnn does not list the adapter (it has {', '.join(names) or 'none'})")
    net = ncnn.Net()
    net.opt.use_vulkan_compute = True
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
        setattr(net.opt, option, subject.precision == "fp16")
    net.set_vulkan_device(index)
    loaders = {"param": net.load_param, "bin": net.load_model}
    for suffix, load in loaders.items():
        if load(str(folder / f"model.ncnn.{suffix}")):
            raise RuntimeError(f"ncnn cannot load what pnnx wrote (.{suffix})")
    arrays, _ = subject.arrays()

    def one(sample: int) -> NDArray[Any]:
        extractor = net.create_extractor()
        for position, array in enumerate(arrays.values()):
            value = array[sample] if array.ndim > 1 else array[sample : sample + 1]
            extractor.input(f"in{position}", ncnn.Mat(np.ascontiguousarray(value)))
        failed, answer = extractor.extract("out0")
        if failed:
            raise RuntimeError(f"ncnn ends with code {failed}, no memory as a rule")
        return np.array(answer)

    layers = [layer for layer in net.layers() if layer.type not in ("Input", "Split")]
    elsewhere = Counter(layer.type for layer in layers if not layer.support_vulkan)
    count = f"? ({len(layers)} layers, each {subject.batch}x)"
    facts = Facts(count, _listed(elsewhere), names[index])
    return Session(lambda: np.stack([one(i) for i in range(subject.batch)]), lambda: facts)


OURS, ONNX = "ours", ("onnxruntime", "onnxscript")
PEERS = {
    OURS: Peer("PocketSD's plan", ("wgpu", "jinja2"), _plan, _run_plan),
    "litert": Peer("LiteRT's delegate", ("ai_edge_litert", "litert_torch"), _tflite, _run_tflite),
    "onnx": Peer("onnxruntime", ONNX, _onnx, _run_onnx),
    "onnx-fused": Peer("onnxruntime, its attention op", ONNX, _onnx_fused, _run_onnx),
    "ncnn": Peer("ncnn", ("ncnn", "pnnx"), _ncnn, _run_ncnn),
}
