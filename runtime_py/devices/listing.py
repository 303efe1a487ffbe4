"""Which devices there are, what keeps one from being used, and which one is meant."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtime_py.devices.android_facts import printable
from runtime_py.errors import PocketSDError

if TYPE_CHECKING:
    from adbutils import AdbClient

    from runtime_py.devices.android import AndroidDevice

PORT = 5037
# adb's word for a state: what is wrong, and what to do about it.
STATES = {
    "unauthorized": (
        "it has not allowed this host to debug it",
        "unlock the phone and accept the question it shows",
    ),
    "authorizing": ("it is still being asked for permission", "unlock the phone, then try again"),
    "offline": ("it does not answer", "plug it in again, or restart it"),
    "connecting": ("it is still connecting", "try again in a moment"),
    "no permissions": (
        "this user may not open its USB port",
        "install the udev rules for Android (android-sdk-platform-tools-common), then plug it in"
        " again",
    ),
    "bootloader": ("it is in its bootloader", "restart it"),
    "recovery": ("it is in recovery mode", "restart it"),
    "sideload": ("it is in sideload mode", "restart it"),
}


@dataclass(frozen=True)
class Found:
    id: str
    state: str  # adb's word
    model: str

    @property
    def ready(self) -> bool:
        return self.state == "device"

    def refusal(self) -> PocketSDError:
        what, mend = STATES.get(self.state, (f"adb calls it {self.state!r}", "plug it in again"))
        return PocketSDError(f"cannot be used: {what}", where=self.id, mend=mend)


@dataclass(frozen=True)
class Adb:
    """One adb server and the devices that it sees."""

    client: AdbClient

    def found(self) -> list[Found]:
        errors: Any = _adbutils().AdbError
        try:
            with self.client.make_connection(timeout=10) as link:
                link.send_command("host:devices-l")
                link.check_okay()
                lines = link.read_string_block().splitlines()
        except (errors, OSError, ValueError) as error:
            raise PocketSDError(f"adb's server does not answer, {error}") from None
        return [found for line in lines if (found := _read(line))]

    def open(self, found: Found) -> AndroidDevice:
        from runtime_py.devices.android import AndroidDevice

        if not found.ready:
            raise found.refusal()
        return AndroidDevice(self.client, found.id)

    def choose(self, wanted: str | None) -> AndroidDevice:
        """The device of this id, or the only one that is ready."""
        everything = self.found()
        ready = [f for f in everything if f.ready]
        if wanted is not None:
            for found in everything:
                if found.id == wanted:
                    return self.open(found)
            there = ", ".join(f.id for f in everything) or "none at all"
            raise PocketSDError(f"no device {printable(wanted)!r} (there is: {there})")
        if len(ready) > 1:
            several = ", ".join(f"{f.id} ({f.model or 'unknown'})" for f in ready)
            raise PocketSDError(f"several devices: {several}", mend="--device ID says which")
        if ready or everything:
            return self.open((ready or everything)[0])
        raise PocketSDError(
            "no device is connected",
            mend="switch USB debugging on in the phone's developer options and plug it in, or"
            " `adb connect HOST:PORT`",
        )


def adb(host: str | None = None, port: int | None = None) -> Adb:
    """The server at this place, started if it is to be on this host and is not there yet."""
    module = _adbutils()
    host = host or os.environ.get("ANDROID_ADB_SERVER_HOST", "127.0.0.1")
    named = os.environ.get("ANDROID_ADB_SERVER_PORT", str(PORT))
    if port is None and not (named.isdecimal() and 0 < int(named) < 65536):
        raise PocketSDError(f"{printable(named)!r} is no port", where="ANDROID_ADB_SERVER_PORT")
    return Adb(_client(module, host, port or int(named)))


def _client(module: Any, host: str, port: int) -> AdbClient:
    """adbutils would start a missing server itself, but at the environment's port."""

    class Client(module.AdbClient):  # type: ignore[misc]
        def make_connection(self, timeout: float | None = None) -> Any:
            if not _listens(host, port):
                _start(module, host, port)
            return super().make_connection(timeout)

    client: AdbClient = Client(host=host, port=port)
    client.make_connection().close()
    return client


def _start(module: Any, host: str, port: int) -> None:
    where = f"{host}:{port}"
    if host not in ("127.0.0.1", "localhost", "::1"):
        mend = "run `adb -a nodaemon server start` on that host"
        raise PocketSDError("no adb server answers there", where=where, mend=mend)
    try:
        command = [module.adb_path(), "-P", str(port), "start-server"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        said = done.stderr if done.returncode else ""
    except (module.AdbError, OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    if not _listens(host, port):
        raise PocketSDError(f"adb's server does not start, {printable(said)}", where=where)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=3):
            return True
    except OSError:
        return False


def _read(line: str) -> Found | None:
    """A line of `adb devices -l`: the serial, blanks, the state, then key:value pairs."""
    words = line.split()
    if len(words) < 2:
        return None
    model = next((w.removeprefix("model:") for w in words[2:] if w.startswith("model:")), "")
    state = "no permissions" if words[1:3] == ["no", "permissions"] else words[1]
    return Found(words[0], printable(state), printable(model))


def _adbutils() -> Any:
    try:
        import adbutils
    except ModuleNotFoundError as error:
        raise PocketSDError(
            f"this needs {error.name}, which is not installed",
            mend="pip install 'pocketsd[android]'",
        ) from None
    return adbutils
