"""The engine for Core ML packages: chains of them here, and Core ML itself by a stand-in."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("coremltools")

import runtime_py.engines.coreml as engine_module
from runtime_py.coreml import apple
from runtime_py.coreml.apple import AppleModel, PlannedOperation
from runtime_py.coreml.evaluator import Evaluator
from runtime_py.engines.chain import chain_of
from runtime_py.engines.coreml import CoreMLEngine
from runtime_py.errors import PocketSDError
from runtime_py.package import (
    Component,
    Manifest,
    Package,
    Picture,
    TensorSpec,
    TokenizerSpec,
    open_package,
    seal,
)
from tests.support.coreml import built

RNG = np.random.default_rng(2)
FIRST, SECOND = (RNG.standard_normal((8, 8)).astype(np.float16) for _ in range(2))
X = RNG.standard_normal((2, 8)).astype(np.float32)
TOKENS = np.int32([[3, 1, 2]])


def _head(mb: Any, x: Any) -> Any:
    return mb.linear(x=mb.cast(x=x, dtype="fp16"), weight=FIRST, name="hidden")


def _tail(mb: Any, hidden: Any) -> Any:
    y = mb.square(x=mb.linear(x=hidden, weight=SECOND), name="squared")
    return mb.cast(x=mb.add(x=y, y=hidden), dtype="fp32", name="out")


def _whole(mb: Any, x: Any) -> Any:
    return _tail(mb, _head(mb, x))


def _tokens(mb: Any, tokens: Any) -> Any:
    return mb.gather(x=FIRST, indices=tokens, axis=0, name="rows")


def _component(name: str, folder: Path, links: list[dict[str, Any]], out: str) -> Component:
    roots = [str(link["file"]) for link in links]
    listed = (p for root in roots for p in (folder / root).rglob("*") if p.is_file())
    files = tuple(sorted(p.relative_to(folder).as_posix() for p in listed))
    inputs = {"tokens": ((1, 3), "int32"), "x": ((2, 8), "float32")}[links[0]["inputs"][0]]
    specs = (TensorSpec(links[0]["inputs"][0], *inputs, "N"),)
    return Component(
        name, files, specs, (TensorSpec(out, (None,) * 2, "float32", "N"),), {"chain": links}
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """A component in one file, the same in two, and one that takes and gives other types."""
    folder = tmp_path_factory.mktemp("package")
    work = tmp_path_factory.mktemp("work")
    for name, build, inputs in (
        ("whole", _whole, {"x": X}),
        ("head", _head, {"x": X}),
        ("tail", _tail, {"hidden": ((2, 8), "float16")}),
        ("tokens", _tokens, {"tokens": TOKENS}),
    ):
        made = built(work / f"{name}.mlpackage", build, inputs, "iOS17")
        made.rename(folder / made.name)
    for name in ("vocab.json", "merges.txt"):
        (folder / name).touch()

    def link(name: str, inputs: str, outputs: str) -> dict[str, Any]:
        return {"file": f"{name}.mlpackage", "inputs": [inputs], "outputs": [outputs]}

    chained = [link("head", "x", "hidden"), link("tail", "hidden", "out")]
    components = (
        _component("whole", folder, [link("whole", "x", "out")], "out"),
        _component("chunks", folder, chained, "out"),
        _component("text", folder, [link("tokens", "tokens", "rows")], "rows"),
    )
    manifest = Manifest(
        model="test",
        target="coreml",
        precision="fp16",
        picture=Picture(64, 64, 8, 64, 4, ()),
        tokenizer=TokenizerSpec("vocab.json", "merges.txt", 77),
        components=components,
        samplers={},
        default_sampler="",
        schedule={},
        sources=(),
    )
    seal(folder, manifest)
    return open_package(folder)


@pytest.mark.parametrize("arithmetic", [None, "fp16", "fp32"])
def test_chunks_equal_the_whole(package: Package, arithmetic: str | None) -> None:
    """Bit for bit: what passes between files stays in the type that it has there."""
    engine = CoreMLEngine(package, arithmetic=arithmetic)
    whole, chunks = (engine.run(name, {"x": X})["out"] for name in ("whole", "chunks"))
    np.testing.assert_array_equal(whole, chunks)
    hidden = X @ FIRST.T.astype(np.float32)
    exact = (hidden @ SECOND.T.astype(np.float32)) ** 2 + hidden
    assert (np.abs(whole - exact).max() < 1e-4) == (arithmetic == "fp32")
    assert engine.arithmetic == (arithmetic or "fp16")


def test_types_at_the_boundary(package: Package) -> None:
    engine = CoreMLEngine(package)
    rows = engine.run("text", {"tokens": TOKENS})["rows"]
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, FIRST[TOKENS])
    with pytest.raises(PocketSDError, match="takes tokens as int32"):
        engine.run("text", {"tokens": TOKENS.astype(np.int64)})


def test_overflow_is_told_by_component(package: Package) -> None:
    engine = CoreMLEngine(package)
    engine.run("chunks", {"x": X})
    assert engine.overflow == {}
    engine.run("chunks", {"x": X * 1000})
    assert list(engine.overflow["chunks"]) == ["squared"]
    assert set(engine.ranges["chunks"]) >= {"hidden", "squared"}
    engine.unload("chunks")
    assert list(engine.overflow["chunks"]) == ["squared"]  # still: it is asked for afterwards


def test_a_chain_names_a_folder_or_a_file(package: Package) -> None:
    component = package.manifest.component("chunks")
    assert [link.file for link in chain_of(component)] == ["head.mlpackage", "tail.mlpackage"]
    links = [{"file": "head.mlpack", "inputs": ["x"], "outputs": ["out"]}]
    wrong = Component("x", component.files, component.inputs, component.outputs, {"chain": links})
    with pytest.raises(PocketSDError, match="which is none of its files"):
        chain_of(wrong)


@pytest.mark.skipif(sys.platform == "darwin", reason="there Core ML can be asked")
def test_core_ml_itself_needs_a_mac(package: Package) -> None:
    with pytest.raises(PocketSDError, match=r"runs on macOS only \(leave out"):
        CoreMLEngine(package, compute_units="all")
    with pytest.raises(PocketSDError, match="only Core ML itself plans"):
        CoreMLEngine(package).plan("whole")


def test_what_is_not_installed_is_missed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `open_engine` turns it into a line."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="coremltools"):
        runpy.run_path(str(Path(engine_module.__file__)))


class ComputeUnit(Enum):
    ALL = 1
    CPU_ONLY = 3
    CPU_AND_NE = 4


class MLCPUComputeDevice:
    pass


class MLNeuralEngineComputeDevice:
    pass


class FakeModel:
    """MLModel as it behaves on a Mac, with the evaluator for Core ML."""

    made: list[tuple[str, ComputeUnit, str | None]]

    def __init__(self, model: str, compute_units: ComputeUnit, function_name: str | None) -> None:
        self.path, self.refused = Path(model), "head" in model and compute_units.name == "CPU_ONLY"
        FakeModel.made.append((self.path.name, compute_units, function_name))

    def get_compiled_model_path(self) -> str:
        if self.refused:
            raise Exception("This model was not loaded\nor compiled with the Core ML Framework.")
        return f"{self.path}c"

    def predict(self, data: dict[str, np.ndarray]) -> dict[str, Any]:
        for name, value in data.items():
            data[name] = value.astype(np.float32) if value.dtype == np.float16 else value
        if np.isnan(next(iter(data.values()))).any():
            raise RuntimeError('{\n    NSLocalizedDescription = "Failed";\n}')
        return dict(Evaluator(self.path).run(data))


class FakePlan:
    """MLComputePlan of the whole program: constants say nothing, casts have no cost."""

    def __init__(self, path: str, compute_units: ComputeUnit) -> None:
        assert path.endswith(".mlpackagec") and isinstance(compute_units, ComputeUnit)

        def operation(kind: str, name: str) -> Any:
            return SimpleNamespace(operator_name=kind, outputs=[SimpleNamespace(name=name)])

        names = [("const", "w"), ("ios17.linear", "hidden"), ("ios17.cast", "out")]
        block = SimpleNamespace(operations=[operation(*one) for one in names])
        functions = {"main": SimpleNamespace(block=block)}
        program = SimpleNamespace(functions=functions) if "tail" not in path else None
        self.model_structure = SimpleNamespace(program=program)

    @classmethod
    def load_from_path(cls, path: str, compute_units: ComputeUnit) -> FakePlan:
        return cls(path, compute_units)

    def get_compute_device_usage_for_mlprogram_operation(self, operation: Any) -> Any:
        if "linear" not in operation.operator_name:
            return None
        devices = [MLNeuralEngineComputeDevice(), MLCPUComputeDevice()]
        return SimpleNamespace(
            preferred_compute_device=devices[0], supported_compute_devices=devices
        )

    def get_estimated_cost_for_mlprogram_operation(self, operation: Any) -> Any:
        return SimpleNamespace(weight=0.75) if "linear" in operation.operator_name else None


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    FakeModel.made = []
    fake = SimpleNamespace(
        ComputeUnit=ComputeUnit,
        models=SimpleNamespace(
            MLModel=FakeModel, compute_plan=SimpleNamespace(MLComputePlan=FakePlan)
        ),
    )
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(apple, "_coremltools", lambda: fake)
    yield


def test_on_a_mac_core_ml_runs_the_chain(mac: None, package: Package) -> None:
    engine = CoreMLEngine(package, compute_units="cpu-and-ne")
    x = X.copy()
    out = engine.run("chunks", {"x": x})["out"]
    np.testing.assert_array_equal(out, engine.run("whole", {"x": x})["out"])
    np.testing.assert_array_equal(x, X)
    assert FakeModel.made == [
        (f"{name}.mlpackage", ComputeUnit.CPU_AND_NE, None) for name in ("head", "tail", "whole")
    ]
    assert engine.ranges["chunks"] == {}  # Core ML says nothing about them
    assert CoreMLEngine(package).compute_units == "all"
    assert CoreMLEngine(package, arithmetic="fp16").compute_units is None


def test_where_core_ml_would_run_what(mac: None, package: Package) -> None:
    (plan,) = CoreMLEngine(package).plan("whole")
    assert plan.operations == (
        PlannedOperation("hidden", "linear", "Neural Engine", ("Neural Engine", "CPU"), 0.75),
        PlannedOperation("out", "cast", "", (), None),
    )
    assert plan.operations_on("Neural Engine") == 1 and plan.cost_on("Neural Engine") == 0.75
    assert plan.operations_on("CPU") == 0 and plan.cost_on("CPU") == 0.0


def test_what_core_ml_refuses_is_one_line(mac: None, package: Package) -> None:
    with pytest.raises(PocketSDError, match="no compute units 'gpu'"):
        CoreMLEngine(package, compute_units="gpu").load("whole")
    with pytest.raises(PocketSDError, match="Core ML chooses its own arithmetic"):
        CoreMLEngine(package, compute_units="all", arithmetic="fp16")
    with pytest.raises(PocketSDError, match="cannot load it, This model was not loaded or"):
        CoreMLEngine(package, compute_units="cpu-only").run("chunks", {"x": X})
    with pytest.raises(PocketSDError, match="cannot run it, { NSLocalizedDescription"):
        CoreMLEngine(package).run("whole", {"x": X * np.nan})
    with pytest.raises(PocketSDError, match="gives no plan for function 'main'"):
        AppleModel(package.file("tail.mlpackage"), "all").plan()


def test_the_stand_in_has_the_shape_of_the_real_thing() -> None:
    """What is called on a Mac exists in coremltools under these names and parameters."""
    import inspect

    from coremltools import ComputeUnit as Real
    from coremltools.models import MLModel
    from coremltools.models.compute_plan import (
        MLComputePlan,
        MLComputePlanCost,
        MLComputePlanDeviceUsage,
        MLModelStructureProgram,
        MLModelStructureProgramBlock,
        MLModelStructureProgramOperation,
    )

    assert {name.upper() for name in apple.COMPUTE_UNITS.values()} == {one.name for one in Real}
    taken = inspect.signature(MLModel.__init__).parameters
    assert {"model", "compute_units", "function_name"} <= set(taken)
    for name in ("predict", "get_compiled_model_path"):
        assert callable(getattr(MLModel, name))
    plan = inspect.signature(MLComputePlan.load_from_path).parameters
    assert {"path", "compute_units"} <= set(plan)
    for name in dir(FakePlan):
        assert name.startswith("_") or hasattr(MLComputePlan, name)
    for kind, fields in (
        (MLComputePlanCost, {"weight"}),
        (MLComputePlanDeviceUsage, {"preferred_compute_device", "supported_compute_devices"}),
        (MLModelStructureProgram, {"functions"}),
        (MLModelStructureProgramBlock, {"operations"}),
        (MLModelStructureProgramOperation, {"operator_name", "outputs"}),
    ):
        assert fields <= set(kind.__dataclass_fields__)
