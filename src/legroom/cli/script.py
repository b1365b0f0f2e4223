"""A script on the command line: its path, its own arguments, and what can be wrong with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["OPTIONS_END_AT_SCRIPT", "Script", "ScriptArguments", "check_script", "not_a_script"]

# What follows the script, or `--`, is its own, whatever it looks like.
OPTIONS_END_AT_SCRIPT = {
    "allow_interspersed_args": False,
    "help_option_names": ["-h", "--help"],
}

Script = Annotated[
    Path, typer.Argument(help="The training script.", metavar="SCRIPT", show_default=False)
]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(
        help="The script's own arguments.",
        metavar="ARGS",
        show_default=False,
    ),
]

_GUARD_A_NOTEBOOK = (
    "Put `%load_ext legroom` in its first cell instead: every model of the notebook is guarded "
    "from there on."
)


def not_a_script(path: Path | None) -> Path | None:
    """Refuse to write to what is a script by its name: its path was meant for something else."""
    if path is not None and path.suffix in (".py", ".ipynb"):
        raise typer.BadParameter(
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
        raise typer.BadParameter(f"{script} is a notebook. {in_notebook}", param_hint="SCRIPT")
    if script.is_dir():
        raise typer.BadParameter(
            f"{script} is a folder. Give the script in it that starts the training.",
            param_hint="SCRIPT",
        )
    if not script.exists():
        raise typer.BadParameter(
            f"There is no file {script} in {Path.cwd()}. Give the path of a Python script; "
            "options of legroom go before it, the script's own after it.",
            param_hint="SCRIPT",
        )
    if not os.access(script, os.R_OK):
        raise typer.BadParameter(f"{script} can't be read by this user.", param_hint="SCRIPT")
