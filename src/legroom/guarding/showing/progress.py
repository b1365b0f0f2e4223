"""One quiet word about memory in Keras's own progress bar, where a person looks on."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["status_in_progress_bar"]


_NAME = "memory"


def status_in_progress_bar(
    status: Callable[[], str | None],
) -> contextlib.AbstractContextManager[None]:
    """Show a status behind the metrics in Keras's progress bars.

    Only on a terminal, if it is wide enough, and in a notebook: where the output goes to a file, it
    is Keras's own.

    Args:
        status: The status now; None where there is nothing to say. Asked at each update.
    """
    notebook = "ipykernel" in sys.modules
    if not (sys.stdout.isatty() or notebook):
        return contextlib.nullcontext()
    from legroom.backends import patches

    def showing(original: Callable[..., Any]) -> Callable[..., Any]:
        def update(bar: Any, current: Any, values: Any = None, finalize: Any = None) -> None:
            # A bar that keeps its values in another way goes without.
            with contextlib.suppress(AttributeError):
                if bar.verbose == 1:
                    columns = 10_000 if notebook else shutil.get_terminal_size().columns
                    _put(bar, values or (), status(), columns)
            original(bar, current, values, finalize)

        return update

    return patches.replaced("keras.src.utils.progbar:Progbar", "update", showing)


def _put(bar: Any, values: Any, text: str | None, columns: int) -> None:
    """Have the bar show a text last, unless its line would be broken by it."""
    order = bar._values_order
    width = bar._prev_total_width
    if _NAME in order:
        width -= _width(bar._values[_NAME])
        order.remove(_NAME)
    new = [name for name, _ in values if name not in order]
    order += new
    if text and width and not new and width + _width(text) < columns:
        order.append(_NAME)
        bar._values[_NAME] = text  # what is no list of numbers is shown as it is


def _width(text: str) -> int:
    return len(f" - {_NAME}: {text}")
