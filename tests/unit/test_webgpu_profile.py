"""Timings of kernels, summed up and as a trace."""

from __future__ import annotations

import pytest

pytest.importorskip("wgpu")

from runtime_py.webgpu.executor import Timing
from runtime_py.webgpu.plan import Dispatch
from runtime_py.webgpu.profile import layer, shares, table, trace


def timing(label: str, begin: int, end: int, flops: int = 0, size: int = 0) -> Timing:
    return Timing(Dispatch(label, "s", (1, 2, 3), (), flops, size), begin, end)


TIMINGS = [
    timing("down.0:conv", 1_000, 4_000, flops=6_000, size=300),
    timing("down.0:silu", 4_000, 5_000, size=100),
    timing("up.1:conv", 6_000, 11_000, flops=2_000, size=500),
]


def test_shares_add_up() -> None:
    conv, silu = shares(TIMINGS)
    assert (conv.name, conv.count, conv.flops, conv.bytes) == ("conv", 2, 8_000, 800)
    assert conv.seconds == pytest.approx(8e-6) and conv.gigaflops == pytest.approx(1.0)
    assert conv.gigabytes == pytest.approx(0.1)
    assert conv.share + silu.share == pytest.approx(1)
    assert [row.name for row in shares(TIMINGS, layer)] == ["up.1", "down.0"]
    assert "conv" in table([conv, silu]).splitlines()[1]


def test_a_trace_keeps_order_and_length() -> None:
    events = trace("unet", TIMINGS)["traceEvents"]
    assert [e["ts"] for e in events] == [0.0, 3.0, 5.0]
    assert [e["dur"] for e in events] == [3.0, 1.0, 5.0]
    assert events[2]["args"] == {
        "layer": "up.1", "workgroups": [1, 2, 3], "flops": 2_000, "bytes": 500,
    }  # fmt: skip


def test_nothing_ran() -> None:
    assert shares([]) == [] and trace("unet", [])["traceEvents"] == []
