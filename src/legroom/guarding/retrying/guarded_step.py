"""The step that survives: try, and on running out of memory try again with smaller slices.

This is the only place where an out-of-memory error is caught and answered. It knows no framework:
a backend's step runs a batch whole or in slices and, when it runs out of memory, has done nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from typing import Any

from legroom.backends.steps import BackendStep, Needs
from legroom.core.errors import CannotFitError, OutOfMemoryError
from legroom.core.events import Progress, RanOut, emit
from legroom.guarding import wording
from legroom.guarding.options import GuardOptions, Start
from legroom.guarding.retrying.lean import Lean
from legroom.guarding.retrying.policy import SliceSearch
from legroom.guarding.retrying.recompute_search import RecomputeSearch
from legroom.guarding.retrying.step_budget import StepBudget
from legroom.guarding.retrying.telling import Telling
from legroom.guarding.showing.sampling import sampler

__all__ = ["GuardedStep"]

# Seconds between two notes of progress in the journal.
_PROGRESS_EVERY = 10.0


class GuardedStep:
    """Runs a backend's step so that running out of memory costs a retry.

    Args:
        step: The backend's step.
        options: What the user asked for.
        subject: What is trained, for messages: "batch", "evaluation batch", "prediction batch".
    """

    def __init__(self, step: BackendStep, options: GuardOptions, subject: str = "batch") -> None:
        self._step = step
        self._options = options
        self._budget = StepBudget(step.pool, options.memory)
        self._tell = Telling(subject, self._budget)
        self._search = SliceSearch(fixed=options.slice_size)
        self._needs: Needs | None = None
        # Whether there is room to look at a step before it runs.
        self._predicts = True
        self._recompute_search = RecomputeSearch(step)
        self._start = options.start
        self._ordered = False
        self._lean = Lean(step)
        self._whole_fits: set[int] = set()
        self._ran_out: tuple[tuple[str | None, int | None], float] | None = None
        self._current: dict[int, int] = {}
        self._told: set[int] = set()  # batches whose slices were told in this call
        self._measured: dict[int, int] = {}
        self._peak = 0
        self._predicted: int | None = None
        self._largest = 0
        self._unreported = 0
        self._reported_at = time.monotonic()
        # Called once, with the first batch, its samples and the budget, before it is run.
        self.on_first_batch: Callable[[Any, int, int | None], None] | None = None

    @property
    def budget_bytes(self) -> int | None:
        """What the step may use, once it ran."""
        return self._budget.nbytes

    @property
    def needs(self) -> Needs | None:
        """What a step should need, where it was predicted."""
        return self._needs

    def bar(self, size: int) -> None:
        """Never use slices of this size, or larger ones: they ended a process before."""
        if self._tell.barred != size:
            self._search.failed(size, None)
            self._whole_fits.clear()
            self._tell.barred = size

    def begin_whole(self) -> None:
        """Begin with whole batches: they are known to fit, whatever is predicted."""
        self._search.start = sys.maxsize

    def begin_call(self, training: int | None) -> None:
        """A call of Keras begins: what is known stays; what is there now is looked at again.

        Args:
            training: Its number, in a run that can be resumed.
        """
        self._budget.look_again()
        self._told.clear()
        self._peak = self._largest = 0
        begin = getattr(self._step, "begin_call", None)
        if begin is not None:
            begin(training)

    def __call__(self, data: Any) -> Any:
        """Run the step on a batch."""
        samples = self._step.samples(data)
        if self._ran_out is not None:
            (failure, began), self._ran_out = self._ran_out, None
            self._answer_whole(data, samples, failure, began)
        elif samples in self._whole_fits:
            failure, began = None, time.monotonic()
            try:
                outputs = self._step.run(data, None)
            except Exception as error:
                if not self._step.is_oom(error):
                    raise
                failure = self._step.describe(error)
            if failure is None:
                self._count(samples or 0)
                return outputs
            # Here, past the except block, the error and all that its traceback held are free.
            self._answer_whole(data, samples, failure, began)
        return self._run_slowly(data, samples)

    @property
    def whole_sizes(self) -> Collection[int]:
        """The sizes of the batches that run whole, with nothing left to find out about them."""
        has_passed = getattr(self._step, "has_passed", None)
        if has_passed is None or not self._whole_fits:
            return self._whole_fits
        return [samples for samples in self._whole_fits if has_passed(samples)]

    def count_whole(self, steps: int, samples: int, largest: int) -> None:
        """Steps on whole batches of such sizes were done elsewhere.

        Args:
            steps: How many.
            samples: Their samples, together.
            largest: The samples of the largest of them.
        """
        self._count(samples, steps, largest)

    def ran_out(self, failure: tuple[str | None, int | None], began: float) -> None:
        """The batch that is run next has run out of memory elsewhere, whole, and was undone.

        Args:
            failure: Where, and the bytes that were asked for.
            began: When it began.
        """
        self._ran_out = failure, began

    def report(self) -> None:
        """Tell how far the training is; called at its end, and now and then."""
        if self._unreported or self._peak:
            peak = self._step.pool.peak_bytes()
            self._peak = max(self._peak, peak or 0)
            training = self._tell.subject == "batch"
            emit(
                Progress(
                    samples_seen=self._unreported if training else 0,
                    peak_bytes=self._peak or None,
                    predicted_bytes=self._predicted,
                    batch_size=(self._largest or None) if training else None,
                    budget_bytes=self._tell.budget_bytes,
                )
            )
        self._unreported = 0
        self._reported_at = time.monotonic()

    def _count(self, samples: int, steps: int = 1, largest: int | None = None) -> None:
        largest = samples if largest is None else largest
        self._unreported += samples
        sampler.count(samples, steps)
        self._largest = max(self._largest, largest)
        if time.monotonic() - self._reported_at > _PROGRESS_EVERY:
            self.report()
            if self._lean.on:
                self._leave_lean_with_room(largest)

    def _run_slowly(self, data: Any, samples: int | None) -> Any:
        """Run a batch whose slice size is still being looked for, or is not the whole batch."""
        sampler.begin(self._step.pool)
        if samples is None:
            return self._run_unsliceable(data)
        if self.on_first_batch is not None:
            told, self.on_first_batch = self.on_first_batch, None
            self._budget.free(self._step.pool.in_use_bytes())
            told(data, samples, self._budget.nbytes)
        while True:
            in_use = self._step.pool.in_use_bytes()
            free = self._budget.free(in_use)
            if self._start is not None:
                self._begin(self._start, samples)
            if (
                self._search.predict is None
                and free is not None
                and self._options.slice_size is None
            ):
                self._predict(data, samples, free)
                in_use = self._step.pool.in_use_bytes()  # tracing creates what the optimizer keeps
                free = self._budget.free(in_use)
            size = self._choose(data, samples, free)
            lean = self._lean.on and size >= samples
            before = in_use if self._measured.get(size, 0) < 2 else None
            if before is not None:
                self._peak = max(self._peak, self._step.pool.peak_bytes() or 0)
                self._step.pool.reset_peak()
            failure, began = None, time.monotonic()
            try:
                outputs = self._step.run(data, size if size < samples else None)
            except Exception as error:
                if not self._step.is_oom(error):
                    raise
                failure = self._step.describe(error)
            if failure is None:
                need, stayed = None, 0
                if before is not None:
                    need, stayed = self._measure(samples, size, before)
                if not lean:
                    self._search.succeeded(size, free, need, stayed)
                if lean or (size >= samples and self._search.settled(samples, size)):
                    self._whole_fits.add(samples)
                self._count(samples)
                return outputs
            self._answer(data, samples, size, free, failure, began)

    def _measure(self, samples: int, size: int, before: int) -> tuple[int | None, int]:
        """What the step that has just run took, and how much of it is still in use."""
        peak = self._step.pool.peak_bytes()
        need = None if peak is None else peak - before
        stayed = max(0, (self._step.pool.in_use_bytes() or 0) - before)
        self._measured[size] = self._measured.get(size, 0) + 1
        predicted = self._expected(samples, size)
        self._tell.measured(samples, size, before, need, predicted)
        if predicted is not None and self._tell.subject == "batch":
            self._predicted = before + predicted
        return need, stayed

    @property
    def status(self) -> str | None:
        """A word on the last batch's memory, without asking the device; None without a limit."""
        peak = sampler.peak_bytes
        if self._budget.nbytes is None or peak is None or not self._current:
            return None
        if not self._largest:
            return None  # not in this call
        samples, size = next(reversed(self._current.items()))
        return wording.status(peak, self._budget.nbytes, -(-samples // size))

    def _run_unsliceable(self, data: Any) -> Any:
        try:
            return self._step.run(data, None)
        except Exception as error:
            if not self._step.is_oom(error):
                raise
            place, needed = self._step.describe(error)
        raise self._tell.cannot_slice(None, "its arguments share no first axis", place, needed)

    def _choose(self, data: Any, samples: int, free: int | None) -> int:
        """The slice size for this batch; says so when it changes."""
        size = samples if self._lean.on else self._search.propose(samples, free)
        if (
            not self._lean.on
            and self._options.slice_size is None
            and self._lean.is_needed(samples, size, free, self._needs)
        ):
            self._go_lean(samples, wording.lean(self._tell.subject, samples))
            size = samples
        refused = size < samples and not self._may_slice(data)
        if refused:
            if free is not None and self._needs is not None and self._needs(samples) > free:
                self._recompute(data, samples, self._needs(samples) - free)
            size = samples
        before = self._current.get(samples)
        self._current[samples] = size
        if size < samples and size != before:
            if self._options.slice_size is not None:
                self._tell.plan(samples, size, "fixed")  # the user's own, who needs no word of it
            else:
                need = None if self._needs is None else self._needs(samples)
                # As it was reckoned with: a prediction and what it may be off by.
                need = None if need is None else int(need * self._search.doubt)
                self._tell.changed(samples, size, before, need, free)
        elif size >= samples and before is not None and before < samples and not refused:
            self._tell.changed(samples, size, before, None, free)
        elif size < samples and samples not in self._told:
            self._tell.plan(samples, size, "kept")  # said before; a report wants it each time
        self._told.add(samples)
        return size

    def _expected(self, samples: int, size: int) -> int | None:
        """What was predicted for what has just run; None where that was another step."""
        if self._needs is None or ((self._ordered or self._lean.on) and size >= samples):
            return None
        return self._needs(size)

    def _begin(self, start: Start, samples: int) -> None:
        """Begin as a plan says, unless there is less memory than it needs."""
        self._start = None
        budget = self._budget.nbytes
        if budget is not None and start.peak_bytes > budget:
            self._tell.note(wording.plan_too_large(start.peak_bytes, budget))
            return
        if samples != start.batch_size:
            self._tell.note(wording.plan_for_others(start.batch_size, samples))
        self._search.start = start.slice_size
        if start.ordered:
            self._step.put_in_order(start.batch_size)
            self._ordered = True
            self._tell.in_order(samples)
        if start.recompute:
            self._step.recompute(start.recompute)
            self._recompute_search.begin_with(start.recompute)
            size = min(start.slice_size, samples)
            self._tell.recompute(samples, size, start.recompute, "planned")

    def _predict(self, data: Any, samples: int, free: int) -> None:
        """Before the first step: what should it need?"""
        needs = self._look(data, free)
        if needs is None:
            return
        self._needs = self._search.predict = needs
        # Where slices give the same training, starting too small costs a slower first step, and
        # starting too large running out. Where they do not, the whole batch is tried unless it
        # clearly can't fit.
        self._search.doubt = needs.high
        self._search.alike = needs.alike
        self._search.usable = self._step.usable(planned=self._search.start is not None)
        need = needs(samples)
        if need * needs.high > free >= need * needs.low:
            rules = self._step.rules(data)
            if rules.refusal is not None or not rules.exact or rules.unverified is not None:
                self._search.doubt = needs.low

    def _look(self, data: Any, free: int | None) -> Needs | None:
        """What a step should need; None where it does not tell, or there is no room to look at it.

        In a full pool that is met again where the step is run, and answered there.
        """
        if not self._predicts:
            return None
        try:
            return self._step.needs(data, free)
        except Exception as error:
            if not self._step.is_oom(error):
                raise
            self._predicts = False
            return None

    def _recompute(self, data: Any, samples: int, missing: int | None) -> bool:
        """Where slices may not be: keep less for the gradients, and compute it again."""
        blocks = self._recompute_search.next_blocks(data, missing)
        if not blocks:
            return False
        self._step.recompute(blocks)
        # What was seen and predicted was another step.
        self._search = SliceSearch()
        self._needs = None
        self._measured.clear()
        self._tell.recompute(samples, samples, blocks, "recompute")
        return True

    def _go_lean(self, samples: int, text: str = "") -> None:
        """Run whole batches as the framework would, with their old state in the host's memory."""
        self._lean.begin()
        self._current[samples] = samples
        self._tell.plan(samples, samples, "lean", text)

    def _leave_lean_with_room(self, samples: int) -> None:
        free = self._budget.free(self._step.pool.in_use_bytes())
        if self._lean.has_room_without(free) and self._search.propose(samples, free) >= samples:
            self._lean.end()
            self._whole_fits.clear()

    def _may_slice(self, data: Any) -> bool:
        """Whether slicing is possible and allowed; says once what it changes."""
        rules = self._step.rules(data)
        if rules.refusal is not None:
            self._tell.note(wording.whole_because(self._tell.subject, rules.refusal))
            return False
        if not rules.exact:
            why = wording.unlike_whole(rules.coupled, rules.redrawn, rules.calls)
            if self._options.exact:
                self._tell.note(wording.exact_refuses(self._tell.subject, why))
                return False
            layers = [*rules.coupled, *rules.redrawn]
            text = wording.slices_change(why, surely=bool(layers))
            self._tell.note(text, layers=layers)
        if rules.summaries:
            self._tell.note(wording.summaries_of_slices())
        if rules.unverified is not None:
            self._tell.note(wording.unverified(self._tell.subject, rules.unverified))
        return True

    def _answer_whole(
        self,
        data: Any,
        samples: int | None,
        failure: tuple[str | None, int | None],
        began: float,
    ) -> None:
        """After the failure of a whole batch that had fitted before."""
        assert samples is not None
        self._whole_fits.clear()
        self._step.recover()
        free = self._budget.free(self._step.pool.in_use_bytes())
        self._answer(data, samples, samples, free, failure, began)

    def _answer(
        self,
        data: Any,
        samples: int,
        size: int,
        free: int | None,
        failure: tuple[str | None, int | None],
        began: float,
    ) -> None:
        """After a failure: free what it held, choose anew, say so; or give up."""
        place, needed = failure
        self._step.recover()
        seconds = time.monotonic() - began
        if self._lean.on and size >= samples:
            self._lean.failed(samples)
            self._whole_fits.clear()
        else:
            self._search.failed(size, free)
        in_use = self._step.pool.in_use_bytes()

        def tell(text: str, *, broken: bool = False) -> None:
            emit(
                RanOut(
                    text,
                    place=place,
                    needed_bytes=needed,
                    batch_size=samples,
                    slice_size=size,
                    seconds=seconds,
                    broken=broken,
                )
            )

        if self._options.slice_size is not None:
            tell(wording.ran_out(place, needed))
            raise self._does_not_fit(data, size, in_use)
        lean_left = self._lean.is_worth_a_try(samples, self._budget.nbytes)
        smallest = size <= 1 or self._search.exhausted(free)
        if (size >= samples and self._lean.pays(samples, self._needs)) or (smallest and lean_left):
            tell(wording.repeated_lean(self._tell.subject, place, needed, samples))
            self._go_lean(samples)
            return
        if smallest:
            tell(wording.ran_out(place, needed))
            raise self._does_not_fit(data, 1, in_use)
        if self._step.broken_by_oom:
            tell(wording.ran_out(place, needed), broken=True)
            raise OutOfMemoryError(wording.broken(size))
        rules = self._step.rules(data)
        if rules.refusal is not None or (self._options.exact and not rules.exact):
            if self._recompute(data, samples, None):
                tell(wording.repeated_leaner(self._tell.subject, place, needed, samples))
                return
            if lean_left:
                tell(wording.repeated_lean(self._tell.subject, place, needed, samples))
                self._go_lean(samples)
                return
            tell(wording.ran_out(place, needed))
            reason = rules.refusal or wording.unlike_whole(
                rules.coupled, rules.redrawn, rules.calls
            )
            raise self._tell.cannot_slice(
                samples, reason, place, needed, exact=rules.refusal is None
            )
        chosen = self._search.propose(samples, self._budget.free(in_use))
        self._current[samples] = chosen
        tell(wording.repeated(self._tell.subject, place, needed, samples, chosen))
        self._tell.plan(samples, chosen, "oom")

    def _does_not_fit(self, data: Any, size: int, in_use: int | None) -> CannotFitError:
        return self._tell.cannot_fit(
            size,
            in_use,
            self._needs or self._look(data, None),
            self._step.tensors(size),
            fixed=self._options.slice_size is not None,
        )
