"""One batch, slice by slice: gradients add up, and each update is made once.

A step that updates several times, as a GAN's does, has to see for each update the weights that the
update before has left. Its slices are run up to the first update; the last slice makes it and runs
on to the backward pass of the next one. There the others are run again, up to the same place, and
without what was made already: their gradients are added, and the last slice updates again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from legroom.backends import patches
from legroom.backends.keras.slices.rules import Rules
from legroom.backends.parts import TORCH_OPTIMIZER
from legroom.backends.torch.slices.counted_losses import Counted, counting
from legroom.backends.torch.slices.noise import Rows, Still
from legroom.backends.torch.step.participants import KerasModel, Participants
from legroom.backends.torch.step.undo import Undo
from legroom.backends.torch.step.watching import OtherCourse, SliceEnd, Watch, watching

__all__ = ["Course", "Sliced", "Uneven", "holding_metrics", "without_steps"]

# Where a slice begins among the samples of a batch, its samples, and the slice.
_Piece = tuple[int, int, Any]


@dataclasses.dataclass(frozen=True)
class Course:
    """What a step does, one after the other.

    Attributes:
        ends: The backward passes with which each of its updates has all its gradients. Empty where
            optimizers of Keras update: there a slice is run to its end.
        moved: For each of them the weights that it moves, by their ids; empty where that is not
            known.
        one_count: Whether one loss, divided by what it counts, is all that the gradients are of:
            what they were divided by can be mended afterwards.
        varies: Whether its code has more backward passes than it made when it was tried: it may
            make them on other calls.
    """

    ends: tuple[int, ...] = ()
    moved: tuple[frozenset[int], ...] = ()
    one_count: bool = False
    varies: bool = False

    @property
    def by_keras(self) -> bool:
        """Whether optimizers of Keras update."""
        return not self.ends


class Uneven(BaseException):
    """Slices count differently, and what they were divided by can't be mended afterwards."""


class Sliced:
    """One batch of a step, to be run in slices.

    Args:
        call: The step.
        parts: Whose state it changes.
        rules: How slices make up the step.
        course: What the step does, one after the other.
        undo: Small state, as it was before the step.
        pieces: The slices.
        make_watch: Makes what a slice is watched by.
        adds: Whether gradients of earlier calls were there before.
        on_end: Called in the last slice when all gradients of an update are there.
        draws: What has slices draw the numbers of the whole batch, where that can be.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        parts: Participants,
        rules: Rules,
        course: Course,
        undo: Undo,
        pieces: Sequence[_Piece],
        make_watch: Callable[..., Watch],
        *,
        adds: Callable[[], bool] = lambda: False,
        on_end: Callable[[], None] = lambda: None,
        draws: Rows | Still | None = None,
    ) -> None:
        self._call = call
        self._parts = parts
        self._rules = rules
        self._course = course
        self._undo = undo
        self._pieces = pieces
        self._make_watch = make_watch
        self._adds = adds
        self._on_end = on_end
        self.sizes = [count for _, count, _ in pieces]
        self.results: list[Any] = []
        self.helds: list[Any] = []
        self._draws = draws
        self._seeds: dict[int, Any] = {}
        self._totals: dict[int, Any] = {}
        self._counted: dict[int, Counted] = {}
        self._losses: list[list[Any]] = [[] for _ in pieces]
        self._weights = [
            1.0 if rules.gradients[0] == "sum" else size / sum(self.sizes) for size in self.sizes
        ]
        self._counts_first = False

    def count_first(self) -> None:
        """Find what the whole batch's losses are divided by, where that is not its samples."""
        self._counts_first = True
        ends = self._course.ends or (1,)
        for _, _, part in self._pieces:
            scale = self._scale(None)
            with (
                _scaling(scale),
                watching(Watch(last=False, made=ends[-1], ends=ends)),
                self._nothing_made(),
                torch.no_grad(),
                contextlib.suppress(SliceEnd),
            ):
                self._call(self._parts.as_slice(part))
            for term, count in scale.counts.items():
                count = count.detach().float()
                self._totals[term] = self._totals[term] + count if term in self._totals else count
        self._undo.restore()

    def use_totals(self, totals: dict[int, Any]) -> None:
        """The same, where they are known."""
        self._counts_first = True
        self._totals = dict(totals)

    def run(self) -> None:
        """Run all slices."""
        ends = self._course.ends
        last = len(self._pieces) - 1
        with contextlib.nullcontext() if self._draws is None else self._draws:
            for number in range(last):
                self._run_slice(number, 0, ends[:1])
                if not number and self._draws is None:
                    self._undo.note_seeds()
            self._run_slice(last, 0, ends)
            if self._draws is None:
                self._undo.restore_noted_seeds()

    def _run_slice(self, number: int, made: int, ends: Sequence[int]) -> None:
        """Run one slice.

        Args:
            number: Which.
            made: The backward passes whose update was made before.
            ends: The backward passes with which updates have all their gradients.
        """
        last = number == len(self._pieces) - 1
        _, count, part = self._pieces[number]
        scale = self._scale(count / sum(self.sizes))
        if isinstance(scale, Counted) and not self._counts_first:
            self._counted[number] = scale
        self._seed(number, again=bool(made))

        def weight() -> float:
            return 1.0 if getattr(scale, "weighted", ()) else self._weights[number]

        def on_end(watch: Watch, passes: int) -> None:
            if last and passes != ends[0]:
                self._add_others(ends[ends.index(passes) - 1], passes)
            known = 0 if made else len(self._losses[number])
            self._losses[number] += [value for _, value in watch.losses[known:]]
            if last:
                self._show_whole_loss(watch, self._mend_counts())
                self._on_end()

        watch = self._make_watch(
            share=weight,
            first=number == 0 and not made,
            last=last,
            made=made,
            ends=ends,
            on_end=on_end,
        )
        with (
            _scaling(scale),
            holding_metrics(self._rules.metrics) as held,
            watching(watch),
            contextlib.suppress(SliceEnd),
        ):
            self.results.append(self._call(self._parts.as_slice(part)))
        if ends and (watch.count not in ends if last else watch.count != ends[-1]):
            raise OtherCourse("a slice of it returns before backward()")
        self.helds.append(held)

    def _add_others(self, made: int, end: int) -> None:
        """Run the other slices once more, for the gradients of a later update."""
        aside = Undo(
            self._parts.small_state(),
            self._undo.pool,
            own_draws=True,
            generators=self._parts.generators(),
        )
        aside.save()
        place = None if self._draws is None else self._draws.place
        for number in range(len(self._pieces) - 1):
            with self._nothing_made():
                self._run_slice(number, made, [end])
            aside.restore()
        if self._draws is not None and place is not None:
            self._draws.go_to(*place)

    @contextlib.contextmanager
    def _nothing_made(self) -> Iterator[None]:
        """Optimizers do not move, and schedulers and scalers are as before at the end."""
        with self._parts.numbers_aside(), without_steps(getattr(self._parts, "optimizers", ())):
            yield

    def _seed(self, number: int, *, again: bool) -> None:
        """Have a slice draw what it is to draw, and the same numbers when it is run again."""
        if self._draws is not None:
            self._draws.go_to(number)
            if number or again:
                self._undo.restore_keras_seeds()
        elif again:
            self._undo.set_seeds(self._seeds[number])
        elif len(self._course.ends) > 1:
            self._seeds[number] = self._undo.seeds_now()

    def _scale(self, share: float | None) -> Any:
        """What corrects the losses of a slice; without a share, what counts in it."""
        rules = self._rules
        if rules.concatenates:
            return None
        if not isinstance(self._parts, KerasModel):
            return Counted(share, self._totals) if rules.counts else None
        from legroom.backends.keras.slices.loss_scale import Scale

        return Scale() if share is None else Scale(share, rules.terms, self._totals)

    def _mend_counts(self) -> float:
        """Divide gradients by what all slices count, where the first one was not like the others.

        Returns:
            What the loss has to be multiplied by, too.

        Raises:
            Uneven: Where something else is in the gradients.
        """
        factors = [1.0]
        for number, total in self._totals.items() if self._counted else ():
            true = float(sum(one.counts.get(number, 0.0) for one in self._counted.values()))
            factors.append(float(total) / true if true else 1.0)
        if all(abs(factor - 1) < 1e-6 for factor in factors):
            return 1.0
        if not self._course.one_count or self._adds():
            raise Uneven
        found = [p.grad for p in self._parts.parameters() if p.grad is not None]
        torch._foreach_mul_(found, factors[-1])
        return factors[-1]

    def _show_whole_loss(self, watch: Watch, factor: float) -> None:
        """Have the last slice's losses hold those of the whole batch: they are read and logged."""
        for number, (tensor, _) in enumerate(watch.losses):
            parts = [
                weight * values[number]
                for weight, values in zip(self._weights, self._losses, strict=True)
                if number < len(values)
            ]
            total = factor * torch.stack([part.reshape(()) for part in parts]).sum()
            tensor.data.copy_(total.reshape(tensor.shape))
            for scaler, given, made in watch.scaled:
                if made is tensor:
                    given.data.copy_((total / scaler._scale).reshape(given.shape))


@contextlib.contextmanager
def holding_metrics(metrics: Sequence[Any]) -> Iterator[Any]:
    """Hold back what is told to these metrics while the context lasts; nothing for none."""
    if not metrics:
        yield None
        return
    from legroom.backends.keras.slices.held_metrics import holding

    with holding(metrics) as held:
        yield held


@contextlib.contextmanager
def without_steps(
    optimizers: Sequence[Any], tell: Callable[..., None] = lambda *given, **named: None
) -> Iterator[None]:
    """Optimizers of PyTorch do not move; it is told which would have, and what it was given."""

    def standing(optimizer: Any) -> Callable[..., None]:
        def step(*args: Any, **kwargs: Any) -> None:
            tell(optimizer, *args, **kwargs)

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # else it warns
        return step

    with contextlib.ExitStack() as stack:
        for one in optimizers:
            stack.enter_context(patches.shadowed(one, TORCH_OPTIMIZER, "step", standing(one)))
        yield


def _scaling(scale: Any) -> contextlib.AbstractContextManager[Any]:
    if scale is None:
        return contextlib.nullcontext()
    if isinstance(scale, Counted):
        return counting(scale)
    from legroom.backends.keras.slices.loss_scale import scaling

    return scaling(scale)
