"""Whole Core ML packages evaluated: torch modules, compressed weights, fp16, several functions."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("coremltools")

from runtime_py.coreml.evaluator import Evaluator
from runtime_py.coreml.program import read_program
from runtime_py.coreml.weights import decoded_weights
from runtime_py.errors import PocketSDError
from runtime_py.quality import psnr
from tests.support.coreml import SPECIFICATIONS, built, converted, coremltools, program, save

RNG = np.random.default_rng(3)


def some(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


class Block(nn.Module):
    """What SD 1.x is made of, once each."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.down = nn.Conv2d(4, 16, 3, stride=2, padding=1)
        self.norm, self.after = nn.GroupNorm(4, 16), nn.LayerNorm(16)
        self.time = nn.Linear(8, 16)
        self.q, self.kv = nn.Linear(16, 16, bias=False), nn.Linear(16, 32, bias=False)
        self.gated, self.back = nn.Linear(16, 64), nn.Linear(32, 16)
        self.up = nn.Conv2d(32, 3, 3, padding=1)
        self.register_buffer("causal", torch.full((7, 7), -1e4).triu(1))

    def forward(self, latent: Tensor, timestep: Tensor, tokens: Tensor) -> Tensor:
        angles = timestep[:, None] * torch.exp(-torch.arange(4) / 2.0)
        wave = self.time(torch.cat([angles.cos(), angles.sin()], -1))  # [b, 16]
        text = self.words(tokens)  # [b, 7, 16]
        text = text + torch.softmax(text @ text.transpose(1, 2) / 4 + self.causal, -1) @ text
        text = text * torch.sigmoid(1.702 * text)
        x = F.silu(self.norm(self.down(latent))) + wave[:, :, None, None]  # [b, 16, h, w]
        rows = self.after(x.flatten(2).transpose(1, 2))  # [b, hw, 16]
        k, v = self.kv(text).chunk(2, -1)
        q, k, v = (y.unflatten(-1, (2, 8)).transpose(1, 2) for y in (self.q(rows), k, v))
        rows = rows + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        value, gate = self.gated(rows).chunk(2, -1)
        rows = rows + self.back(value * F.gelu(gate))
        y = torch.cat([x, rows.transpose(1, 2).reshape(x.shape)], 1)
        return self.up(F.interpolate(y, scale_factor=2.0, mode="nearest"))


INPUTS = {
    "latent": torch.from_numpy(some(2, 4, 8, 8)),
    "timestep": torch.tensor([3.0, 0.5]),
    "tokens": torch.from_numpy(RNG.integers(0, 50, (2, 7)).astype(np.int32)),
}
ARRAYS = {name: value.numpy() for name, value in INPUTS.items()}


@pytest.fixture(scope="module")
def block() -> Block:
    torch.manual_seed(0)
    module = Block().eval().requires_grad_(False)
    for weight in (*module.norm.parameters(), *module.after.parameters()):
        nn.init.normal_(weight, 1.0, 0.3)  # at their initial values they are optimised away
    return module


@pytest.fixture(scope="module")
def package(block: Block, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The block as coremltools converts it, each form once."""
    made: dict[tuple[str, str], Path] = {}

    def get(target: str, precision: str) -> Path:
        if (target, precision) not in made:
            path = tmp_path_factory.mktemp("block") / "block.mlpackage"
            converted(block, INPUTS, target, precision).save(str(path))
            made[target, precision] = path
        return made[target, precision]

    return get


@pytest.mark.parametrize("target", SPECIFICATIONS)
def test_a_torch_module_in_fp32(block: Block, package: Any, target: str) -> None:
    """90 dB: what different orders of addition cost in fp32."""
    evaluator = Evaluator(package(target, "fp32"))
    (found,) = evaluator.run(ARRAYS).values()
    assert psnr(block(**INPUTS), found) > 90
    assert not evaluator.overflow
    counted = evaluator.histogram()
    assert counted["conv"] == 2 and "const" not in counted
    assert counted["scaled_dot_product_attention"] == (target == "iOS18")


@pytest.mark.parametrize("target", ("iOS16", "iOS18"))
def test_a_torch_module_in_fp16(block: Block, package: Any, target: str) -> None:
    """50 dB: 11 bits of mantissa are 66 dB, less what thirty roundings in a row add up to."""
    expected, path = block(**INPUTS), package(target, "fp16")
    (half,) = Evaluator(path).run(ARRAYS).values()
    (full,) = Evaluator(path, arithmetic="fp32").run(ARRAYS).values()
    assert psnr(expected, half) > 50
    # The same package without rounding in between: only its weights are in fp16.
    assert psnr(expected, full) > psnr(expected, half) + 3


def test_the_graph_is_run_as_the_program_stands(package: Any) -> None:
    """An independent check of the reading: coremltools' loader sees the same operations."""
    from coremltools.converters.mil.frontend.milproto.load import load

    path = package("iOS18", "fp16")
    spec = coremltools().utils.load_spec(str(path))
    folder = path / "Data" / "com.apple.CoreML" / "weights"
    theirs = load(spec, spec.specificationVersion, str(folder)).functions["main"]
    ours = read_program(path).functions["main"]
    operations = [op for op in theirs.operations if op.op_type != "const"]
    assert [op.op_type for op in operations] == [op.type for op in ours.operations]
    for their, our in zip(operations, ours.operations, strict=True):
        assert {var.name: tuple(var.shape) for var in their.outputs} == {
            name: kind.shape for name, kind in our.outputs.items()
        }
    consts = {op.outputs[0].name: op.outputs[0].val for op in theirs.find_ops(op_type="const")}
    decoded = decoded_weights(path)
    assert len(decoded) > 20
    for name, value in decoded.items():
        np.testing.assert_array_equal(value, consts[name])


def _squares(mb: Any, x: Any) -> Any:
    y = mb.square(x=x, name="planted")
    y = mb.mul(x=y, y=np.float16(0.001), name="after")
    return mb.cast(x=y, dtype="fp32", name="out")


def test_overflow_is_named(tmp_path: Path) -> None:
    path = built(tmp_path / "square.mlpackage", _squares, {"x": ((1, 4), "float16")})
    evaluator = Evaluator(path)
    x = np.float16([[1, 2, 3, 4]])
    assert np.isfinite(evaluator.run({"x": x})["out"]).all() and not evaluator.overflow
    x[0, 2] = 300
    assert np.isinf(evaluator.run({"x": x})["out"]).any()
    assert np.isinf(evaluator.run({"x": x})["out"]).any()
    # What came after had an infinite input: it is no fault of its own.
    assert list(evaluator.overflow) == ["planted"]
    seen = evaluator.overflow["planted"]
    assert (seen.type, seen.overflows, seen.largest) == ("square", 2, 90000.0)
    without = Evaluator(path, arithmetic="fp32")
    assert without.run({"x": x})["out"][0, 2] == pytest.approx(90, rel=1e-3)
    assert not without.overflow and without.ranges["planted"].largest == 90000.0


def test_fp16_rounds_every_result(tmp_path: Path) -> None:
    def build(mb: Any, x: Any) -> Any:
        return mb.mul(x=mb.add(x=x, y=np.float16(0.1)), y=np.float16(3.3), name="out")

    path = built(tmp_path / "half.mlpackage", build, {"x": ((64,), "float16")})
    x = some(64).astype(np.float16)
    found = Evaluator(path).run({"x": x})["out"]
    assert found.dtype == np.float16  # numpy rounds each operation of this type as well
    np.testing.assert_array_equal(found, (x + np.float16(0.1)) * np.float16(3.3))
    full = Evaluator(path, arithmetic="fp32").run({"x": x})["out"]
    assert full.dtype == np.float32
    wide = (x.astype(np.float32) + np.float32(np.float16(0.1))) * np.float32(np.float16(3.3))
    np.testing.assert_allclose(full, wide, rtol=1e-6)


def test_the_hook_sees_everything_and_the_dead_are_freed(tmp_path: Path) -> None:
    def build(mb: Any, x: Any) -> Any:
        for _ in range(20):
            x = mb.add(x=x, y=np.float32(1))
        return x

    path = built(tmp_path / "long.mlpackage", build, {"x": some(8)})
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most, seen = 0, []

    def hook(operation: Any, inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        nonlocal most
        seen.append((operation.type, sorted(inputs), outputs[0].shape))
        alive.add(outputs[0])
        most = max(most, len(alive))

    Evaluator(path, hook=hook).run({"x": some(8)})
    assert seen == [("add", ["x", "y"], (8,))] * 20
    assert most <= 2


@pytest.fixture(scope="module")
def two_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One package, a function for each of two shapes."""
    ct, folder = coremltools(), tmp_path_factory.mktemp("functions")
    weight = some(4, 3)
    description = ct.utils.MultiFunctionDescriptor()
    for name, batch in (("one", 1), ("two", 2)):
        path = built(
            folder / f"{name}.mlpackage",
            lambda mb, x: mb.linear(x=x, weight=weight, name="y"),
            {"x": some(batch, 3)},
            "iOS18",
        )
        description.add_function(str(path), src_function_name="main", target_function_name=name)
    description.default_function_name = "one"
    out = folder / "both.mlpackage"
    ct.utils.save_multifunction(description, str(out))
    return out


def test_functions_are_chosen_by_shape_or_name(two_sizes: Path) -> None:
    evaluator = Evaluator(two_sizes)
    assert evaluator.functions == ("one", "two")
    assert evaluator.inputs["x"].shape == (1, 3) and evaluator.outputs["y"].shape == (1, 4)
    for batch in (1, 2):
        assert evaluator.run({"x": some(batch, 3)})["y"].shape == (batch, 4)
    with pytest.raises(PocketSDError, match="one takes x as .*; two takes x as"):
        evaluator.run({"x": some(3, 3)})
    assert Evaluator(two_sizes, function="two").inputs["x"].shape == (2, 3)
    with pytest.raises(PocketSDError, match="no function 'three'"):
        Evaluator(two_sizes, function="three")


def _edited(path: Path, edit: Callable[[Any], None]) -> Path:
    from runtime_py.coreml.schema import model_class

    model, file = model_class()(), path / "Data" / "com.apple.CoreML" / "model.mlmodel"
    model.ParseFromString(file.read_bytes())
    (block,) = model.mlProgram.functions["main"].block_specializations.values()
    edit(block.operations)
    file.write_bytes(model.SerializeToString())
    return path


def test_what_does_not_match_is_named(tmp_path: Path) -> None:
    def made(name: str, edit: Callable[[Any], None]) -> Path:
        path = built(tmp_path / f"{name}.mlpackage", _squares, {"x": ((1, 4), "float16")})
        return _edited(path, edit)

    def operation(operations: Any, kind: str) -> Any:
        return next(one for one in operations if one.type == kind)

    def shorter(operations: Any) -> None:
        tensor = operation(operations, "square").outputs[0].type.tensorType
        tensor.dimensions[1].constant.size = 5

    def integer(operations: Any) -> None:
        operation(operations, "square").outputs[0].type.tensorType.dataType = 23

    def unknown(operations: Any) -> None:
        operation(operations, "square").type = "cube"

    def parameter(operations: Any) -> None:
        one = operation(operations, "mul")
        one.inputs["z"].CopyFrom(one.inputs["y"])

    x = {"x": np.ones((1, 4), np.float16)}
    for edit, message in (
        (shorter, r"planted \(square\) gives float32 \[1, 4\] where MIL says float16 \[1,5\]"),
        (integer, r"planted \(square\) gives float32 \[1, 4\] where MIL says int32"),
        (unknown, "planted is cube, an operation unknown here"),
        (parameter, r"after \(mul\) has a parameter 'z', unknown here"),
    ):
        with pytest.raises(PocketSDError, match=message):
            Evaluator(made(edit.__name__, edit)).run(x)
    path = made("plain", lambda operations: None)
    for wrong in ({}, {"x": np.ones((1, 5), np.float16)}, {"x": np.ones((1, 4), np.int32)}):
        with pytest.raises(PocketSDError, match="takes"):
            Evaluator(path).run(wrong)
    with pytest.raises(PocketSDError, match="no arithmetic 'fp8'"):
        Evaluator(path, arithmetic="fp8")


def test_control_flow_is_refused(tmp_path: Path) -> None:
    def build(mb: Any, x: Any) -> Any:
        large = mb.greater(x=mb.reduce_sum(x=x), y=np.float32(1))
        return mb.cond(pred=large, _true_fn=lambda: mb.relu(x=x), _false_fn=lambda: mb.exp(x=x))

    path = save(program(build, {"x": some(3)}, "iOS17"), tmp_path / "cond.mlpackage")
    with pytest.raises(PocketSDError, match="control flow is not supported"):
        Evaluator(path)
