"""What a guarded step tells of itself: the events, with the words that go with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from legroom.core.errors import CannotFitError
from legroom.core.events import DidNotFit, Measured, Note, Planned, emit
from legroom.guarding import wording
from legroom.guarding.retrying.step_budget import StepBudget

__all__ = ["Telling"]


class Telling:
    """Tells of one step.

    Args:
        subject: What is trained, for messages: "batch", "evaluation batch", "prediction batch".
        budget: What the step may use.

    Attributes:
        barred: The size from which on slices ended a process before; None if none did.
    """

    def __init__(self, subject: str, budget: StepBudget) -> None:
        self.subject = subject
        self._budget = budget
        self.barred: int | None = None
        self._noted: set[str] = set()

    @property
    def budget_bytes(self) -> int | None:
        """What the step may use, once that is known."""
        return self._budget.told

    def note(self, text: str, layers: Sequence[str] = ()) -> None:
        """Say something, once; of which layers, if it is of some."""
        if text not in self._noted:
            self._noted.add(text)
            emit(Note(text, layers=tuple(layers)))

    def plan(
        self,
        samples: int,
        size: int,
        reason: str,
        text: str = "",
        *,
        recompute: Sequence[Sequence[str]] | None = None,
        order: bool = False,
        need: int | None = None,
    ) -> None:
        """How batches run from now on."""
        emit(
            Planned(
                text,
                subject=self.subject,
                batch_size=samples,
                slice_size=size,
                slices=-(-samples // size),
                reason=reason,
                budget_bytes=self.budget_bytes,
                recompute=None if recompute is None else tuple(map(tuple, recompute)),
                order=order,
                need_bytes=need,
            )
        )

    def changed(
        self, samples: int, size: int, before: int | None, need: int | None, free: int | None
    ) -> None:
        """Slices have another size than before, by the guard's own choice.

        Args:
            samples: The size of the batch.
            size: The slices' size now.
            before: Their size for the last batch; None for the first.
            need: The bytes that the whole batch is reckoned to need.
            free: The bytes that were free.
        """
        if before is None:
            if self.barred is None:
                text = wording.planned(self.subject, samples, size, need, free)
            else:
                text = wording.planned_below(self.subject, samples, size, self.barred)
            self.plan(samples, size, "planned", text, need=self._with_in_use(need, free))
        elif size < before:
            self.plan(samples, size, "shrink", wording.shrunk(self.subject, samples, size, free))
        else:
            fewer = -(-samples // size) < -(-samples // before)
            text = wording.grown(self.subject, samples, size) if fewer else ""
            self.plan(samples, size, "grow", text)

    def _with_in_use(self, need: int | None, free: int | None) -> int | None:
        if need is None or free is None or self.budget_bytes is None:
            return None
        return need + max(0, self.budget_bytes - free)

    def recompute(
        self, samples: int, size: int, blocks: Sequence[Sequence[str]], reason: str
    ) -> None:
        """Blocks of layers are computed again from now on."""
        text = wording.recomputing(self.subject, samples, size, blocks)
        self.plan(samples, size, reason, text, recompute=blocks)

    def in_order(self, samples: int) -> None:
        """The ops of whole batches run in an order from now on."""
        self.plan(samples, samples, "planned", wording.in_order(self.subject, samples), order=True)

    def measured(
        self, samples: int, size: int, in_use: int | None, need: int | None, predicted: int | None
    ) -> None:
        """What a step took."""
        emit(
            Measured(
                subject=self.subject,
                samples=samples,
                slice_size=size,
                before_bytes=in_use,
                need_bytes=need,
                predicted_bytes=predicted,
            )
        )

    def cannot_fit(
        self,
        size: int,
        in_use: int | None,
        needs: Callable[[int], int] | None,
        tensors: Sequence[tuple[str, int]],
        *,
        fixed: bool,
    ) -> CannotFitError:
        """The end: slices of this size are too much, and there are no smaller ones."""
        need = None if needs is None else needs(size)
        text = wording.cannot_fit(
            size=size,
            fixed=fixed,
            need=need,
            in_use=in_use,
            budget=self.budget_bytes,
            tensors=tensors,
        )
        emit(DidNotFit(data_text=text, slice_size=size, budget_bytes=self.budget_bytes))
        return CannotFitError(
            text,
            needed_bytes=None if need is None else need + (in_use or 0),
            budget_bytes=self.budget_bytes,
        )

    def cannot_slice(
        self,
        samples: int | None,
        reason: str,
        place: str | None,
        needed: int | None,
        *,
        exact: bool = False,
    ) -> CannotFitError:
        """The end: the whole batch is too much, and it can't be cut."""
        text = wording.cannot_slice(samples, reason, place, needed, exact=exact)
        emit(DidNotFit(data_text=text, budget_bytes=self.budget_bytes))
        return CannotFitError(text, budget_bytes=self.budget_bytes)
