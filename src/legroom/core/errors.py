"""Every error legroom raises on purpose.

    LegroomError
    ├── CannotFitError         the training does not fit, even at one sample at a time
    ├── OutOfMemoryError       memory ran out where legroom can't repeat the work
    ├── BadBudgetError         a size or a limit that can't be used, or comes too late
    ├── SnapshotError          a snapshot that can't be written or trusted
    ├── UnlikeBeforeError      a step that did something else than when it was looked at
    └── UnsupportedModelError  something legroom can't guard, estimate or plan for

Each message says what was wrong, what was received, what was expected and what to do next.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BadBudgetError",
    "CannotFitError",
    "LegroomError",
    "OutOfMemoryError",
    "SnapshotError",
    "UnlikeBeforeError",
    "UnsupportedModelError",
    "more",
]


def more(page: str) -> str:
    """The sentence that leads to the page of an error or a finding."""
    return f"More: legroom explain {page}"


class LegroomError(Exception):
    """Base of all errors that legroom raises on purpose.

    Attributes:
        page: The page that tells more, shown by ``legroom explain PAGE``; empty if there is none.
    """

    page: ClassVar[str] = ""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        if self.page and hasattr(self, "add_note"):  # from Python 3.11 on
            self.add_note(more(self.page))


class CannotFitError(LegroomError):
    """The training does not fit in the budget, even at one sample at a time.

    The weights are as they were before the step that was tried.

    Args:
        message: The whole explanation, for people.
        needed_bytes: What one sample needs, where it is known.
        budget_bytes: What there was, where it is known.
    """

    page = "CannotFitError"

    def __init__(
        self, message: str, *, needed_bytes: int | None = None, budget_bytes: int | None = None
    ) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.budget_bytes = budget_bytes


class OutOfMemoryError(LegroomError):
    """Memory ran out in a place that legroom can't repeat with less."""

    page = "OutOfMemoryError"


class BadBudgetError(LegroomError, ValueError):
    """A size that can't be read, can't be used here, or comes too late."""

    page = "BadBudgetError"


class SnapshotError(LegroomError):
    """A snapshot could not be written, or what was read can't be trusted."""

    page = "SnapshotError"


class UnlikeBeforeError(LegroomError):
    """A step did something else than when it was looked at, so its slices do not make it up.

    It never leaves legroom: the step is undone, and runs whole.
    """


class UnsupportedModelError(LegroomError):
    """A model or step that this function of legroom can't work with."""

    page = "UnsupportedModelError"
