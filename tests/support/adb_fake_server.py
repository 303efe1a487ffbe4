"""An adb server that lists what it is told: states that no emulated phone can have."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def fake_server(listing: str) -> Iterator[tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError, ValueError):
                    asked = connection.recv(int(connection.recv(4), 16))
                    assert asked == b"host:devices-l"
                    content = listing.encode()
                    connection.sendall(b"OKAY" + b"%04x" % len(content) + content)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
