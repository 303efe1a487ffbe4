"""pocketsd inspect"""

from __future__ import annotations

from pathlib import Path

import click

EPILOG = """\b
Examples:
  pocketsd inspect model.safetensors
  pocketsd inspect style-lora.safetensors --json
  pocketsd inspect model.pkg
"""


@click.command(epilog=EPILOG)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(path: Path, as_json: bool) -> None:
    """Say what a checkpoint, LoRA, embedding or package is."""
    from runtime_py.package import is_package

    if is_package(path):
        _package(path, as_json)
    else:
        _source(path, as_json)


def _package(path: Path, as_json: bool) -> None:
    import msgspec

    from runtime_py.cli.opening import open_checked

    manifest = open_checked(path).manifest
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(manifest)).decode())
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


def _source(path: Path, as_json: bool) -> None:
    import msgspec

    from runtime_py.cli.heavy import converter_module

    report = converter_module("checkpoints").inspect_file(path)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        click.echo("\n".join(report.lines()))
