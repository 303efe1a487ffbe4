"""What the emulated phone offers on a stream: the sync protocol and shells."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Protocol

from tests.support.adb_shell import Phone, Result

SLICE = 1 << 16
STAT = struct.Struct("<IQQIIIIQqqq")  # error, device, inode, mode, links, uid, gid, size, times


class Stream(Protocol):
    def read(self, count: int) -> bytes: ...

    def write(self, data: bytes) -> None: ...


class Inlet(Protocol):
    """Counts what is pushed; raises OSError when the disk is full, and may pull the cable."""

    def begin(self) -> None: ...

    def take(self, count: int) -> None: ...


def shell(stream: Stream, phone: Phone, command: str) -> None:
    result = phone.run(command)
    stream.write(result.out + result.err)


def shell_v2(stream: Stream, phone: Phone, command: str) -> None:
    result: Result = phone.run(command)
    for kind, data in ((1, result.out), (2, result.err), (3, bytes([result.code & 255]))):
        for start in range(0, len(data), SLICE):
            piece = data[start : start + SLICE]
            stream.write(struct.pack("<BI", kind, len(piece)) + piece)


def sync(stream: Stream, phone: Phone, inlet: Inlet) -> None:
    while True:
        request, length = struct.unpack("<4sI", stream.read(8))
        if request == b"QUIT":
            return
        name = stream.read(length).decode()
        try:
            _serve(request, name, stream, phone, inlet)
        except OSError as error:
            reason = (error.strerror or str(error)).encode()
            stream.write(struct.pack("<4sI", b"FAIL", len(reason)) + reason)


def _serve(request: bytes, name: str, stream: Stream, phone: Phone, inlet: Inlet) -> None:
    if request == b"SEND":
        _send(stream, phone, inlet, name)
    elif request == b"RECV":
        _receive(stream, phone.path(name))
    elif request in (b"STA2", b"LST2"):
        stream.write(request + _stat(phone, name))
    elif request == b"STAT":
        stream.write(b"STAT" + _old_stat(phone, name))
    elif request in (b"LIST", b"LIS2"):
        _list(stream, phone, name, old=request == b"LIST")
    else:
        raise OSError(errno.EINVAL, f"unknown sync request {request!r}")


def _send(stream: Stream, phone: Phone, inlet: Inlet, name: str) -> None:
    """After a failure the data that still comes is read and dropped, as adbd does."""
    path, failure = phone.path(name.rpartition(",")[0]), None
    path.parent.mkdir(parents=True, exist_ok=True)
    inlet.begin()
    with path.open("wb") as file:
        while True:
            kind, count = struct.unpack("<4sI", stream.read(8))
            if kind == b"DONE":
                break
            data = stream.read(count)
            if failure is None:
                try:
                    inlet.take(count)
                    file.write(data)
                    file.flush()  # a pulled cable leaves what had come
                except OSError as error:
                    failure = error
    if failure:
        path.unlink()
        raise failure
    stream.write(struct.pack("<4sI", b"OKAY", 0))


def _receive(stream: Stream, path: Path) -> None:
    with path.open("rb") as file:
        while data := file.read(SLICE):
            stream.write(struct.pack("<4sI", b"DATA", len(data)) + data)
    stream.write(struct.pack("<4sI", b"DONE", 0))


def _stat(phone: Phone, name: str) -> bytes:
    try:
        s = os.lstat(phone.path(name))
    except OSError as error:
        return STAT.pack(error.errno or errno.EIO, *[0] * 10)
    times = (int(s.st_atime), int(s.st_mtime), int(s.st_ctime))
    return STAT.pack(0, s.st_dev, s.st_ino, s.st_mode, s.st_nlink, 2000, 2000, s.st_size, *times)


def _old_stat(phone: Phone, name: str) -> bytes:
    try:
        s = os.lstat(phone.path(name))
    except OSError:
        return bytes(12)
    return struct.pack("<III", s.st_mode, s.st_size & 0xFFFFFFFF, int(s.st_mtime))


def _list(stream: Stream, phone: Phone, name: str, *, old: bool) -> None:
    folder = phone.path(name)
    entry, stat = (b"DENT", _old_stat) if old else (b"DNT2", _stat)
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        called = path.name.encode()
        row = stat(phone, f"{name}/{path.name}")
        stream.write(entry + row + struct.pack("<I", len(called)) + called)
    stream.write(b"DONE" + bytes((12 if old else STAT.size) + 4))
