"""pocketsd demo"""

from __future__ import annotations

import click


@click.command(epilog="\b\nExamples:\n  pocketsd demo\n")
def command() -> None:
    """x"""
