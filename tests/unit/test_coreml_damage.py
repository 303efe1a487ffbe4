"""Damaged Core ML packages end in one line, whatever is wrong with which file."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("coremltools")

from runtime_py.coreml.evaluator import Evaluator
from runtime_py.coreml.schema import model_class
from runtime_py.errors import PocketSDError
from tests.support.coreml import built

MANIFEST = "Manifest.json"
MODEL = "Data/com.apple.CoreML/model.mlmodel"
WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"
FILES = (MANIFEST, MODEL, WEIGHTS)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((1, 4, 6, 6)).astype(np.float16)


def _network(mb: Any, x: Any) -> Any:
    """Weights in fp16, in six bits and in blocks of four, and most ways to name a parameter."""
    from coremltools.converters.mil.mil import types

    def half(*shape: int) -> np.ndarray:
        return RNG.standard_normal(shape).astype(np.float16)

    six = types.nptype_from_builtin(types.string_to_builtin("uint6"))
    four = types.nptype_from_builtin(types.string_to_builtin("int4"))
    y = mb.conv(x=x, weight=half(16, 4, 3, 3), bias=half(16), pad_type="custom", pad=[1, 1, 1, 1])
    y = mb.silu(x=y)
    y = mb.transpose(x=mb.reshape(x=y, shape=[1, 16, -1]), perm=[0, 2, 1])
    palette = mb.constexpr_lut_to_dense(
        indices=RNG.integers(0, 64, (16, 16)).astype(six), lut=half(2, 1, 64, 1)
    )
    blocks = mb.constexpr_blockwise_shift_scale(
        data=RNG.integers(-8, 8, (16, 16)).astype(four), scale=half(16, 4)
    )
    y = mb.add(x=mb.linear(x=y, weight=palette), y=mb.linear(x=y, weight=blocks))
    return mb.softmax(x=mb.concat(values=[y, y], axis=-1), axis=-1, name="out")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "small.mlpackage"
    return built(path, _network, {"x": X}, "iOS18")


@pytest.fixture(scope="module")
def expected(package: Path) -> np.ndarray:
    return Evaluator(package).run({"x": X})["out"]


@contextmanager
def damaged(package: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(shutil.copytree(package, Path(folder) / "damaged.mlpackage"))


def _evaluate(path: Path) -> np.ndarray | None:
    """None for the one line; any other exception is a failure."""
    try:
        return Evaluator(path).run({"x": X})["out"]
    except PocketSDError as error:
        assert "\n" not in str(error)
        return None


@settings(max_examples=60)
@given(name=st.sampled_from(FILES), share=st.floats(0, 1, exclude_max=True))
def test_truncated(package: Path, expected: np.ndarray, name: str, share: float) -> None:
    with damaged(package) as path:
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[: int(share * len(content))])
        found = _evaluate(path)
    # Only what aligns the end of a file can be missed.
    assert found is None or np.array_equal(found, expected)


@settings(max_examples=250)
@example("Data/com.apple.CoreML/model.mlmodel", [(0.587890625, 2)])  # a blob without a size
@given(
    name=st.sampled_from(FILES),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1,
                   max_size=4),
)  # fmt: skip
def test_flipped_bits(package: Path, name: str, flips: list[tuple[float, int]]) -> None:
    """A changed weight is a weight; hashes are the package's business. Nothing may crash."""
    with damaged(package) as path, np.errstate(all="ignore"):
        content = bytearray((path / name).read_bytes())
        for share, bit in flips:
            content[int(share * len(content))] ^= 1 << bit
        (path / name).write_bytes(content)
        _evaluate(path)


@settings(max_examples=40)
@given(name=st.sampled_from(FILES), content=st.binary(max_size=200))
def test_anything_else_in_its_place(package: Path, name: str, content: bytes) -> None:
    with damaged(package) as path:
        (path / name).write_bytes(content)
        assert _evaluate(path) is None


@pytest.mark.parametrize(
    ("at", "form", "number", "message"),
    [
        (0, "<I", 0x12345678, "there is no blob"),
        (4, "<I", 3, "the elements are not"),
        (4, "<I", 999, "the elements are not"),
        (8, "<Q", 6, "6 bytes are not float16"),
        (8, "<Q", 1 << 63, "are not in the file"),
        (16, "<Q", 1 << 40, "are not in the file"),
        (16, "<Q", 129, "are not in the file"),
    ],
)
def test_a_blob_that_points_nowhere(
    package: Path, at: int, form: str, number: int, message: str
) -> None:
    first = 64  # of the blobs' metadata
    with damaged(package) as path:
        content = bytearray((path / WEIGHTS).read_bytes())
        struct.pack_into(form, content, first + at, number)
        (path / WEIGHTS).write_bytes(content)
        with pytest.raises(PocketSDError, match=f"weight.bin: damaged, blob at 64: .*{message}"):
            Evaluator(path)


def _edit_offsets(path: Path, edit: Callable[[Any], None]) -> None:
    model = model_class()()
    model.ParseFromString((path / MODEL).read_bytes())
    (block,) = model.mlProgram.functions["main"].block_specializations.values()
    for operation in block.operations:
        if operation.type == "const":
            value = operation.attributes["val"]
            if value.WhichOneof("value") == "blobFileValue":
                edit(value.blobFileValue)
    (path / MODEL).write_bytes(model.SerializeToString())


@pytest.mark.parametrize("offset", [0, 63, 65, 128, 1 << 40, (1 << 64) - 64])
def test_an_offset_that_is_wrong(package: Path, offset: int) -> None:
    def edit(blob: Any) -> None:
        blob.offset = offset

    with damaged(package) as path:
        _edit_offsets(path, edit)
        with pytest.raises(PocketSDError, match="there is no blob"):
            Evaluator(path)


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "/etc/passwd", "weights/none.bin"])
def test_weights_are_read_from_the_package_only(package: Path, name: str) -> None:
    def edit(blob: Any) -> None:
        blob.fileName = f"@model_path/{name}"

    with damaged(package) as path:
        _edit_offsets(path, edit)
        with pytest.raises(PocketSDError, match="unsafe file name|weights are missing"):
            Evaluator(path)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(package: Path, name: str) -> None:
    with damaged(package) as path:
        (path / name).unlink()
        with pytest.raises(PocketSDError, match=f"incomplete|{Path(name).name} is missing"):
            Evaluator(path)


def test_a_manifest_that_leads_out(package: Path) -> None:
    with damaged(package) as path:
        manifest = json.loads((path / MANIFEST).read_text())
        manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"] = "../../other"
        (path / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(PocketSDError, match="unsafe file name"):
            Evaluator(path)


def test_not_a_package(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "none"):
        with pytest.raises(PocketSDError, match="not a Core ML package"):
            Evaluator(path)
    with pytest.raises(PocketSDError, match="Manifest.json is missing"):
        Evaluator(tmp_path)


def test_a_model_of_another_kind(package: Path) -> None:
    with damaged(package) as path:
        model = model_class()()
        model.specificationVersion = 7
        model.neuralNetwork.layers.add()
        (path / MODEL).write_bytes(model.SerializeToString())
        with pytest.raises(PocketSDError, match="holds neuralNetwork, not an ML program"):
            Evaluator(path)
