"""The `pocketsd` command. Each verb is a module of its own, read only when it is asked for."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from functools import cache
from typing import Any

import click

from runtime_py import __version__
from runtime_py.errors import PocketSDError

# verb: the line that `pocketsd --help` shows. The verb's module defines `command`.
VERBS = {
    "convert": "Turn a checkpoint into a package for one target.",
    "run": "Draw a picture with a package.",
    "record": "Keep a package's inner inputs and outputs, to calibrate on.",
    "recipe": "Choose the form in which each layer's weights are stored.",
    "verify": "Measure a package against its source.",
    "bench": "Say where the time goes on this host's GPU.",
    "devices": "List the phones on the cable and what each can run.",
    "deploy": "Bring a package to a phone.",
    "targets": "List what packages can be made for, and each target's settings.",
    "inspect": "Say what a checkpoint, LoRA, embedding or package is.",
    "demo": "Convert the embedded tiny model and draw a sheet of prompts.",
}

EPILOG = """\b
Examples:
  pocketsd inspect model.safetensors
  pocketsd convert model.safetensors --lora style.safetensors:0.8 -o model.pkg
  pocketsd run model.pkg --prompt "a lighthouse at dusk" --seed 7 -o lighthouse.png
"""


class Verbs(click.Group):
    """Lists the verbs without importing them, so that help answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _command(name) if name in VERBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(
                f"no command {args[0]!r} (there are {', '.join(VERBS)})", ctx
            ) from error


@cache
def _command(verb: str) -> click.Command:
    command: click.Command = importlib.import_module(f"runtime_py.cli.{verb}").command
    command.params.append(_verbose())
    return command


def _verbose() -> click.Option:
    """Accepted before and after the verb; `main` looks for it, so that no verb has to."""
    return click.Option(
        ["-v", "--verbose"], is_flag=True, expose_value=False, help="Show where an error came from."
    )


@click.group(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pocketsd")
def pocketsd() -> None:
    """Stable Diffusion 1.x on phones: convert, deploy, run, measure."""


pocketsd.params.append(_verbose())


def main() -> None:
    """The console script: every failure is one line, and its exit code says which kind it is."""
    verbose = bool({"-v", "--verbose"} & set(sys.argv[1:]))
    try:
        pocketsd.main(prog_name="pocketsd", standalone_mode=False)
    except PocketSDError as error:
        if verbose:
            traceback.print_exc()
        _leave(f"{error}", error.exit_code)
    except click.ClickException as error:
        _leave(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        _leave("cancelled, nothing left behind", 130)
    except BrokenPipeError:
        os._exit(141)  # whoever read our output has gone
    except MemoryError:
        _leave("not enough memory", 1)
    except OSError as error:
        if verbose:
            traceback.print_exc()
        _leave(f"{error.filename or 'system'}: {error.strerror or error}", 2)
    except Exception as error:
        if verbose:
            traceback.print_exc()
        _leave(
            f"internal error, {type(error).__name__}: {error}"
            " (pocketsd -v shows where; please report it)",
            70,
        )


def _leave(line: str, code: int) -> None:
    click.echo(f"pocketsd: {' '.join(line.split())}", err=True)
    sys.exit(code)
