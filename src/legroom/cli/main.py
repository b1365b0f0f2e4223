"""The ``legroom`` command: its group of commands, and the one place where errors become messages.

A command lives in a module of its name, under its name, and is imported when it is called or when
the help lists it. So these modules import what they need inside that function.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

import click

from legroom.core.errors import BadBudgetError, CannotFitError, LegroomError, more

__all__ = ["main"]

# In the order of the help; one that is not there yet is passed over.
_COMMANDS = ("run", "plan", "check", "explain", "watch", "report", "sweep", "demo", "selftest")
_FAILED, _USAGE, _CANNOT_FIT, _INTERRUPTED = 1, 2, 3, 130


class _Commands(click.Group):
    """The commands, each found by its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in _COMMANDS if importlib.util.find_spec(f"legroom.cli.{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"legroom.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)
        except LegroomError as error:
            from legroom.report.screen.lines import say

            say("\n".join([str(error), *([more(error.page)] if error.page else [])]), colour="31")
            sys.exit(_exit_code(error))


def _exit_code(error: LegroomError) -> int:
    if isinstance(error, CannotFitError):
        return _CANNOT_FIT
    return _USAGE if isinstance(error, BadBudgetError) else _FAILED


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    del param
    if wanted:
        import legroom

        click.echo(f"legroom {legroom.__version__}")
        ctx.exit()


@click.command(
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`legroom COMMAND --help` has examples of each.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def _legroom() -> None:
    """Train any Keras model in the memory you have.

    Start with `legroom run train.py`: your script, not edited, and it finishes.
    """


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    if os.environ.get("NO_COLOR"):
        # With both, rich would still write in bold.
        os.environ.pop("FORCE_COLOR", None)
    _legroom(prog_name="legroom")
