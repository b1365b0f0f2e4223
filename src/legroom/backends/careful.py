"""A guarded step that may fail by itself without ending the training.

legroom can fail on a model, a batch or a Keras that nobody has tried. A step that fails has done
nothing, so the plain step takes over from the same batch on; what fails after the step does not
have it run twice. An error of the user's own comes out as it is.
"""

from __future__ import annotations

import os
import site
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from legroom.core.errors import LegroomError

__all__ = ["OWN_CODE", "Careful", "is_users_file", "is_users_own"]

# Where our own code is.
OWN_CODE = str(Path(__file__).parents[1]) + os.sep
_OTHERS = tuple(
    os.path.join(path, "")
    for path in {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        *site.getsitepackages(),
    }
)


class _Step(Protocol):
    """A step that can be guarded."""

    done: list[Any]  # the results of a run since it was last emptied

    def plain(self) -> Callable[[Any], Any]:
        """The step as Keras would run it."""
        ...

    def is_oom(self, error: BaseException) -> bool:
        """Whether an error means that memory ran out."""
        ...

    def is_about_data(self, error: BaseException) -> bool:
        """Whether the framework raises such errors for what is in a batch."""
        ...


class Careful:
    """Runs a guarded step; the plain one from the batch on for which guarding fails.

    Args:
        step: The step, which can be run as Keras would, too.
        guard: Makes the guarded step of it.
        tell: Called with the error where the plain one takes over.
    """

    def __init__(
        self,
        step: _Step,
        guard: Callable[[Any], Callable[[Any], Any]],
        tell: Callable[[BaseException], None],
    ) -> None:
        self._step = step
        self._guard = guard
        self._tell = tell
        self._run: Callable[[Any], Any] | None = None
        self._has_run = self._is_plain = False

    def __call__(self, data: Any) -> Any:
        """Run the step on a batch."""
        try:
            return self._run_carefully(data)
        finally:
            self._step.done.clear()  # results may be large

    @property
    def guarded(self) -> Any:
        """The guarded step; None before the first batch, and where the plain one has taken over."""
        return None if self._is_plain else self._run

    def _run_carefully(self, data: Any) -> Any:
        try:
            if self._run is None:
                self._run = self._guard(self._step)
            outputs = self._run(data)
            self._has_run = True
            return outputs
        except LegroomError:
            raise
        except Exception as error:
            if self._is_plain or self._step.is_oom(error) or is_users_own(error):
                raise
            if self._has_run and self._step.is_about_data(error):
                raise  # of an op that ran before: it is about the data
            failure = error.with_traceback(None)  # which would keep the step's memory
        plain = self._step.plain()
        try:
            # Where the error is not legroom's, this raises it too: as Keras would.
            outputs = self._step.done.pop() if self._step.done else plain(data)
        except Exception as error:
            if not self._step.is_oom(error):
                raise
            if self._step.is_about_data(failure):
                raise failure from None  # of a slice's data, which the whole batch does not reach
            self._tell(failure)
            raise
        self._run, self._is_plain = plain, True
        self._tell(failure)
        return outputs


def is_users_file(path: str) -> bool:
    """Whether code in this file is the user's, and not ours or a library's."""
    return not os.path.abspath(path).startswith((OWN_CODE, *_OTHERS))


def is_users_own(error: BaseException) -> bool:
    """Whether an error comes from the user's code: the innermost that is no library's is theirs."""
    own = True
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        place = os.path.abspath(trace.tb_frame.f_code.co_filename)
        if place.startswith(OWN_CODE):
            own = False
        elif not place.startswith(_OTHERS) and not os.path.basename(place).startswith("<"):
            own = True
        trace = trace.tb_next
    return own
