"""TensorFlow's eyes on a .tflite file: tf.lite.Interpreter's numbers, and its Analyzer's opinion.

tf.lite.Interpreter is what most shipped apps carry, and the Analyzer knows what the GPU delegate
that came with it takes. That is an older list than the one of LiteRT's present delegate (which
`pocketsd verify` asks itself): what an app meets that has not been updated for a while. It goes by
the ops alone; no GPU is tried.

The Analyzers of TensorFlow after 2.17 and of ai-edge-litert have lost their list and call every
file compatible. So each Analyzer is first shown a file that no GPU takes, and one that accepts it
is not asked any further. TensorFlow 2.17 cannot share an environment with today's NumPy; it gets
its own (tools/tensorflow_view.py).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from runtime_py import tensorflow_worker
from runtime_py.engines import Array
from runtime_py.errors import PocketSDError
from runtime_py.native_output import captured
from runtime_py.tflite_file import IDENTIFIER, read

ROOT = Path(__file__).resolve().parent.parent
#: Names another Python that has TensorFlow, in place of the one that the tool sets up.
VARIABLE = "POCKETSD_TENSORFLOW_PYTHON"
MEND = "`python3 tools/tensorflow_view.py` in the project's folder sets it up"
INSTALL = "pip install 'pocketsd[tensorflow]'"
WARNING = "GPU COMPATIBILITY WARNING: "
GLIMPSE = 64  # bytes of a constant


class NoAnalyzerError(PocketSDError):
    """There is no Analyzer here that checks anything."""


@dataclass(frozen=True)
class GpuView:
    """`refused` has a line per op: its number and name, and why.

    `text` is all that the Analyzer said; the sizes in it can be those of a copy without weights.
    """

    compatible: bool
    refused: tuple[str, ...]
    text: str
    by: str = ""


def gpu_view(path: Path) -> GpuView:
    return gpu_views([path])[0]


def gpu_views(paths: Sequence[Path]) -> list[GpuView]:
    """Several files in one process."""
    for path in paths:
        read(path)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        canary = folder / "canary.tflite"
        canary.write_bytes(_refused_by_every_gpu())
        # Always asked first: it also says what is no flatbuffer, without dying of it.
        files = [canary, *paths]
        texts = _analyzed(Path(sys.executable), "ai_edge_litert", files, files, folder)
        if WARNING not in texts[0] and (python := separate_python()):
            shown = [_self_contained(path, folder / f"{i}") for i, path in enumerate(files)]
            texts = _analyzed(python, "tensorflow", files, shown, folder)
        if WARNING not in texts[0]:
            raise NoAnalyzerError("no Analyzer here knows what GPUs take", mend=MEND)
    return [parse(text, path) for text, path in zip(texts[1:], paths, strict=True)]


def run(path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The file's first signature in tf.lite.Interpreter, of this environment or of the other."""
    if find_spec("tensorflow") is None:
        if separate_python() is None:
            raise PocketSDError("there is no TensorFlow here", where=path, mend=INSTALL)
        return run_separately(path, inputs)
    with captured() as said:
        try:
            return tensorflow_worker.run(path, inputs)
        except (RuntimeError, ValueError, TypeError) as error:
            line = f"{error} {said()}".strip().splitlines()[0]
            raise PocketSDError(f"tf.lite cannot run it, {line}", where=path) from None


def run_separately(path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The same in the environment that tools/tensorflow_view.py makes."""
    python = separate_python()
    if python is None:
        raise PocketSDError("there is no separate TensorFlow", where=path, mend=MEND)
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(given, **inputs)  # type: ignore[arg-type]
        done = _work(python, "run", path, given, made)
        if done.returncode:
            raise PocketSDError(f"tf.lite cannot run it, {_reason(done)}", where=path)
        with np.load(made) as arrays:
            return dict(arrays)


def separate_python() -> Path | None:
    """The Python of the environment with TensorFlow in it, if there is one."""
    named = os.environ.get(VARIABLE)
    folder = ROOT / ".venv-tensorflow"
    places = [Path(named)] if named else [folder / "bin/python", folder / "Scripts/python.exe"]
    return next((place for place in places if place.is_file()), None)


def parse(text: str, path: Path) -> GpuView:
    """The Analyzer writes each warning below the op that it is about."""
    refused, node, graph = [], "", ""
    for line in text.splitlines():
        if match := re.match(r"Subgraph#(\d+)", line):
            graph = "" if match[1] == "0" else f"graph {match[1]} "
        elif match := re.match(r"\s*Op#(\d+) ([^(]+)\(", line):
            node = f"{graph}op {match[1]} {match[2]}"
        elif line.startswith(WARNING) and "compatibility issues at nodes" not in line:
            reason = f"{node}: {line.removeprefix(WARNING)}"
            refused.append("".join(c if c.isprintable() else "?" for c in reason))
    compatible = "looks compatible with GPU delegate" in text
    if compatible == bool(refused):
        raise PocketSDError(f"the Analyzer says neither yes nor no, {text[:100]}", where=path)
    runtime = re.search(r"runtime version (\S+?)\.?$", text, re.MULTILINE)
    return GpuView(compatible, tuple(refused), text, f"TFLite {runtime[1]}" if runtime else "")


def _analyzed(
    python: Path, library: str, paths: Sequence[Path], shown: Sequence[Path], folder: Path
) -> list[str]:
    """In a process of its own, because the older Analyzers follow wild offsets to their death.

    What is `shown` to it stands for the files at `paths`.
    """
    out = folder / f"{library}.jsonl"
    done = _work(python, "analyze", library, out, *shown)
    texts = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if done.returncode and not texts:
        raise NoAnalyzerError(f"{library}'s Analyzer does not start, {_reason(done)}", mend=MEND)
    if done.returncode:
        culprit = paths[len(texts)]
        raise PocketSDError(
            f"the Analyzer fails on it, {_reason(done)}", where=culprit, mend="the file is damaged"
        )
    for text, path in zip(texts, paths, strict=True):
        if "valid Flatbuffer" in text or "Failed to mmap" in text:
            raise PocketSDError("damaged TFLite file, it is no valid flatbuffer", where=path)
    return texts


def _self_contained(path: Path, copy: Path) -> Path:
    """The file itself, or a copy that the older Analyzers understand.

    Newer files may keep constants behind the flatbuffer. There the Analyzer sees none, and calls
    each one an input. It asks only whether they are there, so the copy has a bit of each.
    """
    from ai_edge_litert import schema_py_generated as schema

    content = path.read_bytes()
    model = schema.Model.GetRootAs(content, 0)
    if not any(model.Buffers(index).Size() for index in range(model.BuffersLength())):
        return path
    full = schema.ModelT.InitFromObj(model)
    for buffer in full.buffers:
        if buffer.size:
            end = buffer.offset + min(buffer.size, GLIMPSE)
            buffer.data = np.frombuffer(content[buffer.offset : end], np.uint8)
            buffer.offset = buffer.size = 0
        elif buffer.data is not None:
            buffer.data = buffer.data[:GLIMPSE]
    copy.write_bytes(_packed(full))
    return copy


def _work(python: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    # -P: the folder of a script is searched for modules first, and this one has many names in it.
    command = [str(part) for part in (python, "-P", tensorflow_worker.__file__, *arguments)]
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"it died of {signal.Signals(-done.returncode).name}"
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def _refused_by_every_gpu() -> bytes:
    """One op, WHERE: how long its result is depends on the values."""
    from ai_edge_litert import schema_py_generated as schema

    def tensor(name: str, shape: list[int], kind: int) -> object:
        made = schema.TensorT()
        made.name, made.shape, made.type, made.buffer = name, shape, kind, 0
        return made

    code, operator, graph, model = (
        schema.OperatorCodeT(), schema.OperatorT(), schema.SubGraphT(), schema.ModelT(),
    )  # fmt: skip
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.WHERE
    operator.inputs, operator.outputs = [0], [1]
    graph.tensors = [
        tensor("condition", [4], schema.TensorType.BOOL),
        tensor("places", [4, 1], schema.TensorType.INT64),
    ]
    graph.operators, graph.inputs, graph.outputs = [operator], [0], [1]
    model.version, model.operatorCodes, model.subgraphs = 3, [code], [graph]
    model.buffers, model.description = [schema.BufferT()], "canary"
    return _packed(model)


def _packed(model: Any) -> bytes:
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())
