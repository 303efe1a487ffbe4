"""Options of every verb that works on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from runtime_py.devices.listing import Adb


class Place(click.ParamType[tuple[str, int]]):
    """HOST:PORT"""

    name = "HOST:PORT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            self.fail(f"{value!r} is not HOST:PORT", param, ctx)
        return host, int(port)


def adb_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--adb",
        "place",
        type=Place(),
        help="Where adb's server is. [this host's, ANDROID_ADB_SERVER_PORT or 5037]",
    )(command)


def device_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--device", "device_id", metavar="ID", help="Which, if there are several.")(
        command
    )


def open_adb(place: tuple[str, int] | None) -> Adb:
    from runtime_py.devices.listing import adb

    return adb(*place) if place else adb()
