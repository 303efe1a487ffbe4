"""Deployment's commands, as a device gets them."""

from __future__ import annotations

from pathlib import Path

from runtime_py import deploy
from runtime_py.deploy import STORE
from runtime_py.devices.protocol import Device, DeviceInfo, Health, Ran

ADB_LIMIT = 0xFFFF  # adb gives a command's length in four hexadecimal digits


class ManyFiles:
    """A device whose store holds many files that no package uses."""

    id = "many"

    def __init__(self, count: int) -> None:
        self.names = [f"{number:064x}" for number in range(count)]
        self.commands: list[tuple[str, ...]] = []

    def describe(self) -> DeviceInfo:
        raise NotImplementedError

    def health(self) -> Health:
        return Health()

    def run(self, *words: str, timeout: float = 60) -> Ran:
        self.commands.append(words)
        lines = "".join(f"7 {name}\n" for name in self.names) if words[0] == "sh" else ""
        return Ran(lines, "", 0)

    def push(self, local: Path, remote: str, advance: object = None) -> None:
        raise NotImplementedError

    def pull(self, remote: str, local: Path, advance: object = None) -> None:
        raise NotImplementedError

    def await_return(self, seconds: float) -> None:
        raise NotImplementedError


def test_many_files_are_named_in_several_commands() -> None:
    many = ManyFiles(2000)
    device: Device = many
    assert deploy.prune(device) == 7 * 2000
    assert max(len(" ".join(words)) for words in many.commands) < ADB_LIMIT
    removed = [word for words in many.commands for word in words if word.startswith(f"{STORE}/")]
    assert sorted(removed) == [f"{STORE}/{name}" for name in many.names]
