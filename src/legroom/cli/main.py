"""The ``legroom`` command: its group of commands, and the one place where errors become messages.

A command lives in a module of its name, in a function of its name, and is imported when it is
called or when the help lists it. So these modules import what they need inside that function.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from legroom.core.errors import BadBudgetError, CannotFitError, LegroomError, more

__all__ = ["main"]

# In the order of the help; one that is not there yet is passed over.
_COMMANDS = ("run", "plan", "check", "explain", "watch", "report", "sweep", "demo", "selftest")
_FAILED, _USAGE, _CANNOT_FIT, _INTERRUPTED = 1, 2, 3, 130


class _Commands(TyperGroup):
    """The commands, each found by its name."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in _COMMANDS if importlib.util.find_spec(f"legroom.cli.{name}")]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"legroom.cli.{cmd_name}")
        single = typer.Typer(
            add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
        )
        settings = getattr(module, "CONTEXT_SETTINGS", {})
        single.command(cmd_name, context_settings=settings)(getattr(module, cmd_name))
        return typer.main.get_command(single)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)
        except LegroomError as error:
            from legroom.report.terminal import say

            say("\n".join([str(error), *([more(error.page)] if error.page else [])]), colour="31")
            sys.exit(_exit_code(error))


def _exit_code(error: LegroomError) -> int:
    if isinstance(error, CannotFitError):
        return _CANNOT_FIT
    return _USAGE if isinstance(error, BadBudgetError) else _FAILED


_app = typer.Typer(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import legroom

        typer.echo(f"legroom {legroom.__version__}")
        raise typer.Exit


@_app.callback()
def _legroom(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Train any Keras model in the memory you have.

    Start with `legroom run train.py`: your script, not edited, and it finishes.
    """


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    if os.environ.get("NO_COLOR"):
        # typer asks for colours by itself where it thinks that it is in a CI.
        os.environ.pop("FORCE_COLOR", None)
    _app(prog_name="legroom")
