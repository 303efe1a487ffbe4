"""Our plans beside other runtimes on the same GPU: one piece of a UNet, one set of weights.

Runtimes take turns in every round, each in a fresh process: what slows the machine down slows all,
peaks of memory stay apart, and a runtime that dies costs its row.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from runtime_py.errors import PocketSDError
from tools.bench.child import Outcome, in_child
from tools.bench.folder import working_folder
from tools.bench.peers_runtimes import CONVERTED, OURS, PEERS, ask, convert, measure
from tools.bench.peers_subject import WIDTHS, Subject, prepare

PACKAGES = ("wgpu", "ai-edge-litert", "onnxruntime-webgpu", "ncnn", "pnnx", "torch", "diffusers")
EXAMPLES = """\b
Examples:
  python -m tools.bench.webgpu_peers                    a block of SD 1.5's UNet at 32x32
  python -m tools.bench.webgpu_peers --precision fp32 --peer ours --peer ncnn
  python -m tools.bench.webgpu_peers --component unet --size small --latent 32
  python -m tools.bench.webgpu_peers --component unet --size full --adapter llvmpipe

ncnn is told which adapter to use. LiteRT and onnxruntime choose for themselves among those that
Vulkan shows: where there are several, VK_DRIVER_FILES hides the others. Without any GPU,
tools/software_gpu.py prints how to get one of software.
"""


@dataclass
class Row:
    key: str
    facts: Outcome = field(default_factory=Outcome)  # of converting, then of asking
    rounds: list[Outcome] = field(default_factory=list)

    @property
    def label(self) -> str:
        return PEERS[self.key].label

    @property
    def failure(self) -> str:
        """The first reason why there is no time; empty when there is one."""
        if self.facts.died or any(outcome.value for outcome in self.rounds):
            return self.facts.died
        return next((outcome.died for outcome in self.rounds), "it was not run")

    def timed(self, what: str = "seconds") -> list[float | None]:
        """A round's median; with "busy", of the time of all processors together."""
        return [statistics.median(o.value[what]) if o.value else None for o in self.rounds]


# --- The comparison, step by step ---------------------------------------------------------------


class Progress:
    """A line a step, with the time that is left if steps go on as they did."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done, self.begin = steps, 0, time.monotonic()

    def say(self, what: str) -> None:
        spent = time.monotonic() - self.begin
        left = spent / self.done * (self.steps - self.done) if self.done else None
        estimate = "" if left is None else f", about {left:.0f} s left"
        click.echo(f"[{spent:4.0f} s{estimate}] {what}", err=True)

    def skip(self, steps: int) -> None:
        self.steps -= steps

    def step(self, what: str) -> None:
        self.say(what)
        self.done += 1


@dataclass
class Comparison:
    subject: Subject
    adapter: str
    rows: list[Row]
    rounds: int
    runs: int
    timeout: float
    reuse: bool = False

    def run(self) -> None:
        self.progress = Progress(1 + len(self.rows) * (2 + self.rounds))
        self._prepare()
        for row in self.rows:
            self._ask(row)
        for number in range(1, self.rounds + 1):
            # every other round goes backwards: no row is always the one after the slowest
            for row in self._alive()[:: 1 if number % 2 else -1]:
                what = f"round {number} of {self.rounds}: {row.label}"
                row.rounds.append(self._child(what, measure, row.key, self.adapter, self.runs))

    def _prepare(self) -> None:
        made = self.subject.folder / "subject.json"
        wanted = json.dumps({**asdict(self.subject), "folder": ""})
        self.reuse = self.reuse and made.exists()
        if self.reuse:
            if made.read_text() != wanted:
                raise PocketSDError("made at other sizes", where=self.subject.folder)
            self.progress.step("weights, inputs and answer from before")
            return
        prepared = self._child("weights, inputs, torch's own answer", prepare)
        if prepared.died:
            raise PocketSDError(f"torch: {prepared.died}")
        made.write_text(wanted)

    def _ask(self, row: Row) -> None:
        missing = [name for name in PEERS[row.key].needs if find_spec(name) is None]
        if missing:
            row.facts = Outcome(died=f"is not installed ({', '.join(missing)})")
            self.progress.skip(2 + self.rounds)
            return
        if self.reuse and (self.subject.folder / row.key / CONVERTED).exists():
            self.progress.step(f"converted before: {row.label}")
        else:
            row.facts = self._child(f"converting for {row.label}", convert, row.key)
        if row.facts.died:
            self.progress.skip(1 + self.rounds)
            return
        row.facts = self._child(f"first run: {row.label}", ask, row.key, self.adapter)
        if row.facts.died:
            self.progress.skip(self.rounds)

    def _alive(self) -> list[Row]:
        return [row for row in self.rows if row.facts.value]

    def _child(self, what: str, function: Any, *arguments: Any) -> Outcome:
        self.progress.step(what)
        outcome = in_child(function, self.subject, *arguments, timeout=self.timeout)
        if outcome.died:
            self.progress.say(f"  it failed: {outcome.died}")
        return outcome


# --- The report ---------------------------------------------------------------------------------


def ratios(theirs: Sequence[float | None], ours: Sequence[float | None]) -> list[float]:
    """Of times in the same round, where both have one."""
    return [a / b for a, b in zip(theirs, ours, strict=False) if a is not None and b is not None]


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median, and from where to where."""
    if not values:
        return "?"
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:{form}} ({least:{form}} to {most:{form}})"


HEAD = (
    "", "time, s", "to ours", "CPU time to ours", "kernels", "off the GPU", "dB", "peak MB",
    "adapter it names",
)  # fmt: skip


def table(rows: Sequence[Row], adapter: str) -> str:
    """A row for each that ran, and a line for each that did not."""
    ours = next(row for row in rows if row.key == OURS)
    lines = [HEAD, ("---", *["---:"] * (len(HEAD) - 2), "---")]
    lines += [_cells(row, ours, adapter) for row in rows if not row.failure]
    failures = [f"{row.label}: {row.failure}" for row in rows if row.failure]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *failures])


def _cells(row: Row, ours: Row, adapter: str) -> tuple[str, ...]:
    facts = row.facts.value
    elsewhere = "" if facts["adapter"] in adapter else " (another GPU, no ratio counts)"
    return (
        row.label,
        spread([t for t in row.timed() if t is not None], ".3f"),
        spread(ratios(row.timed(), ours.timed())),
        spread(ratios(row.timed("busy"), ours.timed("busy"))),
        facts["kernels"],
        facts["off_gpu"],
        f"{facts['psnr']:.1f}",
        f"{max(outcome.peak_bytes for outcome in row.rounds) / 1e6:.0f}",
        f"{facts['adapter'] or '?'}{elsewhere}",
    )


def heading(subject: Subject, adapter: str) -> str:
    width = subject.widths[0] if subject.piece == "block" else subject.widths
    return (
        f"GPU: {adapter}\n{subject.piece} of width {width}, latent {subject.latent}x"
        f"{subject.latent}, batch {subject.batch}, {subject.precision}, random weights\n"
    )


NOTES = """\
Ratios are of times in the same round: median, and from least to most.
CPU time: of all processors; on a GPU in software that is its work, whatever else the machine does.
dB: peak signal-to-noise ratio against PyTorch in fp32.
Peak: of the process while it runs; on a GPU with memory of its own it leaves that memory out.
Times are of this host and this adapter, and of no phone."""


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLES)
@click.option("--block", is_flag=True, help="A residual block and a transformer. [the default]")
@click.option("--component", type=click.Choice(["unet"]), help="A whole component instead.")
@click.option("--size", type=click.Choice(list(WIDTHS)), default="full", show_default=True)
@click.option("--latent", type=click.IntRange(8, 128), default=32, show_default=True)
@click.option("--batch", type=click.IntRange(1, 2), default=2, show_default=True)
@click.option("--precision", type=click.Choice(["fp16", "fp32"]), default="fp16", show_default=True)
@click.option("--adapter", help="Part of a GPU's name. [the likeliest GPU]")
@click.option("--peer", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Only these.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="In a round.")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds for any one step.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the models here.")
@click.option("--reuse", is_flag=True, help="Take the models that --folder has already.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all that was seen.")
def main(
    block: bool,
    component: str | None,
    size: str,
    latent: int,
    batch: int,
    precision: str,
    adapter: str | None,
    peers: tuple[str, ...],
    rounds: int,
    runs: int,
    timeout: float,
    folder: Path | None,
    reuse: bool,
    report: Path | None,
) -> None:
    """Compare our WebGPU plans with LiteRT's delegate, onnxruntime and ncnn on one GPU."""
    if block and component:
        raise PocketSDError("one of --block and --component")
    if latent % 8:
        raise PocketSDError(f"--latent {latent} is no multiple of 8, as a UNet halves three times")
    try:
        from runtime_py.webgpu.adapters import choose
    except ModuleNotFoundError as error:
        raise PocketSDError(str(error), mend="pip install 'pocketsd[convert-webgpu]'") from None
    chosen = str(choose(adapter))
    with working_folder(folder) as work:
        subject = Subject(work, component or "block", WIDTHS[size], latent, batch, precision)
        rows = [Row(key) for key in PEERS if not peers or key in (OURS, *peers)]
        click.echo(heading(subject, chosen))
        Comparison(subject, chosen, rows, rounds, runs, timeout, reuse).run()
    click.echo(f"{table(rows, chosen)}\n\n{NOTES}\n{', '.join(_versions())}")
    if report:
        everything = {"adapter": chosen, "subject": {**asdict(subject), "folder": str(work)}}
        everything["rows"] = [{"label": row.label, **asdict(row)} for row in rows]
        report.write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main.main(standalone_mode=False)
    except (PocketSDError, click.ClickException) as failed:
        words = failed.format_message() if isinstance(failed, click.ClickException) else failed
        click.echo(f"webgpu_peers: {words}", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
