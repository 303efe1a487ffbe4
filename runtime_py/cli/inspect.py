"""pocketsd inspect"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from runtime_py.tensorflow_view import GpuView
    from runtime_py.tflite_file import TFLiteFile

EPILOG = """\b
Examples:
  pocketsd inspect model.safetensors
  pocketsd inspect style-lora.safetensors --json
  pocketsd inspect model.pkg
  pocketsd inspect unet.tflite
"""

SHOWN = 8  # refused ops, of which there can be hundreds


@click.command(epilog=EPILOG)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(path: Path, as_json: bool) -> None:
    """Say what a checkpoint, LoRA, embedding, package or .tflite file is."""
    from runtime_py.package import is_package
    from runtime_py.tflite_file import is_tflite

    if is_package(path):
        _package(path, as_json)
    elif is_tflite(path):
        _tflite(path, as_json)
    else:
        _source(path, as_json)


def _package(path: Path, as_json: bool) -> None:
    import msgspec

    from runtime_py.cli.opening import open_checked
    from runtime_py.tflite_file import NEEDED, SUFFIX, readable

    package = open_checked(path)
    manifest = package.manifest
    names = [name for component in manifest.components for name in component.files]
    files = [package.file(name) for name in names if name.endswith(SUFFIX)]
    if as_json:
        content = msgspec.to_builtins(manifest)
        if files and readable():
            content["tflite"] = _tflite_json(files)
        _echo_json(content)
        return
    picture = manifest.picture
    click.echo(f"package of {manifest.model} for {manifest.target}, {manifest.precision}")
    click.echo(f"  made by {manifest.created_by}, draws {picture.width}x{picture.height}")
    for component in manifest.components:
        size = sum(manifest.files[name].bytes for name in component.files)
        click.echo(f"  {component.name:<13} {size / 1e6:9.1f} MB  {', '.join(component.files)}")
    click.echo(f"  samplers      {', '.join(manifest.samplers)}")
    for source in manifest.sources:
        weight = "" if source.weight is None else f" x {source.weight:g}"
        click.echo(f"  {source.role:<13} {source.name}{weight} sha256 {source.sha256[:16]}...")
    for name, value in manifest.quality.items():
        click.echo(f"  quality       {name}: {value}")
    if files and readable():
        _tflite_text(files)
    elif files:
        click.echo(f"  {SUFFIX} files unread, {NEEDED}")


def _tflite(path: Path, as_json: bool) -> None:
    if as_json:
        _echo_json(_tflite_json([path])[0])
    else:
        _tflite_text([path])


def _tflite_json(paths: Sequence[Path]) -> list[dict[str, Any]]:
    import msgspec

    from runtime_py.tflite_file import read

    files = [(path.name, msgspec.to_builtins(read(path))) for path in paths]
    views, reason = _gpu_views(paths)
    if reason:
        return [{"file": name, **file, "gpu": None, "gpu_unknown": reason} for name, file in files]
    gpu = [{"compatible": v.compatible, "refused": v.refused, "by": v.by} for v in views]
    return [
        {"file": name, **file, "gpu": view} for (name, file), view in zip(files, gpu, strict=True)
    ]


def _tflite_text(paths: Sequence[Path]) -> None:
    from runtime_py.tflite_file import read

    files = [read(path) for path in paths]
    views, reason = _gpu_views(paths)
    for index, (path, file) in enumerate(zip(paths, files, strict=True)):
        click.echo(f"{path.name}: {_amount(file.bytes)}, {file.operation_count} ops")
        _row("inputs", [str(tensor) for tensor in file.inputs])
        _row("outputs", [str(tensor) for tensor in file.outputs])
        _row("weights", [f"{kind} {_amount(size)}" for kind, size in file.weights.items()])
        _row("ops", [f"{count} {name}" for name, count in file.operations.items()])
        if views:
            _gpu_text(file, views[index])
    if reason:
        click.echo(f"GPU compatibility: not checked, {reason}")


def _gpu_text(file: TFLiteFile, view: GpuView) -> None:
    count = file.operation_count
    taken = f"all {count}" if view.compatible else f"{count - len(view.refused)} of {count}"
    click.echo(f"  GPU compatibility: {taken} ops ({view.by}'s Analyzer)")
    for line in view.refused[:SHOWN]:
        click.echo(f"    refuses {line}")
    if more := len(view.refused[SHOWN:]):
        click.echo(f"    and {more} more")


def _gpu_views(paths: Sequence[Path]) -> tuple[list[GpuView], str]:
    """What the Analyzer says, or why there is none to ask: all else is worth showing without it."""
    from runtime_py.tensorflow_view import NoAnalyzerError, gpu_views

    try:
        return gpu_views(paths), ""
    except NoAnalyzerError as error:
        return [], str(error)


def _row(label: str, items: Sequence[str]) -> None:
    import textwrap

    # Lines break between items only.
    text = ", ".join(item.replace(" ", "\N{NO-BREAK SPACE}") for item in items)
    lines = textwrap.wrap(text, 84, break_long_words=False, break_on_hyphens=False)
    for index, line in enumerate(lines):
        click.echo(f"  {'' if index else label:<13} {line}".replace("\N{NO-BREAK SPACE}", " "))


def _amount(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _echo_json(content: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(content)).decode())


def _source(path: Path, as_json: bool) -> None:
    from runtime_py.cli.heavy import converter_module

    report = converter_module("checkpoints").inspect_file(path)
    if as_json:
        _echo_json(report)
    else:
        click.echo("\n".join(report.lines()))
