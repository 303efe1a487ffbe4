"""The one exception people see: a line that says what is wrong, where, and how to mend it."""

from __future__ import annotations


class PocketSDError(Exception):
    """Bad input or a failed check. The CLI prints it as one line and exits with `exit_code`."""

    exit_code = 2

    def __init__(self, what: str, *, where: object = None, mend: str | None = None) -> None:
        self.what, self.where, self.mend = what, where, mend
        line = what if where is None else f"{where}: {what}"
        super().__init__(" ".join((line if mend is None else f"{line} ({mend})").split()))


class GateError(PocketSDError):
    """The input was fine but a quality or timing gate was not met."""

    exit_code = 1
