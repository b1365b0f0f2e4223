"""``legroom explain``: what a log, a notebook or a message says about memory, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from typing import BinaryIO

    from legroom.messages import Diagnosis

__all__ = ["explain"]

_EXPECTED = "Expected a log, a notebook (.ipynb), or - to read from a pipe."
_INTERRUPTED = 130


def explain(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE | -]",
            help="A log of any length or a notebook; `-` reads a pipe until it ends or Ctrl-C.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the diagnosis as one JSON document.")
    ] = False,
) -> None:
    """Say what an error message means: what ran out, why so much, and what to do.

    Reads what TensorFlow, Keras, JAX, PyTorch, NumPy or the kernel wrote when memory ran out,
    in logs of any length: `legroom explain train.log`, `python train.py 2>&1 | legroom explain -`.
    """
    import sys

    if file not in (None, "-"):
        diagnosis, interrupted = _read_file(str(file))
    elif sys.stdin is None or (file is None and sys.stdin.isatty()):
        raise typer.BadParameter(f"Nothing to read. {_EXPECTED}", param_hint="FILE")
    else:
        diagnosis, interrupted = _read(sys.stdin.buffer, "-", notebook=None)
    if as_json:
        typer.echo(diagnosis.to_json(indent=1))
    else:
        from legroom.report.diagnosis import print_diagnosis

        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # a terminal that knows no "×"
        print_diagnosis(diagnosis)
    if interrupted:
        raise typer.Exit(_INTERRUPTED)


def _read_file(name: str) -> tuple[Diagnosis, bool]:
    from pathlib import Path

    path = Path(name)
    if path.is_dir():
        raise typer.BadParameter(
            f"A directory can't be explained. {_EXPECTED} Received: {name!r}", param_hint="FILE"
        )
    if not path.exists():
        raise typer.BadParameter(
            f"There is no such file. {_EXPECTED} Received: {name!r}", param_hint="FILE"
        )
    try:
        with path.open("rb") as stream:
            return _read(stream, name, notebook=True if path.suffix == ".ipynb" else None)
    except OSError as error:
        raise _unreadable(name, error) from error


def _read(stream: BinaryIO, name: str, *, notebook: bool | None) -> tuple[Diagnosis, bool]:
    from legroom.messages.explain import diagnose_reader
    from legroom.messages.reader import Reader

    reader = Reader(stream, notebook=notebook)
    try:
        return diagnose_reader(reader), reader.interrupted
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError) -> Exception:
    from legroom.core.errors import LegroomError

    reason = error.strerror or str(error)
    return LegroomError(f"It can't be read: {reason}. {_EXPECTED} Received: {name!r}")
