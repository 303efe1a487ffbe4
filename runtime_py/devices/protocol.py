"""What the harness asks of a device, whatever kind it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from runtime_py.errors import PocketSDError

Kind = Literal["emulated", "phone", "host"]
Advance = Callable[[int], None]  # told the bytes that have just gone by
THERMAL = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")


@dataclass(frozen=True)
class Health:
    """What changes while a device works. None: it does not say."""

    temperature: float | None = None  # of the battery, in °C
    thermal: int | None = None  # an index into THERMAL
    throttled: bool | None = None  # the CPU's clock is capped
    battery: int | None = None  # percent
    free: int | None = None  # bytes where packages go


@dataclass(frozen=True)
class DeviceInfo:
    """What a device is. Empty or None: it does not say."""

    id: str
    kind: Kind
    model: str
    soc: str
    gpu: str
    abi: str
    system: str
    memory: int | None  # bytes
    browser: str
    health: Health
    targets: Mapping[str, str]  # why a target cannot run on it; empty: it can


@dataclass(frozen=True)
class Ran:
    out: str
    err: str
    code: int


class DeviceLostError(PocketSDError):
    """The connection is gone; the device may come back."""


class DeviceFullError(PocketSDError):
    """No space is left on the device."""


class Device(Protocol):
    id: str

    def describe(self) -> DeviceInfo: ...

    def health(self) -> Health: ...

    def run(self, *words: str, timeout: float = 60) -> Ran:
        """One program with its arguments; every word stays one word."""

    def push(self, local: Path, remote: str, advance: Advance | None = None) -> None: ...

    def pull(self, remote: str, local: Path, advance: Advance | None = None) -> None: ...

    def await_return(self, seconds: float) -> None:
        """After a DeviceLostError: until it is ready again, or DeviceLostError."""
