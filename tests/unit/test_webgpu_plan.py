"""A plan is checked before it runs: nothing in it may reach outside of its buffers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime_py.errors import PocketSDError
from runtime_py.webgpu.plan import (
    ARENA,
    NUMBERS,
    Binding,
    Dispatch,
    Plan,
    Port,
    check_plan,
    read_plan,
    write_plan,
)

DISPATCH = Dispatch(
    "layer:copy",
    "copy",
    (4, 1, 1),
    (
        Binding("input:x", 0, 64),
        Binding(ARENA, 256, 64),
        Binding(ARENA, 512, 64),
        Binding(NUMBERS, 0, 16),
    ),
)
PLAN = Plan(
    component="unet",
    arithmetic="f32",
    features=(),
    arena=1024,
    live=768,
    shaders={"copy": "@compute @workgroup_size(1) fn main() {}"},
    dispatches=(DISPATCH,),
    inputs={"x": Port("input:x", (1, 16), "float32")},
    outputs={"y": Port("output:y", (1, 16), "float32")},
    weights={NUMBERS: 256},
)


def bound(index: int, **changes: Any) -> Plan:
    bindings = list(DISPATCH.bindings)
    bindings[index] = dataclasses.replace(bindings[index], **changes)
    return changed(bindings=tuple(bindings))


def changed(**changes: Any) -> Plan:
    return dataclasses.replace(PLAN, dispatches=(dataclasses.replace(DISPATCH, **changes),))


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    write_plan(PLAN, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == PLAN


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (lambda: bound(1, offset=1000), "multiples of 256"),
        (lambda: bound(1, offset=1024), "reaches byte 1088 of arena, which has 1024"),
        (lambda: bound(1, offset=-256), "at -256 of arena"),
        (lambda: bound(1, size=0), "binds 0 bytes"),
        (lambda: bound(1, size=66), "sizes of 4"),
        (lambda: bound(1, size=2**60), "reaches byte"),
        (lambda: bound(1, offset=512), "overlapping ranges of the arena"),
        (lambda: bound(1, size=320), "overlapping ranges of the arena"),
        (lambda: bound(0, buffer="/etc/passwd"), "unknown buffer '/etc/passwd'"),
        (lambda: changed(shader="other"), "shader that is not there, 'other'"),
        (lambda: changed(groups=(0, 1, 1)), "1 to 65535"),
        (lambda: changed(groups=(1, 70000, 1)), "1 to 65535"),
        (lambda: dataclasses.replace(PLAN, arena=-4), "negative size"),
        (lambda: dataclasses.replace(PLAN, version=99), "not a plan this PocketSD reads"),
        (lambda: dataclasses.replace(PLAN, format="zip"), "not a plan this PocketSD reads"),
    ],
)
def test_a_bad_plan_is_one_line(plan: Callable[[], Plan], complaint: str, tmp_path: Path) -> None:
    write_plan(plan(), tmp_path / "plan.json")
    with pytest.raises(PocketSDError, match=complaint) as raised:
        read_plan(tmp_path / "plan.json")
    assert "plan.json" in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"component": 3}', b"[" * 2000])
def test_what_is_no_plan_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(PocketSDError, match="damaged plan"):
        read_plan(tmp_path / "plan.json")


def test_a_plan_is_plain_data() -> None:
    check_plan(msgspec.convert(msgspec.to_builtins(PLAN), Plan))
