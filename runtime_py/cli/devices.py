"""pocketsd devices"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from runtime_py.cli.device_options import adb_option, open_adb

if TYPE_CHECKING:
    from runtime_py.devices.protocol import DeviceInfo

EPILOG = """\b
Examples:
  pocketsd devices
  pocketsd devices --json
  pocketsd devices --adb lab:5037
"""


@click.command(epilog=EPILOG)
@adb_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(place: tuple[str, int] | None, as_json: bool) -> None:
    """List the phones on the cable: what each is, what it can run, and what keeps it from use."""
    import msgspec

    from runtime_py.errors import PocketSDError

    adb = open_adb(place)
    rows: list[dict[str, Any]] = []
    for found in adb.found():
        try:
            info = adb.open(found).describe()
        except PocketSDError as error:
            rows.append({"id": found.id, "state": found.state, "error": str(error)})
            lines = [str(error)]
        else:
            rows.append({"state": found.state, **msgspec.to_builtins(info)})
            lines = _lines(info)
        if not as_json:
            click.echo("\n".join(lines))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows)).decode())
    elif not rows:
        click.echo("no device is connected")


def _lines(info: DeviceInfo) -> list[str]:
    from runtime_py.devices.protocol import THERMAL

    health = info.health
    memory = f"{info.memory / 1e9:.1f} GB memory" if info.memory else ""
    state = {
        "{:.1f} GB free": None if health.free is None else health.free / 1e9,
        "{:.1f} °C": health.temperature,
        "thermal status {}": None if health.thermal is None else THERMAL[health.thermal],
        "battery {} %": health.battery,
    }
    changing = [form.format(value) for form, value in state.items() if value is not None]
    if health.throttled:
        changing.append("the CPU is throttled")
    runs = [name for name, why in info.targets.items() if not why]
    not_runs = [f"{name} ({why})" for name, why in info.targets.items() if why]
    what = [info.soc, info.gpu, info.abi, info.system, info.browser, memory]
    return [
        f"{info.id}  {info.kind}  {info.model or 'unknown model'}",
        f"  {', '.join(filter(None, what))}",
        f"  {', '.join(changing)}",
        f"  runs {', '.join(runs) or 'nothing'}; not {', '.join(not_runs)}",
    ]
