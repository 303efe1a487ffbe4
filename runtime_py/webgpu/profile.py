"""Where the time of a run went: a table by kernel, and a trace for Perfetto or Chrome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from runtime_py.webgpu.executor import Timing


@dataclass(frozen=True)
class Share:
    """All dispatches of one kernel together."""

    name: str
    count: int
    seconds: float
    share: float  # of the whole run
    flops: int
    bytes: int

    @property
    def gigaflops(self) -> float:
        return self.flops / max(self.seconds, 1e-9) / 1e9

    @property
    def gigabytes(self) -> float:
        return self.bytes / max(self.seconds, 1e-9) / 1e9


def kernel(timing: Timing) -> str:
    return timing.dispatch.label.rpartition(":")[2]


def layer(timing: Timing) -> str:
    return timing.dispatch.label.rpartition(":")[0]


def shares(timings: Sequence[Timing], by: Callable[[Timing], str] = kernel) -> list[Share]:
    """The largest first."""
    whole = sum(t.seconds for t in timings) or 1.0
    groups: dict[str, list[Timing]] = {}
    for timing in timings:
        groups.setdefault(by(timing), []).append(timing)
    found = [
        Share(
            name,
            len(group),
            seconds := sum(t.seconds for t in group),
            seconds / whole,
            sum(t.dispatch.flops for t in group),
            sum(t.dispatch.bytes for t in group),
        )
        for name, group in groups.items()
    ]
    return sorted(found, key=lambda s: -s.seconds)


def table(rows: Iterable[Share]) -> str:
    lines = [f"{'kernel':<24}{'count':>6}{'ms':>10}{'share':>8}{'GFLOP/s':>10}{'GB/s':>8}"]
    lines += [
        f"{r.name[:24]:<24}{r.count:>6}{1000 * r.seconds:>10.2f}{100 * r.share:>7.1f}%"
        f"{r.gigaflops:>10.1f}{r.gigabytes:>8.1f}"
        for r in rows
    ]
    return "\n".join(lines)


def trace(component: str, timings: Sequence[Timing]) -> dict[str, Any]:
    """In the format of chrome://tracing, which Perfetto reads too; microseconds."""
    start = min((t.begin for t in timings), default=0)
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [
            {
                "name": kernel(t),
                "cat": component,
                "ph": "X",
                "ts": (t.begin - start) / 1000,
                "dur": (t.end - t.begin) / 1000,
                "pid": 1,
                "tid": 1,
                "args": {
                    "layer": layer(t),
                    "workgroups": list(t.dispatch.groups),
                    "flops": t.dispatch.flops,
                    "bytes": t.dispatch.bytes,
                },
            }
            for t in timings
        ],
    }
