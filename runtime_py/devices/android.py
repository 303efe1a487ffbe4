"""A phone on the cable: adbutils' client for what it does well, files by our own few lines.

adbutils' own push drops the phone's reason for a failure and cannot say how far it is.
"""

from __future__ import annotations

import shlex
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from runtime_py.devices import android_facts as facts
from runtime_py.devices.protocol import (
    Advance,
    DeviceFullError,
    DeviceInfo,
    DeviceLostError,
    Health,
    Ran,
)
from runtime_py.errors import PocketSDError
from runtime_py.files import atomic_file

if TYPE_CHECKING:
    from adbutils import AdbClient, AdbConnection

SLICE = 1 << 16  # the most that the sync protocol allows
SILENCE = 60.0  # seconds without a byte after which a transfer is given up
FILE_MODE = 0o100644
FULL = "No space left"
# What adb says when a device or its server is not there (any more).
GONE = ("not found", "offline", "unauthorized", "closed", "no devices", "connect", "timeout")


class AndroidDevice:
    def __init__(self, client: AdbClient, serial: str) -> None:
        self.id = serial
        self._client = client
        self._adb = client.device(serial)

    def describe(self) -> DeviceInfo:
        return facts.identity(self.id, self._ask({**facts.IDENTITY, **facts.HEALTH}))

    def health(self) -> Health:
        return facts.health(self._ask(facts.HEALTH))

    def run(self, *words: str, timeout: float = 60) -> Ran:
        return self._shell(shlex.join(words), timeout)

    def _ask(self, parts: dict[str, str]) -> facts.Answers:
        script, mark = facts.script(parts)
        return facts.answers(self._shell(script, 60).out, mark)

    def _shell(self, script: str, timeout: float) -> Ran:
        with self._failures():
            done = self._adb.shell2(script, timeout=timeout, v2=True)
        # Without shell_v2 (before Android 7) both streams come as one.
        return Ran(
            done.stdout or ("" if done.stderr else done.output), done.stderr, done.returncode
        )

    def push(self, local: Path, remote: str, advance: Advance | None = None) -> None:
        with local.open("rb") as file, self._sync(b"SEND", f"{remote},{FILE_MODE}") as link:
            try:
                while data := file.read(SLICE):
                    link.conn.sendall(struct.pack("<4sI", b"DATA", len(data)) + data)
                    if advance:
                        advance(len(data))
                link.conn.sendall(struct.pack("<4sI", b"DONE", int(local.stat().st_mtime)))
            except OSError:
                # A phone that refuses a file may hang up before all of it was sent.
                self._answer(link, remote)
                raise
            if self._answer(link, remote)[0] != b"OKAY":
                raise DeviceLostError("adb broke off the transfer", where=self.id)

    def pull(self, remote: str, local: Path, advance: Advance | None = None) -> None:
        with (
            atomic_file(local) as whole,
            whole.open("wb") as file,
            self._sync(b"RECV", remote) as link,
        ):
            while (answer := self._answer(link, remote))[0] == b"DATA":
                file.write(link.read_exact(answer[1]))
                if advance:
                    advance(answer[1])

    def await_return(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            try:
                if ":" in self.id:  # adb forgets network devices when its server dies
                    self._client.connect(self.id, timeout=5)
                if self._adb.get_state() == "device":
                    return
            except (_client_error(), OSError, EOFError):
                pass
            if time.monotonic() > end:
                raise DeviceLostError(
                    "the device is not connected", where=self.id, mend="plug it in and try again"
                )
            time.sleep(0.2)

    @contextmanager
    def _sync(self, request: bytes, path: str) -> Iterator[AdbConnection]:
        named = path.encode()
        with self._failures():
            link = self._adb.open_transport(timeout=SILENCE)
            try:
                link.send_command("sync:")
                link.check_okay()
                link.conn.sendall(struct.pack("<4sI", request, len(named)) + named)
                yield link
            finally:
                link.close()

    def _answer(self, link: AdbConnection, path: str) -> tuple[bytes, int]:
        """The head of the phone's next answer; its refusals are raised."""
        kind, count = struct.unpack("<4sI", link.read_exact(8))
        if kind == b"FAIL":
            reason = facts.printable(link.read_exact(count).decode(errors="replace"))
            if FULL in reason:
                raise DeviceFullError(
                    "no space left on the device", where=self.id, mend="`pocketsd deploy --prune`"
                )
            raise PocketSDError(f"{path}: {reason}", where=self.id)
        if kind == b"DATA" and count > SLICE:
            raise PocketSDError("the device breaks adb's protocol", where=self.id)
        return kind, count

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError, TimeoutError) as error:
            raise DeviceLostError(
                "the connection was lost", where=self.id, mend="check the cable"
            ) from error
        except _client_error() as error:
            said = facts.printable(str(error))
            lost = any(word in said for word in GONE)
            raise (DeviceLostError if lost else PocketSDError)(
                f"adb: {said}", where=self.id, mend="check the cable" if lost else None
            ) from error


def _client_error() -> type[Exception]:
    from adbutils import AdbError

    error: type[Exception] = AdbError
    return error
