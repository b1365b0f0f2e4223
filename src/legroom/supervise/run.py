"""One run of a script: the child, and afterwards the report of what it did.

The report is made here, in the parent, from the child's journal: a child that was killed still has
one, and the script's own output is complete before it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from legroom.core.files import write_atomically
from legroom.report.journal import read_journal
from legroom.report.run import RunReport
from legroom.report.terminal import say
from legroom.supervise.process import run_child

__all__ = ["run_script"]

# A loop written by hand has no start and no end that anyone could see.
_SIGNS_OF_TRAINING = frozenset({"training_started", "plan", "oom", "progress", "cannot_fit"})


def run_script(
    script: Path,
    args: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    exact: bool = False,
    json_path: Path | None = None,
) -> int:
    """Run a script in a guarded child process, and report.

    The closing table is printed if any training was guarded.

    Args:
        script: The script, as the user wrote it.
        args: The script's arguments.
        environment: Variables that the child has beside this process's.
        exact: As in ``legroom.guard``.
        json_path: Where the run's report goes as JSON.

    Returns:
        The script's exit code, or the negative number of the signal it died by.
    """
    with _journal_place() as journal:
        code = run_child(script, args, environment=environment, journal=journal, exact=exact)
        report = RunReport.from_events([] if journal is None else read_journal(journal))
    if any(event.name in _SIGNS_OF_TRAINING for event in report.events):
        from legroom.report.table import print_table  # rich, only where there is something to show

        print_table(report)
    if json_path is not None:
        try:
            write_atomically(json_path, report.to_json(indent=2).encode() + b"\n")
        except OSError as error:
            # The script has run: its exit code is worth more than this.
            say(f"The report could not be written to {json_path}: {error}", colour="31")
    return code


@contextlib.contextmanager
def _journal_place() -> Iterator[Path | None]:
    """A place for the journal; None where nothing can be written, for the script runs anyway."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
    except OSError:
        yield None
        return
    with folder as name:
        yield Path(name) / "journal.jsonl"
