"""pocketsd deploy"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from runtime_py.cli.device_options import adb_option, device_option, open_adb

if TYPE_CHECKING:
    from runtime_py.devices.protocol import Device
    from runtime_py.package import Package

EPILOG = """\b
Examples:
  pocketsd deploy sd15.litert
  pocketsd deploy sd15.litert --device R3CW70ABCDE --wait 60
  pocketsd deploy --list
  pocketsd deploy --remove sd15.litert --prune
"""


@click.command(epilog=EPILOG)
@click.argument("package", type=click.Path(path_type=Path), required=False)
@device_option
@adb_option
@click.option("--name", help="What it is called on the device. [the package's]")
@click.option(
    "--wait",
    type=click.FloatRange(0, 3600),
    default=30,
    show_default=True,
    help="Seconds to wait for a device that was lost on the way.",
)
@click.option("--list", "listing", is_flag=True, help="Say which packages are on the device.")
@click.option("--remove", metavar="NAME", help="Take a package off the device.")
@click.option("--prune", "pruning", is_flag=True, help="Free what no package uses.")
def command(
    package: Path | None,
    device_id: str | None,
    place: tuple[str, int] | None,
    name: str | None,
    wait: float,
    listing: bool,
    remove: str | None,
    pruning: bool,
) -> None:
    """Bring a package to a phone; only files that it does not have yet travel."""
    from runtime_py import deploy
    from runtime_py.cli.opening import open_checked

    if not (package or listing or remove or pruning):
        raise click.UsageError("nothing to do: a PACKAGE, --list, --remove or --prune")
    opened = open_checked(package) if package else None  # before a device is looked for
    device = open_adb(place).choose(device_id)
    if remove:
        deploy.remove(device, remove)
    if pruning:
        click.echo(f"{deploy.prune(device) / 1e6:.1f} MB freed")
    if opened:
        _bring(device, opened, name, wait)
    if listing:
        for record in deploy.deployed(device):
            click.echo(f"{record.name}  {record.target}  {record.bytes / 1e6:.1f} MB")


def _bring(device: Device, package: Package, name: str | None, wait: float) -> None:
    from runtime_py import deploy
    from runtime_py.cli.progress import bar

    size = sum(entry.bytes for entry in package.manifest.files.values())
    with bar(f"Deploying to {device.id}", size) as advance:
        done = deploy.deploy(device, package, name=name, progress=advance, patience=wait)
    for file in done.damaged:
        click.echo(f"{file} was damaged on the device and has been replaced", err=True)
    click.echo(
        f"{done.record.name}: {len(done.moved)} of {len(done.record.files)} files travelled,"
        f" {done.bytes / 1e6:.1f} of {done.record.bytes / 1e6:.1f} MB"
    )
