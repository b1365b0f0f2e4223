"""A guarded step that may fail by itself, before it has run once, without ending the training.

What legroom sets up before a step can fail on a model or a Keras that nobody has tried. Then the
step runs as Keras would from its first batch on. An error of the user's own comes out as it is.
"""

from __future__ import annotations

import os
import site
import sysconfig
from collections.abc import Callable
from types import TracebackType
from typing import Any

from legroom.backends.tensorflow import oom
from legroom.core.errors import LegroomError

__all__ = ["Careful", "is_users_own"]

_LEGROOM = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_OTHERS = tuple(
    os.path.join(path, "")
    for path in {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        *site.getsitepackages(),
    }
)


class Careful:
    """Runs a guarded step; the plain one, where guarding fails before the step has run once.

    Args:
        make: Makes the guarded step.
        plain: Makes the step as Keras would run it.
        tell: Called with the error where the plain one takes over.
    """

    def __init__(
        self,
        make: Callable[[], Callable[[Any], Any]],
        plain: Callable[[], Callable[[Any], Any]],
        tell: Callable[[BaseException], None],
    ) -> None:
        self._make = make
        self._make_plain = plain
        self._tell = tell
        self._run: Callable[[Any], Any] | None = None
        self._has_run = False

    def __call__(self, data: Any) -> Any:
        """Run the step on a batch."""
        if self._has_run:
            assert self._run is not None
            return self._run(data)
        failure: Exception | None = None
        try:
            if self._run is None:
                self._run = self._make()
            outputs = self._run(data)
        except LegroomError:
            raise
        except Exception as error:
            if oom.is_oom(error) or is_users_own(error):
                raise
            failure = error.with_traceback(None)
        if failure is not None:
            # Where the error is not legroom's, this raises it too: as Keras would.
            plain = self._make_plain()
            outputs = plain(data)
            self._run = plain
            self._tell(failure)
        self._has_run = True
        return outputs


def is_users_own(error: BaseException) -> bool:
    """Whether an error comes from the user's code: the innermost that is no library's is theirs."""
    own = True
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        place = os.path.abspath(trace.tb_frame.f_code.co_filename)
        if place.startswith(_LEGROOM):
            own = False
        elif not place.startswith(_OTHERS) and not os.path.basename(place).startswith("<"):
            own = True
        trace = trace.tb_next
    return own
