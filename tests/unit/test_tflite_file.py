"""Reading .tflite files: what is in whole ones, and that damaged ones end in one line."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime_py.errors import PocketSDError
from runtime_py.tflite_file import Tensor, is_tflite, read, readable

pytestmark = pytest.mark.skipif(not readable(), reason="ai-edge-litert is not installed")

POCKETSD = Path(sys.executable).parent / "pocketsd"
WEIGHTS = np.arange(40, dtype=np.float32)


def model(named: str = "bias") -> Any:
    """x [1, 40] -> TANH(x) + weights, as the schema's objects."""
    from ai_edge_litert import schema_py_generated as schema

    def tensor(name: str, buffer: int, signature: list[int] | None = None) -> Any:
        made = schema.TensorT()
        made.name, made.shape, made.buffer = name, [1, 40], buffer
        made.type, made.shapeSignature = schema.TensorType.FLOAT32, signature
        return made

    def code(number: int) -> Any:
        made = schema.OperatorCodeT()
        made.builtinCode = made.deprecatedBuiltinCode = number
        made.version = 1
        return made

    def operator(opcode: int, inputs: list[int], outputs: list[int]) -> Any:
        made = schema.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = opcode, inputs, outputs
        return made

    def end(name: str, index: int) -> Any:
        made = schema.TensorMapT()
        made.name, made.tensorIndex = name, index
        return made

    add = operator(0, [1, 2], [3])
    add.builtinOptionsType = schema.BuiltinOptions.AddOptions
    add.builtinOptions = schema.AddOptionsT()
    graph, signature, whole = schema.SubGraphT(), schema.SignatureDefT(), schema.ModelT()
    graph.tensors = [tensor("t0", 0, [-1, 40]), tensor("t1", 0), tensor(named, 1), tensor("t3", 0)]
    graph.operators = [operator(1, [0], [1]), add]
    graph.inputs, graph.outputs = [0], [3]
    signature.signatureKey, signature.subgraphIndex = "serving_default", 0
    signature.inputs, signature.outputs = [end("x", 0)], [end("y", 3)]
    weights = schema.BufferT()
    weights.data = WEIGHTS.view(np.uint8)
    whole.version, whole.description = 3, "tiny"
    whole.operatorCodes = [code(schema.BuiltinOperator.ADD), code(schema.BuiltinOperator.TANH)]
    whole.subgraphs, whole.signatureDefs = [graph], [signature]
    whole.buffers = [schema.BufferT(), weights]
    return whole


def packed(model: Any) -> bytes:
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.tflite"
    path.write_bytes(packed(model()))
    return path


def test_what_is_in_it(tiny: Path) -> None:
    from ai_edge_litert.interpreter import Interpreter

    found = read(tiny)
    assert found.bytes == tiny.stat().st_size
    assert found.operations == {"ADD": 1, "TANH": 1} and found.operation_count == 2
    assert found.weights == {"float32": WEIGHTS.nbytes}
    assert found.signature == "serving_default"
    assert found.inputs == (Tensor("x", "float32", (None, 40)),)
    assert found.outputs == (Tensor("y", "float32", (1, 40)),)
    assert str(found.inputs[0]) == "x float32[?,40]"
    # And it is a real file.
    values = Interpreter(str(tiny)).get_signature_runner()(x=np.zeros((1, 40), np.float32))
    assert np.array_equal(values["y"][0], WEIGHTS)


def test_without_a_signature_the_graph_names_its_ends(tmp_path: Path) -> None:
    plain = model()
    plain.signatureDefs = None
    (path := tmp_path / "plain").write_bytes(packed(plain))
    assert is_tflite(path) and not is_tflite(tmp_path)
    found = read(path)
    assert found.signature == ""
    assert [found.inputs[0].name, found.outputs[0].name] == ["t0", "t3"]


def test_weights_behind_the_flatbuffer(tmp_path: Path) -> None:
    outside = model()
    buffer = outside.buffers[1]
    buffer.data, buffer.offset, buffer.size = None, 1 << 20, WEIGHTS.nbytes
    content = packed(outside)
    content += bytes((1 << 20) - len(content)) + WEIGHTS.tobytes()
    (path := tmp_path / "outside.tflite").write_bytes(content)
    assert read(path).weights == {"float32": WEIGHTS.nbytes}
    path.write_bytes(content[:-1])
    with pytest.raises(PocketSDError, match="ends before its weights"):
        read(path)


def test_names_cannot_drive_a_terminal(tmp_path: Path) -> None:
    sly = model()
    sly.signatureDefs[0].inputs[0].name = "x\x1b[2J\nok"
    (path := tmp_path / "sly.tflite").write_bytes(packed(sly))
    assert read(path).inputs[0].name == "x?[2J?ok"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (lambda whole: b"", "not a TFLite file"),
        (lambda whole: b"<html>404 not found</html>" * 20, "not a TFLite file"),
        (lambda whole: b"\x08\0\0\0TFL3" + b"\xff" * 200, "damaged TFLite file"),
        (lambda whole: b"\x08\0\0\0TFL3" + bytes(200), "damaged TFLite file"),
        (lambda whole: whole[: len(whole) // 2], "damaged TFLite file"),
    ],
)
def test_what_is_none(tiny: Path, content: Callable[[bytes], bytes], expected: str) -> None:
    tiny.write_bytes(content(tiny.read_bytes()))
    with pytest.raises(PocketSDError, match=expected):
        read(tiny)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("opcodeIndex", 9, "refers to number 9 of 2"),
        ("buffer", 7, "refers to number 7 of 2"),
        ("builtinCode", 9999, "op 9999 is unknown"),
        ("type", 99, "tensor type 99 is unknown"),
        ("subgraphs", None, "it has no graph"),
    ],
)
def test_references_that_lead_nowhere(
    tmp_path: Path, field: str, value: Any, expected: str
) -> None:
    odd = model()
    graph = odd.subgraphs[0]
    for holder in (odd, odd.operatorCodes[0], graph.operators[0], graph.tensors[0]):
        if hasattr(holder, field):
            setattr(holder, field, value)
    (path := tmp_path / "odd.tflite").write_bytes(packed(odd))
    with pytest.raises(PocketSDError, match=expected):
        read(path)


def test_any_flipped_bytes(tiny: Path) -> None:
    whole, chance = tiny.read_bytes(), random.Random(1)
    started = time.perf_counter()
    for _ in range(500):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 4, 40))):
            content[chance.randrange(8, len(content))] = chance.choice((0, 127, 128, 255))
        tiny.write_bytes(content)
        try:
            read(tiny)
        except PocketSDError as error:
            assert "damaged" in str(error)
    assert time.perf_counter() - started < 60  # no walks through gigabytes that are not there


def test_inspect_says_it(tiny: Path) -> None:
    done = subprocess.run([POCKETSD, "inspect", tiny], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tiny.tflite: " in done.stdout and ", 2 ops" in done.stdout
    for line in ("x float32[?,40]", "y float32[1,40]", "float32 0.2 kB", "1 ADD, 1 TANH"):
        assert line in done.stdout
    assert "GPU compatibility: " in done.stdout
    done = subprocess.run([POCKETSD, "inspect", tiny, "--json"], capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert found["operations"] == {"ADD": 1, "TANH": 1} and "gpu" in found


def test_inspect_of_a_damaged_file_is_one_line(tiny: Path) -> None:
    tiny.write_bytes(tiny.read_bytes()[:300])
    done = subprocess.run([POCKETSD, "inspect", tiny], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("pocketsd: ") and done.stderr.count("\n") == 1
    assert "damaged TFLite file" in done.stderr
