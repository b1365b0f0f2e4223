"""``legroom check``: what a script, as it runs, wastes or lets grow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from legroom.cli.script import OPTIONS_END_AT_SCRIPT, Script, ScriptArguments, check_script

if TYPE_CHECKING:
    from legroom.core.findings import Finding

__all__ = ["CONTEXT_SETTINGS", "check"]

CONTEXT_SETTINGS = OPTIONS_END_AT_SCRIPT
_FOUND, _FAILED = 3, 1


def check(
    script: Script,
    args: ScriptArguments = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            help="Findings to leave out: LR109, or several separated by commas. Can be repeated.",
            metavar="ID",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the findings as one JSON document. The script's output goes to stderr.",
        ),
    ] = False,
) -> None:
    """Run a script and report what grows in it and what its input costs.

    The script runs to its end, unchanged, while its memory is watched. Loops that leak are reported
    with the cause and the line, and the data of every `fit` is examined once.

    **Examples**

    `legroom check train.py --epochs 2`

    `legroom check --ignore LR109 --json train.py`

    **Exit code**: 0 if nothing was found (notes do not count), 3 if something was, 1 if the
    script failed, 2 if the command can't be understood.
    """
    import json
    import sys

    from legroom.doctor.suppressions import read_ids

    check_script(script, in_notebook="Put its loop into `with legroom.watch():` instead.")
    try:
        unwanted = read_ids(ignore or [])
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ignore") from error
    findings, code = _run(script, args or [], unwanted, quiet_stdout=as_json)
    if as_json:
        document = {
            "kind": "Findings", "version": 1, "script": str(script), "exit_code": code,
            "findings": [finding.to_dict() for finding in findings],
        }  # fmt: skip
        typer.echo(json.dumps(document, indent=1))
    else:
        from legroom.report.findings import print_findings

        print_findings(findings, sys.stdout)
    if code != 0:
        from legroom.report.terminal import say

        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        say(f"The script ended {how}: what comes after that was not seen.", colour="31")
        raise typer.Exit(_FAILED)
    if any(finding.is_warning for finding in findings):
        raise typer.Exit(_FOUND)


def _run(
    script: Path, args: list[str], ignore: tuple[str, ...], *, quiet_stdout: bool
) -> tuple[list[Finding], int]:
    """Run the script in a process of its own; returns what was found, and its exit code."""
    import json
    import signal
    import subprocess
    import sys
    import tempfile

    from legroom.core.findings import Finding, ranked
    from legroom.doctor.suppressions import wanted

    child = Path(__file__).parents[1] / "doctor" / "check_child.py"
    with tempfile.TemporaryDirectory(prefix="legroom-") as folder:
        answer = Path(folder) / "findings.json"
        running = subprocess.Popen(
            [sys.executable, str(child), str(answer), str(script), *args],
            stdout=sys.stderr.fileno() if quiet_stdout else None,
        )
        # Ctrl-C ends the script, which then says what was found until there.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            code = running.wait()
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            found = [Finding.from_dict(entry) for entry in json.loads(answer.read_text())]
        except (OSError, ValueError):  # it died before it could write them
            found = []
    return ranked(wanted(found, ignore)), code
