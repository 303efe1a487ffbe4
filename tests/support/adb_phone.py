"""A real adb server of the tests' own, and emulated phones at the end of its cable."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.support.adb_device import Faults

TOP = Path(__file__).parents[2]


class AdbServer:
    """On a port of its own and with a home of its own: a developer's server stays untouched."""

    def __init__(self, home: Path) -> None:
        import adbutils

        self.program, self.home = adbutils.adb_path(), home
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.environment = {
            "ANDROID_ADB_SERVER_PORT": str(self.port),
            "HOME": str(home),
            "ADB_MDNS_AUTO_CONNECT": "0",
            "ADB_LIBUSB": "0",  # seconds at each start, for phones that are not there
            "ADB_LOCAL_TRANSPORT_MAX_PORT": "0",  # no looking for emulators
        }
        self.call("start-server")

    def call(self, *words: str) -> str:
        environment = {**os.environ, **self.environment}
        environment.pop("ADB_SERVER_SOCKET", None)
        done = subprocess.run(
            [self.program, *words], capture_output=True, text=True, timeout=60, env=environment
        )
        return done.stdout + done.stderr

    def kill(self) -> None:
        self.call("kill-server")


class EmulatedPhone:
    def __init__(self, adb: AdbServer, folder: Path, serial: str = "emu", model: str = "E1"):
        self.adb, self.folder = adb, folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.adb_device", str(folder), serial, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TOP,
        )
        self.port: int = self._answer()["port"]
        self.id = f"127.0.0.1:{self.port}"

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def _order(self, order: object) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def faults(self, **faults: Any) -> None:
        """These faults and no others; bytes are counted from now on."""
        self._order(asdict(Faults(**faults)))

    def reboot(self) -> None:
        self._order("reboot")

    @property
    def pushed(self) -> int:
        """Bytes of files that reached the phone since the last change of faults."""
        return int(self._order("tell")["pushed"])

    @property
    def diary(self) -> list[str]:
        diary: list[str] = self._order("tell")["diary"]
        return diary

    def plug_in(self, state: str = "device") -> EmulatedPhone:
        """(Re)connect, and wait until adb sees it in this state."""
        self.adb.call("disconnect", self.id)
        self.adb.call("connect", self.id)
        for _ in range(200):
            if self.state() == state:
                return self
            time.sleep(0.05)
        raise AssertionError(f"adb says {self.state()!r} instead of {state!r}")

    def state(self) -> str:
        for line in self.adb.call("devices").splitlines():
            serial, _, state = line.partition("\t")
            if serial == self.id:
                return state
        return "absent"

    def file(self, name: str) -> Path:
        """Where the phone's file is on this host."""
        return self.folder / name.lstrip("/")

    def close(self) -> None:
        self.adb.call("disconnect", self.id)
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)
