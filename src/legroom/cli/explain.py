"""``legroom explain``: what a log, a notebook or a message says about memory, and what to do."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from legroom.cli.command import Command, json_flag

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from legroom.messages import Diagnosis
    from legroom.messages.layers import LayerFacts
    from legroom.messages.model import Advice, ModelAtHand

__all__ = ["explain"]

_EXPECTED = "Expected a log, a notebook (.ipynb), - to read from a pipe, or a page such as LR105."
_INTERRUPTED = 130


@click.command(
    cls=Command,
    examples=(
        "legroom explain train.log",
        "python train.py 2>&1 | legroom explain -",
        "legroom explain --model m.keras --batch-size 64 notebook.ipynb",
        "legroom explain LR105",
    ),
    exit_codes="0 when the question was answered, whatever the answer; 1 if a file can't be read; "
    "2 if there is none; 130 after Ctrl-C, with the answer to what came before it.",
)
@click.argument("file", required=False, metavar="[FILE | - | PAGE]")
@click.option(
    "--model",
    metavar="M.KERAS",
    help="The model that was trained, saved by `model.save`: names the layer that failed, and "
    "estimates what each remedy saves.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="The batch size of the training, if the log does not show it.",
)
@json_flag("Print the diagnosis as one JSON document.")
def explain(file: str | None, model: str | None, batch_size: int | None, as_json: bool) -> None:
    """Explain an error message: what ran out, why, and what to do.

    Reads what TensorFlow, Keras, JAX, PyTorch, NumPy or the kernel wrote when memory ran out, in
    logs of any length, notebooks, or from a pipe (-). Or shows the page that a message names, of a
    finding or an error: LR105, CannotFitError.
    """
    if file is not None and _print_page(file):
        return
    at_hand = _model_at_hand(model, batch_size)
    if file not in (None, "-"):
        diagnosis, interrupted = _read_file(str(file), at_hand)
    elif sys.stdin is None or (file is None and sys.stdin.isatty()):
        raise click.BadParameter(f"Nothing to read. {_EXPECTED}", param_hint="FILE")
    else:
        diagnosis, interrupted = _read(sys.stdin.buffer, "-", at_hand, notebook=None)
    if as_json:
        click.echo(diagnosis.to_json(indent=1))
    else:
        from legroom.report.diagnosis import print_diagnosis

        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # a terminal that knows no "×"
        print_diagnosis(diagnosis)
    if interrupted:
        sys.exit(_INTERRUPTED)


def _print_page(name: str) -> bool:
    """Show the page of that name, unless there is a file of it; whether there is a page."""
    from pathlib import Path

    from legroom.report.pages import page_text, print_page

    text = None if Path(name).exists() else page_text(name)
    if text is not None:
        print_page(text)
    return text is not None


def _model_at_hand(name: str | None, batch_size: int | None) -> ModelAtHand | None:
    """The model that the user named. Keras is imported when, and if, a failure asks for it."""
    from pathlib import Path

    if name is None:
        if batch_size is not None:
            raise click.BadParameter("It goes with --model.", param_hint="--batch-size")
        return None
    path = Path(name)
    if not path.is_file():
        what = "A folder is not a saved model." if path.is_dir() else "There is no such file."
        raise click.BadParameter(
            f'{what} Expected a file that model.save("m.keras") wrote. Received: {name!r}',
            param_hint="--model",
        )
    from legroom.backends.base import named

    try:
        # A file that is none is said before a long log is read.
        named("tensorflow").model_files.read_config(path)
    except OSError as error:
        raise _unreadable(name, error) from error
    return _SavedModel(path, batch_size)


class _SavedModel:
    """A saved model that is read on first use: importing TensorFlow takes seconds."""

    def __init__(self, path: Path, batch_size: int | None) -> None:
        self._path = path
        self.title = path.name
        self.batch_size = batch_size

    @functools.cached_property
    def _model(self) -> ModelAtHand:
        import os

        # To be looked at, not run: on whatever this machine has, without its GPU, and with
        # TensorFlow, whose tracing it is.
        os.environ.update(
            CUDA_VISIBLE_DEVICES="-1", KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3"
        )
        with _silence():
            try:
                from legroom.planning.explain import read_model_file

                return read_model_file(self._path, self.batch_size)
            except ImportError as error:
                from legroom.core.errors import LegroomError

                raise LegroomError(
                    f"--model needs Keras and TensorFlow, and here they can't be imported: {error}"
                ) from error

    @property
    def layers(self) -> Sequence[LayerFacts]:
        return self._model.layers

    def advise(self, batch: int | None, limit_bytes: int | None, device: str | None) -> Advice:
        with _silence():
            return self._model.advise(batch, limit_bytes, device)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep what TensorFlow's C++ code says about this machine out of the answer."""
    import os

    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _read_file(name: str, model: ModelAtHand | None) -> tuple[Diagnosis, bool]:
    from pathlib import Path

    path = Path(name)
    if path.is_dir():
        raise click.BadParameter(
            f"A folder can't be explained. {_EXPECTED} Received: {name!r}", param_hint="FILE"
        )
    if not path.exists():
        raise click.BadParameter(
            f"There is no such file. {_EXPECTED} Received: {name!r}", param_hint="FILE"
        )
    try:
        with path.open("rb") as stream:
            return _read(stream, name, model, notebook=True if path.suffix == ".ipynb" else None)
    except OSError as error:
        raise _unreadable(name, error) from error


def _read(
    stream: BinaryIO, name: str, model: ModelAtHand | None, *, notebook: bool | None
) -> tuple[Diagnosis, bool]:
    from legroom.messages.explain import diagnose_reader
    from legroom.messages.reading.reader import Reader

    reader = Reader(stream, notebook=notebook)
    try:
        return diagnose_reader(reader, model), reader.interrupted
    except OSError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: OSError) -> Exception:
    from legroom.core.errors import LegroomError

    reason = error.strerror or str(error)
    return LegroomError(f"It can't be read: {reason}. {_EXPECTED} Received: {name!r}")
