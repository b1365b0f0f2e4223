"""What commands share: help with examples, paths, and a script with arguments of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = ["PATH", "Command", "check_script", "json_flag", "not_a_script", "script_arguments"]

PATH = click.Path(path_type=Path)
_Function = TypeVar("_Function", bound=Callable[..., Any])

_GUARD_A_NOTEBOOK = (
    "Put `%load_ext legroom` in its first cell instead: it guards every model in the notebook."
)


class Command(click.Command):
    """A command whose help shows examples and what the exit codes mean.

    Attributes:
        examples: Command lines.
        exit_codes: A sentence.
        runs_script: Whether what follows the script, or `--`, is the script's own, whatever it
            looks like.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str],
        exit_codes: str,
        runs_script: bool = False,
        **settings: Any,
    ) -> None:
        context = settings.setdefault("context_settings", {})
        context.setdefault("help_option_names", ["-h", "--help"])
        context.setdefault("allow_interspersed_args", not runs_script)
        super().__init__(*args, **settings)
        self.examples = examples
        self.exit_codes = exit_codes

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what follows the options."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"  {example}\n")
        formatter.write_paragraph()
        formatter.write_text(f"Exit code: {self.exit_codes}")


def script_arguments(function: _Function) -> _Function:
    """Add a script and the script's own arguments to a command."""
    function = click.argument("args", nargs=-1, type=click.UNPROCESSED)(function)
    return click.argument("script", type=PATH)(function)


def json_flag(what: str) -> Callable[[_Function], _Function]:
    """Add `--json`, which prints something as JSON instead of for people."""
    return click.option("--json", "as_json", is_flag=True, help=what)


def not_a_script(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse to write to what is a script by its name: its path was meant for something else."""
    del ctx, param
    if path is not None and path.suffix in (".py", ".ipynb"):
        raise click.BadParameter(
            f"{path} is a script, and would be overwritten. Name a file for the report before it: "
            f"--json report.json {path}"
        )
    return path


def check_script(script: Path, *, in_notebook: str = _GUARD_A_NOTEBOOK) -> None:
    """Say what is wrong with a script's path, as a usage error.

    Args:
        script: The path.
        in_notebook: What to do in a notebook instead.
    """
    if script.suffix == ".ipynb":
        raise click.BadParameter(f"{script} is a notebook. {in_notebook}", param_hint="SCRIPT")
    if script.is_dir():
        raise click.BadParameter(
            f"{script} is a folder. Give the script in it that starts the training.",
            param_hint="SCRIPT",
        )
    if not script.exists():
        raise click.BadParameter(
            f"There is no file {script} in {Path.cwd()}. Give the path of a Python script; "
            "options of legroom go before it, the script's own after it.",
            param_hint="SCRIPT",
        )
    if not os.access(script, os.R_OK):
        raise click.BadParameter(f"{script} can't be read by this user.", param_hint="SCRIPT")
