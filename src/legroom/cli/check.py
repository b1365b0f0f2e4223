"""``legroom check``: what a script, as it runs, wastes or lets grow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from legroom.cli.command import Command, check_script, json_flag, script_arguments

if TYPE_CHECKING:
    from legroom.core.findings import Finding

__all__ = ["check"]

_FOUND, _FAILED = 3, 1


@click.command(
    cls=Command,
    runs_script=True,
    examples=("legroom check train.py --epochs 2", "legroom check --ignore LR109 --json train.py"),
    exit_codes="0 if nothing was found (notes do not count), 3 if something was, 1 if the script "
    "failed, 2 if the command can't be understood.",
)
@script_arguments
@click.option(
    "--ignore",
    multiple=True,
    metavar="ID",
    help="Findings to leave out: LR109, or several separated by commas. Can be repeated.",
)
@json_flag("Print the findings as JSON. The script's output goes to stderr.")
def check(script: Path, args: tuple[str, ...], ignore: tuple[str, ...], as_json: bool) -> None:
    """Run a script and report what grows and what its input costs.

    The script runs to its end, unchanged, while its memory is watched. Loops that leak are reported
    with the cause and the line, and the data of every `fit` and every loop is examined once.
    """
    import json

    from legroom.doctor.suppressions import read_ids

    check_script(script, in_notebook="Put its loop into `with legroom.watch():` instead.")
    try:
        unwanted = read_ids(ignore)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--ignore") from error
    findings, code = _run(script, args, unwanted, quiet_stdout=as_json)
    if as_json:
        document = {
            "kind": "Findings", "version": 1, "script": str(script), "exit_code": code,
            "findings": [finding.to_dict() for finding in findings],
        }  # fmt: skip
        click.echo(json.dumps(document, indent=1))
    else:
        from legroom.report.findings import print_findings

        print_findings(findings, sys.stdout)
    if code != 0:
        from legroom.report.screen.lines import say

        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        say(f"The script ended {how}: what comes after that was not seen.", colour="31")
        sys.exit(_FAILED)
    if any(finding.is_warning for finding in findings):
        sys.exit(_FOUND)


def _run(
    script: Path, args: tuple[str, ...], ignore: tuple[str, ...], *, quiet_stdout: bool
) -> tuple[list[Finding], int]:
    """Run the script in a process of its own; returns what was found, and its exit code."""
    import json
    import signal
    import subprocess
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
