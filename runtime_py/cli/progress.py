"""One progress bar with an estimate of the time left, for everything that takes a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


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
def stages(label: str, count: int) -> Iterator[Callable[[str], None]]:
    """Yields `announce(stage)`, called as each stage begins; the bar moves as each one ends."""
    with bar(label, count) as advance:
        begun: list[str] = []

        def announce(stage: str) -> None:
            advance(1 if begun else 0, stage)
            begun.append(stage)

        yield announce
        advance(1, "")
