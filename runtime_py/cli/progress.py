"""One progress bar with an estimate of the time left, for everything that takes a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

FINE = 100  # parts of a stage that a bar can tell apart


@contextmanager
def bar(label: str, length: int) -> Iterator[Callable[[int, str], None]]:
    """Yields `advance(by, what)`: a bar on a terminal, elsewhere a line a stage."""
    if sys.stderr.isatty():
        with click.progressbar(
            length=length,
            label=label,
            file=sys.stderr,
            show_eta=True,
            item_show_func=lambda what: what,
        ) as drawn:
            yield lambda by, what: drawn.update(by, what)
        return
    seen: list[str] = []

    def say(by: int, what: str) -> None:
        if what and what not in seen:
            seen.append(what)
            click.echo(f"{label}: {what}", err=True)

    yield say


@contextmanager
def stages(label: str, count: int) -> Iterator[Callable[..., None]]:
    """Yields `announce(stage, done=0.0)`, called as each stage begins and, if it likes, within."""
    with bar(label, count * FINE) as advance:
        begun: list[str] = []
        drawn = 0

        def announce(stage: str, done: float = 0.0) -> None:
            nonlocal drawn
            if not begun or begun[-1] != stage:
                begun.append(stage)
            position = int(FINE * (len(begun) - 1 + done))
            advance(position - drawn, stage)
            drawn = position

        yield announce
        advance(count * FINE - drawn, "")
