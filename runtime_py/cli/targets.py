"""pocketsd targets"""

from __future__ import annotations

import textwrap

import click

EPILOG = """\b
Examples:
  pocketsd targets
  pocketsd targets coreml
"""


@click.command(epilog=EPILOG)
@click.argument("names", metavar="[TARGET]...", nargs=-1)
def command(names: tuple[str, ...]) -> None:
    """List what packages can be made for: precisions and settings of each target."""
    from runtime_py.cli.heavy import converter_module

    targets = converter_module("targets")
    for name in names or targets.target_names():
        target = targets.get_target(name)
        click.echo(f"{name}\n  --precision {', '.join(target.precisions)}")
        for setting in target.settings:
            default = f" [{setting.default}]" if setting.default else ""
            values = "|".join(c for c in setting.choices if c) or "TEXT"
            click.echo(f"  --set {setting.name}={values}{default}")
            click.echo(textwrap.indent(textwrap.fill(setting.help, 88), "      "))
