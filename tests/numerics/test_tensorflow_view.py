"""Another runtime and its Analyzer on files of ours: same numbers, and a list that is real."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from runtime_py.engines import Array
from runtime_py.errors import PocketSDError
from runtime_py.quality import psnr
from runtime_py.tensorflow_view import (
    MEND,
    VARIABLE,
    NoAnalyzerError,
    gpu_view,
    parse,
    run,
    run_separately,
    separate_python,
)
from runtime_py.tensorflow_worker import seeded

#: Stands for a Python whose Analyzer dies of the file after the first one.
DYING = """#!/bin/sh
echo '"GPU COMPATIBILITY WARNING: as it should"' > "$5"
kill -SEGV $$
"""
SAME = 100  # dB; two builds of the same kernels add up in different orders

needs_litert = pytest.mark.skipif(
    find_spec("litert_torch") is None, reason="litert-torch is not installed"
)
needs_other = pytest.mark.skipif(
    separate_python() is None, reason="tools/tensorflow_view.py has not been run"
)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain conversion of a normalisation: what makes today's Stable Diffusion fall off GPUs."""
    import litert_torch
    import torch

    from runtime_py.native_output import captured

    layers = (torch.nn.Conv2d(4, 16, 3, padding=1), torch.nn.GroupNorm(4, 16), torch.nn.SiLU())
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tflite") / "grouped.tflite"
    with captured(1), captured(2):
        network = torch.nn.Sequential(*layers).eval()
        sample = {"input": torch.zeros(1, 4, 8, 8)}
        litert_torch.convert(network, sample_kwargs=sample).export(str(path))
    return path


def in_litert(path: Path) -> tuple[dict[str, Array], dict[str, Array]]:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(path)).get_signature_runner()
    inputs = seeded(runner.get_input_details())
    return inputs, dict(runner(**inputs))


@needs_litert
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tensorflow_computes_the_same(grouped: Path) -> None:
    inputs, expected = in_litert(grouped)
    found = run(grouped, inputs)
    assert set(found) == set(expected)
    assert all(psnr(expected[name], found[name]) > SAME for name in expected)


@needs_litert
@needs_other
def test_an_older_tensorflow_computes_the_same(grouped: Path) -> None:
    inputs, expected = in_litert(grouped)
    found = run_separately(grouped, inputs)
    assert set(found) == set(expected)
    assert all(psnr(expected[name], found[name]) > SAME for name in expected)


@needs_litert
@needs_other
def test_the_analyzer_refuses_what_gpus_refuse(grouped: Path) -> None:
    view = gpu_view(grouped)
    assert not view.compatible and view.by
    assert len(view.refused) == 2
    assert all("BROADCAST_TO: Not supported op" in line for line in view.refused)


@needs_litert
@needs_other
def test_constants_behind_the_flatbuffer_are_constants(grouped: Path, tmp_path: Path) -> None:
    (path := tmp_path / "outside.tflite").write_bytes(moved_out(grouped.read_bytes()))
    assert np.array_equal(in_litert(path)[1]["output_0"], in_litert(grouped)[1]["output_0"])
    assert gpu_view(path).refused == gpu_view(grouped).refused


@needs_litert
def test_an_analyzer_that_passes_everything_is_not_believed(
    grouped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/python")
    try:
        assert gpu_view(grouped).refused  # should ai-edge-litert ever get its list back
    except NoAnalyzerError as error:
        assert MEND in str(error)
    if find_spec("tensorflow") is None:
        with pytest.raises(PocketSDError, match=r"no TensorFlow here .*pocketsd\[tensorflow\]"):
            run(grouped, {})


@needs_litert
def test_an_analyzer_that_dies_takes_nothing_with_it(
    grouped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dying := tmp_path / "python").write_text(DYING)
    dying.chmod(0o755)
    monkeypatch.setenv(VARIABLE, str(dying))
    with pytest.raises(PocketSDError, match=r"grouped.tflite: .* died of SIGSEGV"):
        gpu_view(grouped)


@needs_litert
def test_a_damaged_file_meets_no_analyzer(grouped: Path) -> None:
    path = grouped.with_name("damaged.tflite")
    path.write_bytes(rewired(grouped.read_bytes()))
    with pytest.raises(PocketSDError, match="an op refers to tensor 268435456 of"):
        gpu_view(path)


def test_the_analyzers_words(tmp_path: Path) -> None:
    text = """
Subgraph#0 main(T#0) -> [T#2]
  Op#0 ADD(T#0, T#0) -> [T#1]
  Op#1 WHERE(T#1) -> [T#2]
GPU COMPATIBILITY WARNING: Not supported op WHERE

GPU COMPATIBILITY WARNING: Subgraph#0 has GPU delegate compatibility issues at nodes 1 on TFLite \
runtime version 2.17.1
Subgraph#1 body(T#1_0) -> [T#1_1]
  Op#0 Mine(T#1_0) -> [T#1_1]
GPU COMPATIBILITY WARNING: Not supported custom op Mine
"""
    view = parse(text, tmp_path)
    assert not view.compatible and view.by == "TFLite 2.17.1" and view.text == text
    assert view.refused == (
        "op 1 WHERE: Not supported op WHERE",
        "graph 1 op 0 Mine: Not supported custom op Mine",
    )
    fine = "Your model looks compatible with GPU delegate on TFLite runtime version 2.17.1."
    assert parse(fine, tmp_path).compatible and parse(fine, tmp_path).by == "TFLite 2.17.1"
    with pytest.raises(PocketSDError, match="neither yes nor no"):
        parse("Something else.", tmp_path)


def moved_out(content: bytes) -> bytes:
    """The same model with its larger constants behind the flatbuffer, as quantisers leave them."""
    from ai_edge_litert import schema_py_generated as schema

    full = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    start, behind = 1 << 16, b""
    for buffer in full.buffers:
        if buffer.data is not None and len(buffer.data) > 32:
            buffer.offset, buffer.size = start + len(behind), len(buffer.data)
            behind += bytes(buffer.data) + bytes(-len(buffer.data) % 16)
            buffer.data = None
    inside = packed(full)
    return inside + bytes(start - len(inside)) + behind


def rewired(content: bytes) -> bytes:
    """Well-formed, and fatal to every Analyzer there is."""
    from ai_edge_litert import schema_py_generated as schema

    full = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    for operator in full.subgraphs[0].operators:
        operator.inputs = [1 << 28 for _ in operator.inputs]
    return packed(full)


def packed(model: object) -> bytes:
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")  # type: ignore[attr-defined]
    return bytes(builder.Output())
