"""The child process of ``legroom run``: the user's script as ``__main__``, with Keras guarded.

Run as a file, by `legroom.supervisor.process`. The script must not be able to tell that it is
not plain Python that runs it: its ``__main__`` module, ``sys.argv``, ``sys.path``, exit code and
tracebacks are what they would be.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legroom.supervisor.options import ChildOptions

__all__ = ["main"]

_CANNOT_FIT = 3


def main() -> None:
    """Run the script named in ``sys.argv[2]``; ``sys.argv[1]`` are the options from the parent."""
    _, options, *script_argv = sys.argv
    _import_legroom()
    _guard(options)
    _run(script_argv)


def _import_legroom() -> None:
    """Import the very package that this file is part of, wherever it lies.

    The module path may not lead to it (the parent was started from a source folder), or lead to
    another one, and is the script's: it is not to be changed.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(
        "legroom", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["legroom"] = module
    spec.loader.exec_module(module)


def _guard(options_json: str) -> None:
    """Have Keras guarded when, and if, the script imports it."""
    from legroom.supervisor.guarded import guard_process
    from legroom.supervisor.options import ChildOptions

    options = ChildOptions.from_json(options_json)
    _send_receipts(options)
    guard_process(options, os.path.dirname(os.path.realpath(sys.argv[2])))


def _send_receipts(options: ChildOptions) -> None:
    """Have Python's signal handling tell the parent what arrives here (see signals.py)."""
    os.set_inheritable(options.receipts, False)
    os.set_blocking(options.receipts, False)
    signal.set_wakeup_fd(options.receipts, warn_on_full_buffer=False)


def _run(script_argv: list[str]) -> None:
    """Run the script, and end as plain Python would."""
    from legroom.core.errors import CannotFitError
    from legroom.core.process.main_script import run_as_main

    try:
        run_as_main(script_argv)
    except SystemExit:
        raise
    except CannotFitError as error:
        from legroom.report.screen.lines import say
        from legroom.supervisor.explaining import advise_to_fit_error

        say(str(error), colour="31")
        advise_to_fit_error(error)
        # Left by SystemExit and not by os._exit: the script's atexit functions still run.
        raise SystemExit(_CANNOT_FIT) from None
    except BaseException:
        # Python itself shows it and chooses the exit code, so that Ctrl-C stays a death by
        # SIGINT; only the frames above the script are taken out.
        sys.excepthook = _without_our_frames(sys.excepthook)
        raise


def _without_our_frames(show: Callable[..., Any]) -> Callable[..., None]:
    """An excepthook that hides the frames above the script's own, which plain Python has not."""
    from legroom.core.process.main_script import from_script_on

    def hook(
        kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
    ) -> None:
        traceback = from_script_on(traceback)
        show(kind, error.with_traceback(traceback), traceback)
        if isinstance(error, Exception):  # Ctrl-C has nothing to explain, and must end as it does
            from legroom.supervisor.explaining import explain_error

            explain_error(error)

    return hook


if __name__ == "__main__":
    main()
