"""The comparison of runtimes: ratios within rounds, and a table with those that failed below."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime_py.errors import PocketSDError
from tools.bench import webgpu_peers
from tools.bench.child import Outcome
from tools.bench.peers_runtimes import OURS, PEERS, profiled
from tools.bench.peers_subject import Subject
from tools.bench.webgpu_peers import Comparison, Row, main, ratios, spread, table

FACTS = {"psnr": 55.25, "kernels": "7", "off_gpu": "0", "adapter": "GPU"}
ADAPTER = "GPU (DiscreteGPU, Vulkan, driver)"
DIED = Outcome(died="dies (signal 11, Segmentation fault)")


def row(key: str, *times: list[float] | None) -> Row:
    """Its processors are busy for half of the time."""
    seen = [t and {"seconds": t, "busy": [n / 2 for n in t]} for t in times]
    rounds = [Outcome(value, peak_bytes=2_000_000) if value else DIED for value in seen]
    return Row(key, Outcome(FACTS), rounds)


def test_ratios_are_of_the_same_round() -> None:
    assert ratios([2.0, None, 9.0], [1.0, 5.0, 3.0]) == [2.0, 3.0]
    assert ratios([2.0, 4.0], []) == []
    assert ratios([2.0, 4.0], [None, 2.0]) == [2.0]


def test_a_spread_is_the_median_and_the_ends() -> None:
    assert spread([3.0, 1.0, 2.5]) == "2.50 (1.00 to 3.00)"
    assert spread([1.25], ".1f") == "1.2 (1.2 to 1.2)"
    assert spread([]) == "?"


def test_a_machine_that_slows_down_changes_no_ratio() -> None:
    ours = row(OURS, [1.0, 1.0, 5.0], [4.0])
    theirs = row("ncnn", [2.0], [8.0])
    mine, other = table([ours, theirs], ADAPTER).splitlines()[2:]
    assert mine == (
        f"| {PEERS[OURS].label} | 2.500 (1.000 to 4.000) | 1.00 (1.00 to 1.00)"
        " | 1.00 (1.00 to 1.00) | 7 | 0 | 55.2 | 2"
        " | GPU |"
    )
    assert "| 2.00 (2.00 to 2.00) |" in other


def test_a_failure_is_a_line_and_ends_nothing() -> None:
    missing = Row("onnx", Outcome(died="is not installed (onnxruntime)"))
    dead, once = row("litert", None, None), row("ncnn", None, [3.0])
    lines = table([row(OURS, [1.0], [1.5]), missing, dead, once], ADAPTER).splitlines()
    assert len(lines) == 2 + 2 + 2
    assert "| 2.00 (2.00 to 2.00) |" in lines[3]
    assert lines[4:] == [
        "onnxruntime: is not installed (onnxruntime)",
        "LiteRT's delegate: dies (signal 11, Segmentation fault)",
    ]


def test_all_that_can_take_turns_in_every_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[str] = []

    def child(function: object, subject: Subject, *arguments: object, timeout: float) -> Outcome:
        if function is webgpu_peers.measure:
            measured.append(str(arguments[0]))
            return Outcome({"seconds": [1.0], "busy": [1.0]}, peak_bytes=1)
        if function is webgpu_peers.convert and arguments[0] == "litert":
            return DIED
        return Outcome(FACTS)

    monkeypatch.setattr(webgpu_peers, "in_child", child)
    monkeypatch.setattr(webgpu_peers, "find_spec", lambda name: None if name == "pnnx" else name)
    rows = [Row(key) for key in (OURS, "litert", "onnx", "ncnn")]
    Comparison(Subject(tmp_path, "block", (320,), 8, 1, "fp16"), ADAPTER, rows, 2, 1, 1.0).run()
    assert measured == [OURS, "onnx", "onnx", OURS]
    assert [row.failure for row in rows] == ["", DIED.died, "", "is not installed (pnnx)"]


def test_another_gpu_is_not_passed_over() -> None:
    line = table([row(OURS, [1.0])], "llvmpipe (CPU, Vulkan)").splitlines()[2]
    assert "GPU (another GPU" in line


def test_without_ours_nothing_is_divided_by() -> None:
    ours = Row(OURS, Outcome(died="RuntimeError: no"))
    assert "| ? |" in table([ours, row("ncnn", [3.0])], ADAPTER).splitlines()[2]


def test_a_profile_tells_what_fell_back_to_the_cpu(tmp_path: Path) -> None:
    def node(op: str, provider: str) -> dict[str, object]:
        return {"cat": "Node", "args": {"op_name": op, "provider": provider}}

    gpu, cpu = "WebGpuExecutionProvider", "CPUExecutionProvider"
    kernels = [{"cat": "Api", "name": "add"}, {"cat": "Api", "name": "conv"}]
    events = [{"cat": "Session"}, node("Conv", gpu), node("Shape", cpu), node("Add", cpu), *kernels]
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(events))
    facts = profiled(file)
    assert (facts.kernels, facts.off_gpu) == ("2 (of 3 nodes)", "2 (Add, Shape)")
    file.write_text(json.dumps([node("Conv", gpu)]))
    assert profiled(file).off_gpu == "0"


@pytest.mark.parametrize("wrong", [["--block", "--component", "unet"], ["--latent", "20"]])
def test_what_cannot_be_is_refused_before_anything_is_made(
    wrong: list[str], tmp_path: Path
) -> None:
    with pytest.raises(PocketSDError):
        main.main([*wrong, "--folder", str(tmp_path / "made")], standalone_mode=False)
    assert not (tmp_path / "made").exists()
