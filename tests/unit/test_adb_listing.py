"""Which phones adb sees, in states that only real cables and real people bring about."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_py.devices.listing import STATES, Found, adb
from runtime_py.errors import PocketSDError
from tests.support.adb_fake_server import fake_server

pytest.importorskip("adbutils")

NO_PERMISSIONS = (
    "R3CW70ABCDE            no permissions (missing udev rules? user is in the plugdev group);"
    " see [http://developer.android.com/tools/device.html] usb:1-4 transport_id:1\n"
)


def test_lines_of_adb_become_devices() -> None:
    lines = (
        "R3CW70ABCDE            device usb:1-4 product:dm1q model:SM_S911B device:dm1q"
        f" transport_id:2\n127.0.0.1:5555         offline transport_id:3\n{NO_PERMISSIONS}\n"
    )
    with fake_server(lines) as place:
        assert adb(*place).found() == [
            Found("R3CW70ABCDE", "device", "SM_S911B"),
            Found("127.0.0.1:5555", "offline", ""),
            Found("R3CW70ABCDE", "no permissions", ""),
        ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (NO_PERMISSIONS, "udev rules"),
        ("X unauthorized transport_id:1\n", "accept the question"),
        ("X offline\n", "does not answer"),
        ("X bootloader\n", "bootloader"),
        ("X \x1b[31mnew\n", "adb calls it"),
        ("", "switch USB debugging on"),
    ],
)
def test_what_keeps_a_phone_from_use_is_one_line(line: str, said: str) -> None:
    with fake_server(line) as place, pytest.raises(PocketSDError, match=said) as caught:
        adb(*place).choose(None)
    assert str(caught.value).isprintable()


def test_a_phone_that_is_not_ready_does_not_compete() -> None:
    with fake_server("A unauthorized\nB device model:M\nC offline\n") as place:
        assert adb(*place).choose(None).id == "B"
        with pytest.raises(PocketSDError, match="A: cannot be used"):
            adb(*place).choose("A")


@given(st.sampled_from(sorted(STATES)))
def test_every_state_has_a_remedy(state: str) -> None:
    assert Found("X", state, "").refusal().mend


@settings(max_examples=20)
@given(st.text(max_size=200))
def test_any_listing_is_read(listing: str) -> None:
    with fake_server(listing) as place:
        for found in adb(*place).found():
            assert found.id and found.state.isprintable() and found.model.isprintable()


def test_a_server_elsewhere_is_not_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PocketSDError, match="no adb server answers there"):
        adb("host.invalid", 5037)
    monkeypatch.setitem(os.environ, "ANDROID_ADB_SERVER_PORT", "many")
    with pytest.raises(PocketSDError, match="'many' is no port"):
        adb()


def test_something_else_at_the_port_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()

        def hang_up() -> None:
            while True:
                connection, _ = silent.accept()
                connection.sendall(b"HTTP/1.1 400\r\n\r\n")
                connection.close()

        import threading

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(PocketSDError, match="adb's server does not answer"):
            adb(host, port).found()
