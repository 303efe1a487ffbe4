"""An emulated phone: a process that a real adb connects to over TCP.

    python -m tests.support.adb_device FOLDER SERIAL MODEL

Prints its port as a line of JSON, then obeys lines of JSON on its input (`Faults`, "reboot",
"tell") and answers each with what it has counted. It leaves when its input closes.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support import adb_services
from tests.support.adb_facts import phone_like
from tests.support.adb_shell import Phone

VERSION, PAYLOAD = 0x01000001, 1 << 20
FEATURES = "shell_v2,cmd,stat_v2,ls_v2"
HEAD = struct.Struct("<4s5I")  # command, two arguments, length, checksum, magic
TOKEN, PUBLIC_KEY = 1, 3


@dataclass(frozen=True)
class Faults:
    unplug_after: int | None = None  # bytes that are still pushed before the cable is pulled
    full_after: int | None = None  # bytes that are still stored, whatever df says
    plugged: bool = True  # False: nobody answers at the port
    authorized: bool = True
    answering: bool = True  # False: connections are taken and nothing is said, "offline"
    capacity: int | None = None  # of /data, for df too


class CablePulledError(ConnectionError):
    """The cable is out."""


class Emulator:
    def __init__(self, phone: Phone) -> None:
        self.phone, self.faults, self.pushed, self.stored = phone, Faults(), 0, 0
        self.sessions: list[Session] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def obey(self, faults: Faults) -> None:
        """Faults count from now on."""
        before, self.faults, self.pushed = self.faults, faults, 0
        if faults.capacity:
            self.phone.capacity = faults.capacity
        if not faults.plugged:
            self.unplug()
        if faults.authorized and not before.authorized:
            for session in list(self.sessions):
                session.welcome()

    def unplug(self) -> None:
        self.faults = replace(self.faults, plugged=False)
        self.hang_up()

    def hang_up(self) -> None:
        for session in list(self.sessions):
            session.close()

    def begin(self) -> None:
        """A file's push."""
        self.stored = self.phone.used()

    def take(self, count: int) -> None:
        """One piece of it."""
        faults = self.faults
        if faults.unplug_after is not None and self.pushed + count > faults.unplug_after:
            self.unplug()
            raise CablePulledError
        if (faults.full_after is not None and self.pushed + count > faults.full_after) or (
            self.stored + count > self.phone.capacity
        ):
            raise OSError(28, "No space left on device")
        self.pushed += count
        self.stored += count

    def _accept(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            if not self.faults.plugged:
                connection.close()
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = Session(self, connection)
            self.sessions.append(session)
            threading.Thread(target=session.serve, daemon=True).start()


class Session:
    """One adb server, connected."""

    def __init__(self, emulator: Emulator, connection: socket.socket) -> None:
        self.emulator, self.connection = emulator, connection
        self.streams: dict[int, Stream] = {}  # by our id
        self.sending = threading.Lock()
        self.greeted, self.opened = False, 0

    def serve(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                head = self._exactly(HEAD.size)
                command, first, second, length, _, _ = HEAD.unpack(head)
                self._handle(command, first, second, self._exactly(length))
        self.close()

    def close(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        for stream in list(self.streams.values()):
            stream.end()
        with suppress(ValueError):
            self.emulator.sessions.remove(self)

    def send(self, command: bytes, first: int, second: int, data: bytes = b"") -> None:
        magic = struct.unpack("<I", command)[0] ^ 0xFFFFFFFF
        checksum = sum(data) & 0xFFFFFFFF if command in (b"CNXN", b"AUTH") else 0
        head = HEAD.pack(command, first, second, len(data), checksum, magic)
        with self.sending:
            self.connection.sendall(head + data)

    def welcome(self) -> None:
        if not self.greeted:
            self.greeted = True
            known = self.emulator.phone.properties
            banner = "".join(
                f"{key}={known[key]};"
                for key in ("ro.product.name", "ro.product.model", "ro.product.device")
            )
            self.send(b"CNXN", VERSION, PAYLOAD, f"device::{banner}features={FEATURES}".encode())

    def _handle(self, command: bytes, first: int, second: int, data: bytes) -> None:
        faults = self.emulator.faults
        if not faults.answering:
            return
        if command == b"CNXN" and faults.authorized:
            self.welcome()
        elif command == b"CNXN" or (command == b"AUTH" and first != PUBLIC_KEY):
            self.send(b"AUTH", TOKEN, 0, secrets.token_bytes(20))
        elif command == b"OPEN":
            self._open(first, data.rstrip(b"\0").decode())
        elif command in (b"OKAY", b"WRTE", b"CLSE"):
            stream = self.streams.get(second)
            if stream:
                stream.handle(command, data)

    def _open(self, theirs: int, service: str) -> None:
        act = self._service(service)
        if act is None:
            self.send(b"CLSE", 0, theirs)
            return
        ours = self.opened = self.opened + 1  # never used again: late packets must not meet it
        stream = self.streams[ours] = Stream(self, ours, theirs)
        self.send(b"OKAY", ours, theirs)
        threading.Thread(target=stream.serve, args=(act,), daemon=True).start()

    def _service(self, service: str) -> Callable[[Stream], None] | None:
        name, _, rest = service.partition(":")
        name, _, options = name.partition(",")
        emulator, phone = self.emulator, self.emulator.phone
        if name == "shell" and "v2" in options.split(","):
            return lambda stream: adb_services.shell_v2(stream, phone, rest)
        if name in ("shell", "exec"):
            return lambda stream: adb_services.shell(stream, phone, rest)
        if name == "sync":
            return lambda stream: adb_services.sync(stream, phone, emulator)
        if name == "reboot":
            return lambda stream: emulator.hang_up()
        return None

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.connection.recv(min(count, PAYLOAD))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


class Stream:
    """One service's two ways. A packet is under way in each direction until its OKAY comes."""

    def __init__(self, session: Session, ours: int, theirs: int) -> None:
        self.session, self.ours, self.theirs = session, ours, theirs
        self.changed = threading.Condition()
        self.arrived, self.may_write, self.ended = bytearray(), True, False

    def serve(self, act: Callable[[Stream], None]) -> None:
        with suppress(OSError, EOFError):
            act(self)
        with suppress(OSError):
            self.session.send(b"CLSE", self.ours, self.theirs)
        self.session.streams.pop(self.ours, None)

    def handle(self, command: bytes, data: bytes) -> None:
        with self.changed:
            if command == b"WRTE":
                self.arrived += data
            elif command == b"OKAY":
                self.may_write = True
            else:
                self.ended = True
            self.changed.notify_all()

    def end(self) -> None:
        self.handle(b"CLSE", b"")

    def read(self, count: int) -> bytes:
        """The OKAY goes out when all that had arrived is consumed, and not before."""
        while True:
            with self.changed:
                if len(self.arrived) < count and not self.arrived:
                    self.changed.wait_for(lambda: self.arrived or self.ended)
                if len(self.arrived) >= count:
                    data = bytes(self.arrived[:count])
                    del self.arrived[:count]
                    drained = bool(count) and not self.arrived
                    break
                if self.ended:
                    raise EOFError
                length = len(self.arrived)
            # A value goes across packets: ask for the next one.
            self.session.send(b"OKAY", self.ours, self.theirs)
            with self.changed:
                self.changed.wait_for(lambda: len(self.arrived) > length or self.ended)  # noqa: B023
        if drained:
            self.session.send(b"OKAY", self.ours, self.theirs)
        return data

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), PAYLOAD):
            with self.changed:
                self.changed.wait_for(lambda: self.may_write or self.ended)
                if self.ended:
                    raise EOFError
                self.may_write = False
            self.session.send(b"WRTE", self.ours, self.theirs, data[start : start + PAYLOAD])


def main(folder: str, serial: str, model: str) -> None:
    emulator = Emulator(phone_like(Path(folder), serial, model))
    print(json.dumps({"port": emulator.listener.getsockname()[1]}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if order == "reboot":
            emulator.hang_up()
        elif order != "tell":
            emulator.obey(Faults(**order))
        told = {"pushed": emulator.pushed, "diary": emulator.phone.diary}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
