"""Conversions of one SD 1.x UNet to LiteRT side by side; only reports, judges nothing.

Every conversion, every compilation for the GPU and every timed round happens in a process of its
own: memory peaks stay apart, and a crash costs one cell of the table.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from tools.bench.child import Outcome, in_child
from tools.bench.folder import working_folder
from tools.bench.litert_conversions import (
    CONVERSIONS,
    OURS,
    WIDTHS,
    Link,
    Setting,
    convert,
    prepare,
)
from tools.bench.litert_runs import run_on_cpu, run_on_gpu

PACKAGES = ("litert-torch", "ai-edge-litert", "diffusers", "torch")
#: Above this latent size the GPU only compiles: a step on a software adapter would take minutes.
GPU_RUNS_UP_TO = 16
EXAMPLES = """
\b
Examples:
  python -m tools.bench.litert_compare                      small widths, a minute or two
  python -m tools.bench.litert_compare --size full --latent 16
  python -m tools.bench.litert_compare --size full --folder /tmp/compare --json full.json

Real widths at a latent of 64 need about 12 GB of memory and 15 GB of disk. The GPU is whichever
Vulkan shows; on a machine without one, tools/software_gpu.py prints how to get one of software.
"""


@dataclass
class Row:
    key: str
    conversion: Outcome = field(default_factory=Outcome)
    gpu: Outcome = field(default_factory=Outcome)
    gpu_fp16: Outcome = field(default_factory=Outcome)
    rounds: list[Outcome] = field(default_factory=list)

    @property
    def links(self) -> list[Link]:
        return [Link(**link) for link in self.conversion.value["links"]]

    @property
    def timed(self) -> list[float | None]:
        """A round's median, in seconds."""
        return [statistics.median(r.value["seconds"]) if r.value else None for r in self.rounds]


# --- The comparison, step by step ---------------------------------------------------------------


@dataclass
class Comparison:
    setting: Setting
    rows: list[Row]
    timeout: float
    begin: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        click.echo(f"[{time.monotonic() - self.begin:5.0f} s] {text}", err=True)

    def child(self, what: str, function: Callable[..., Any], *args: Any) -> Outcome:
        self.say(what)
        outcome = in_child(function, self.setting, *args, timeout=self.timeout)
        if outcome.died:
            self.say(f"  it {outcome.died}")
            if outcome.log:
                click.echo(outcome.log, err=True)
        return outcome

    def convert(self, reuse: bool) -> None:
        made = self.setting.folder / "setting.json"
        wanted = json.dumps({**asdict(self.setting), "folder": "", "threads": 0})
        reuse = reuse and made.exists()
        if reuse and made.read_text() != wanted:
            raise click.ClickException(f"{self.setting.folder} was made at other sizes")
        if not reuse:
            prepared = self.child("weights, inputs, torch's own answer", prepare)
            if prepared.died:
                raise click.ClickException("nothing to convert")
            made.write_text(wanted)
        for row in self.rows:
            record = self.setting.folder / f"{row.key}.json"
            if reuse and record.exists():
                self.say(f"converted before: {label(row)}")
                row.conversion = Outcome(**json.loads(record.read_text()))
            else:
                row.conversion = self.child(f"converting: {label(row)}", convert, row.key)
                if row.conversion.value:
                    record.write_text(json.dumps(asdict(row.conversion)))

    def time(self, rounds: int, runs: int) -> None:
        """Every other round goes backwards, so that no row is always the one after a pause."""
        for index in range(rounds):
            for row in self._converted()[:: -1 if index % 2 else 1]:
                what = f"round {index + 1} of {rounds} on the CPU: {label(row)}"
                row.rounds.append(self.child(what, run_on_cpu, row.links, runs))

    def ask_gpu(self, run: bool) -> None:
        for row in self._converted():
            what = f"{'running' if run else 'compiling'} on the GPU: {label(row)}"
            row.gpu = self.child(what, run_on_gpu, row.links, run)
            if row.gpu.value and row.gpu.value["off"]:
                what = f"the GPU with the CPU beside it: {label(row)}"
                beside = self.child(what, run_on_gpu, row.links, False, False, True)
                if beside.value:
                    row.gpu.value["partitions"] = beside.value["partitions"]
            elif row.gpu.value and run:
                what = f"running on the GPU in fp16: {label(row)}"
                row.gpu_fp16 = self.child(what, run_on_gpu, row.links, True, True)

    def _converted(self) -> list[Row]:
        return [row for row in self.rows if row.conversion.value]


def label(row: Row) -> str:
    return CONVERSIONS[row.key][0]


# --- The report ---------------------------------------------------------------------------------

COLUMNS: dict[str, Callable[[Row, Row | None], str]] = {
    "UNet": lambda row, ours: label(row),
    "ops": lambda row, ours: _operations(row),
    "off the GPU": lambda row, ours: _off(row),
    "GPU partitions": lambda row, ours: str(row.gpu.value["partitions"]) if row.gpu.value else "?",
    "GPU fp32, dB (step)": lambda row, ours: _on_gpu(row.gpu),
    "GPU fp16, dB (step)": lambda row, ours: _on_gpu(row.gpu_fp16),
    "file, MB": lambda row, ours: _megabytes((row.conversion.value or {}).get("bytes")),
    "converting, peak MB": lambda row, ours: _megabytes(row.conversion.peak_bytes),
    "CPU step, s (best)": lambda row, ours: _seconds(row),
    "to ours": lambda row, ours: _ratio(row, ours),
    "running, peak MB": lambda row, ours: _megabytes(
        max((r.peak_bytes for r in row.rounds), default=0)
    ),
    "CPU, dB": lambda row, ours: _decibels(
        next((r.value["psnr"] for r in row.rounds if r.value), None)
    ),
}


def table(rows: Sequence[Row]) -> str:
    ours = next((row for row in rows if row.key == OURS), None)
    lines = [list(COLUMNS), ["---", *["---:"] * (len(COLUMNS) - 1)]]
    lines += [[cell(row, ours) for cell in COLUMNS.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _operations(row: Row) -> str:
    if row.conversion.died:
        return f"the conversion {row.conversion.died}"
    main, unpacked = (row.conversion.value[key] for key in ("operations", "unpacked"))
    return str(main) if main == unpacked else f"{main} ({unpacked} with composites unpacked)"


def _off(row: Row) -> str:
    if row.gpu.died:
        return f"cannot be checked: the delegate {row.gpu.died}"
    if row.gpu.value is None:
        return "?"
    kinds = ", ".join(
        dict.fromkeys(reason.partition(":")[0] for reason in row.gpu.value["refused"])
    )
    return f"{row.gpu.value['off']} ({kinds})" if kinds else str(row.gpu.value["off"])


def _on_gpu(outcome: Outcome) -> str:
    value = outcome.value or {}
    if "seconds" not in value:
        return "fails" if "run" in value else "?"
    return f"{_decibels(value['psnr'])} ({value['seconds'][0]:.1f} s)"


def _seconds(row: Row) -> str:
    times = [t for t in row.timed if t is not None]
    best = min((t for r in row.rounds if r.value for t in r.value["seconds"]), default=0)
    return f"{statistics.median(times):.3f} ({best:.3f})" if times else "?"


def _ratio(row: Row, ours: Row | None) -> str:
    """Of times in the same round: what else the machine did then slowed both."""
    both = zip(row.timed, ours.timed if ours else [], strict=False)
    ratios = [a / b for a, b in both if a is not None and b is not None]
    return f"{statistics.median(ratios):.2f}" if ratios else "?"


def _megabytes(size: int | None) -> str:
    return f"{size / 1e6:.0f}" if size else "?"


def _decibels(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}"


def notes(setting: Setting, rows: Sequence[Row]) -> str:
    adapters = sorted({row.gpu.value["adapter"] for row in rows if row.gpu.value} - {""})
    lines = (
        f"Widths {', '.join(map(str, setting.widths))}, batch {setting.batch}, latent"
        f" {setting.latent}x{setting.latent}, fp32, random weights (the same for all), gain"
        f" {setting.gain:g}, {setting.threads} threads; GPU: {', '.join(adapters) or 'none'}.",
        "dB: peak signal-to-noise ratio against PyTorch. The example takes the sinusoid of the"
        " timestep as an input; the others compute it.",
        ", ".join(f"{name} {version(name)}" for name in PACKAGES),
    )
    return "\n".join(lines)


def as_json(setting: Setting, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "setting": {**asdict(setting), "folder": str(setting.folder)},
        "packages": {name: version(name) for name in PACKAGES},
        "rows": [{"label": label(row), **asdict(row)} for row in rows],
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLES)
@click.option("--size", type=click.Choice(list(WIDTHS)), default="tiny", show_default=True)
@click.option("--latent", type=click.IntRange(8), help="Side of the latent [tiny: 16, full: 64].")
@click.option("--batch", type=click.IntRange(1, 2), default=1, show_default=True)
@click.option("--only", multiple=True, type=click.Choice(list(CONVERSIONS)), help="These rows.")
@click.option("--largest", type=int, help="Cut ours into files of this many MB of weights.")
@click.option(
    "--gain",
    default=1.0,
    show_default=True,
    help="Of the first convolution. Trained models' activations reach hundreds, where squares pass"
    " fp16's range: 300 shows what becomes of them.",
)
@click.option("--rounds", default=3, show_default=True, help="Of timing, each row once a round.")
@click.option("--runs", default=3, show_default=True, help="Timed steps in a round.")
@click.option("--threads", default=2, show_default=True)
@click.option("--cpu/--no-cpu", default=True, show_default=True, help="Time on the CPU.")
@click.option("--gpu/--no-gpu", default=True, show_default=True, help="Ask the GPU delegate.")
@click.option("--timeout", default=1800.0, show_default=True, help="Seconds for any one step.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the files here.")
@click.option("--reuse", is_flag=True, help="Take the conversions that --folder has already.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write all that was seen.")
def main(
    size: str,
    latent: int | None,
    batch: int,
    only: tuple[str, ...],
    largest: int | None,
    gain: float,
    rounds: int,
    runs: int,
    threads: int,
    cpu: bool,
    gpu: bool,
    timeout: float,
    folder: Path | None,
    reuse: bool,
    report: Path | None,
) -> None:
    """Compare conversions of one SD 1.x UNet to LiteRT: ops, GPU coverage, memory, time."""
    latent = latent or {"tiny": 16, "full": 64}[size]
    with working_folder(folder) as work:
        limit = largest and largest * 1_000_000
        setting = Setting(work, WIDTHS[size], batch, latent, threads, limit, gain)
        rows = [Row(key) for key in CONVERSIONS if not only or key in only]
        comparison = Comparison(setting, rows, timeout)
        comparison.convert(reuse)
        if cpu:
            comparison.time(rounds, runs)
        if gpu:
            comparison.ask_gpu(run=latent <= GPU_RUNS_UP_TO)
        comparison.say("done")
    click.echo(f"{table(rows)}\n\n{notes(setting, rows)}")
    if report:
        report.write_text(json.dumps(as_json(setting, rows), indent=2) + "\n")


if __name__ == "__main__":
    main()
