"""A step as the guard sees it: something that runs on a batch, whole or in slices."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.nn.parameter import is_lazy

from legroom.backends import patches
from legroom.backends.keras.slices.python_state import PythonState
from legroom.backends.keras.slices.rules import Rules
from legroom.backends.steps import Needs
from legroom.backends.torch.device import errors
from legroom.backends.torch.device.pool import pool_of
from legroom.backends.torch.slices.noise import Rows
from legroom.backends.torch.slices.sliced import Course, Sliced, Uneven
from legroom.backends.torch.slices.trial import Trial
from legroom.backends.torch.step import batch
from legroom.backends.torch.step.arguments import beside_data
from legroom.backends.torch.step.participants import KerasModel, Participants, PlainLoop
from legroom.backends.torch.step.tail import Tail
from legroom.backends.torch.step.undo import Undo
from legroom.backends.torch.step.watching import OtherCourse, Watch, watching
from legroom.core.aside import in_a_line, say_left_out
from legroom.core.errors import CannotFitError
from legroom.core.traces import LayerCost

__all__ = ["Step"]

# Of a step, on batches of a size, in slices of a size.
_FIRST_RUNS = 2
# What PyTorch says where BatchNorm is given a single number for each channel.
_TOO_FEW = "Expected more than 1 value per channel when training"


class Step:
    """A training, test or predict step of Keras, or a hand-written one.

    Args:
        call: The step, on a batch.
        origin: The function behind it.
        parts: Whose state it changes.
        trains: Whether it trains.
        concatenates: Whether its results are one for each sample, as a predict step's are; then
            nothing has to be found out before it is sliced.
        uncompiled: The step op by op, where `call` is compiled: so it runs in slices.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        origin: Any,
        parts: Participants,
        *,
        trains: bool = True,
        concatenates: bool = False,
        uncompiled: Callable[[Any], Any] | None = None,
    ) -> None:
        self._call = call
        self._uncompiled = uncompiled
        self._part = uncompiled or call
        self._origin = origin
        self._parts = parts
        self._trains = trains
        self._rules: Rules | None = Rules(concatenates=True) if concatenates else None
        self._course = Course()
        self.pool = pool_of(parts.device)
        self._undo: Undo | None = None
        self._tail = Tail(self.pool)
        self._kept_gradients: list[tuple[Any, Any]] | None = None
        self._told_results = self._told_course = False
        self._looks_left = 2
        self._runs: Counter[tuple[int | None, int | None]] = Counter()
        # Whether it is the user's own code, which may count in Python.
        self._remembers = not (isinstance(parts, KerasModel) and parts.has_own_step)
        self._least = 1  # samples that a slice must have
        self._counts_first = not isinstance(parts, PlainLoop)
        self._may_start_over = False
        self.done: list[Any] = []  # results of a run, for whom something fails behind it

    def plain(self) -> Callable[[Any], Any]:
        """The step as it runs without legroom."""
        return self._call

    def samples(self, data: Any) -> int | None:
        """The number of samples in a batch."""
        return batch.batch_size(data)

    def run(self, data: Any, slice_size: int | None) -> Any:
        """Run a batch in slices, or whole; out of memory means that nothing has happened."""
        while True:
            try:
                return self._run(data, slice_size)
            except Uneven:
                self._counts_first = True
                continue
            except OtherCourse as found:
                if self._looks_again(data):
                    continue
                other = OtherCourse(found.what, always=found.always)
            except (RuntimeError, IndexError, ValueError) as error:
                if slice_size is None or errors.is_oom(error):
                    raise
                if _TOO_FEW in str(error) and self._least == 1:
                    self._least = 2
                    continue
                other = OtherCourse(f"one of its slices fails: {in_a_line(error)}")
            # Here, past the except block, the error and all that its traceback held are free.
            return self._run_whole_after(data, other)

    def _looks_again(self, data: Any) -> bool:
        """Try the step on other samples, where it does more; whether that was worth it.

        A step may update more on some calls than on others: a GAN's generator every fifth time.
        """
        if not self._looks_left:
            return False
        self._looks_left -= 1
        before, self._rules = (self._rules, self._course), None
        rules, known = self.rules(data), before[1].ends
        longer = len(self._course.ends) > len(known) and self._course.ends[: len(known)] == known
        if rules.refusal is None and longer:
            return True
        self._rules, self._course = before
        return False

    def _run_whole_after(self, data: Any, other: OtherCourse) -> Any:
        """Run a batch whole whose slices do not make up its step."""
        try:
            outputs = self._run(data, None)
        except Exception as error:
            if not errors.is_oom(error):
                raise
        else:
            if other.always:
                self._rules = Rules(refusal=other.what)  # which is told with the next batch
            elif not self._told_course:
                self._told_course = True
                say_left_out("a batch runs whole, because it can't be sliced", other.what)
            return outputs
        raise CannotFitError(
            f"A batch of {batch.batch_size(data)} does not fit, and can't be run in slices: "
            f"{other.what}. Use a smaller batch, or let the step do the same with each part of it."
        )

    def _run(self, data: Any, slice_size: int | None) -> Any:
        samples = batch.batch_size(data)
        size = None if slice_size is None or samples is None else min(slice_size, samples)
        with self._undone(data, (samples, size)) as undo:
            if size is None or samples is None or size >= samples:
                outputs = self._run_whole(data, samples)
            else:
                outputs = self._run_slices(data, samples, size, undo)
        # It has happened: whatever fails from here on, it is not run again.
        self.done.append(outputs)
        self._tail.done()
        undo.settle()
        self._runs[samples, size] += 1
        return outputs

    def _run_whole(self, data: Any, samples: int | None) -> Any:
        self._may_start_over = False
        with watching(self._watch(("whole", samples))):
            return self._call(data)

    def _watch(self, kind: Any, **how: Any) -> Watch:
        def on_update(optimizer: Any) -> None:
            keeps = kind[0] == "slice" and self._course.varies
            self._tail.begin(kind, lambda: self._parts.written(optimizer), keeps=keeps)

        def on_backward() -> None:
            self._keep_gradients()
            if self._parts.updates_early:
                self._tail.begin(kind, lambda: self._parts.written(None), measured=False)

        self._watched = Watch(on_update=on_update, on_backward=on_backward, **how)
        return self._watched

    @contextlib.contextmanager
    def _undone(self, data: Any, kind: tuple[int | None, int | None]) -> Iterator[Undo]:
        """Whatever ends what is inside early, put everything back.

        What it counts in Python is kept before the first runs on batches of a size, which may well
        run out of memory; to look for it each time would take long.
        """
        if self._undo is None or self._parts.has_grown:
            self._undo = Undo(
                self._parts.small_state(),
                self.pool,
                own_draws=isinstance(self._parts, PlainLoop),
                keras_seeds=self._parts.seeds(),
                generators=self._parts.generators(),
            )
        undo = self._undo
        undo.save()
        self._kept_gradients = None
        python: PythonState | None = None
        if self._remembers and self._runs[kind] < _FIRST_RUNS:
            arguments = beside_data(data, self._origin)
            python = PythonState(self._origin, arguments=arguments)
        try:
            yield undo
        except BaseException as error:
            if python is not None and (errors.is_oom(error) or not isinstance(error, Exception)):
                python.restore()  # it is run again, or was interrupted: not so where it raised
            try:
                self._tail.failed(error)  # first: its copy is of the time before the update
            finally:
                self._parts.forget_failed()
                self._put_gradients_back()
                self._parts.rebind()
                undo.restore()
            raise
        self._kept_gradients = None

    def _keep_gradients(self) -> None:
        """Before the first backward pass: keep the gradients that it adds to."""
        if self._kept_gradients is not None:
            return  # what is there by now is of the slices before
        watch = self._watched
        found = [] if watch.cleared else [p for p in self._parts.parameters() if p.grad is not None]
        if self.pool.has_limit() or self._may_start_over:
            self._kept_gradients = [(p, p.grad.detach().to("cpu", copy=True)) for p in found]
        else:
            self._kept_gradients = []

    def _put_gradients_back(self) -> None:
        if self._kept_gradients is None:
            return  # none was touched
        for parameter in self._parts.parameters():
            parameter.grad = None
        for parameter, gradient in self._kept_gradients:
            parameter.grad = gradient.to(parameter.device)

    # Slices.

    def _run_slices(self, data: Any, samples: int, size: int, undo: Undo) -> Any:
        rules = self.rules(data)
        self._may_start_over = rules.counts and not self._counts_first
        pieces = list(batch.slices(data, samples, size, self._least))
        sliced = Sliced(
            self._part,
            self._parts,
            rules,
            self._course,
            undo,
            pieces,
            functools.partial(self._watch, ("slice", samples, size)),
            adds=lambda: bool(self._kept_gradients),
            draws=self._rows(rules, [count for _, count, _ in pieces]),
        )
        if rules.counts and self._counts_first:
            sliced.count_first()
        sliced.run()
        return self._joined(sliced.results, sliced.sizes, rules, sliced.helds)

    def _rows(self, rules: Rules, sizes: Sequence[int]) -> Rows | None:
        """What draws the rows of slices; None where they are drawn as they come."""
        apart = any(draw.way == "apart" for draw in rules.draws)
        if self.pool.device.type != "cpu" or not rules.draws or apart:
            return None
        return Rows(rules.draws, sizes)

    def _joined(
        self, results: Sequence[Any], sizes: Sequence[int], rules: Rules, helds: Sequence[Any]
    ) -> Any:
        """What the whole batch's step would have returned."""
        if self._trains and not self._course.by_keras:
            return self._last_result(results[-1], sizes)
        from legroom.backends.keras.slices.held_metrics import combine, update_held

        held_results: dict[int, tuple[int, Any]] = {}
        if rules.metrics:
            calls = [held.calls for held in helds]
            update_held(rules.metrics, helds[-1].order, calls, sizes, rules.held, batch.concatenate)
            held_results = helds[-1].results
        leaves = [batch.flatten(outputs) for outputs in results]
        ways = rules.outputs or ["last"] * len(leaves[-1])
        if rules.concatenates:
            ways = ["concat" if batch.leading(x) == sizes[-1] else "last" for x in leaves[-1]]
        shares = [size / sum(sizes) for size in sizes]
        merged = [
            rules.metrics[held_results[id(leaves[-1][i])][0]].result()
            if id(leaves[-1][i]) in held_results
            else combine([leaf[i] for leaf in leaves], way, shares, batch.concatenate)
            for i, way in enumerate(ways)
        ]
        return batch.unflatten(results[-1], merged)

    def _last_result(self, result: Any, sizes: Sequence[int]) -> Any:
        """A hand-written step ends once, so it returns what its last slice gave."""
        cut = [x for x in batch.flatten(result) if batch.leading(x) == sizes[-1] != sum(sizes)]
        if cut and not self._told_results:
            self._told_results = True
            name = getattr(self._origin, "__name__", "The step")
            say_left_out(
                f"What {name} returns for each sample is of the last slice only; its loss is that "
                "of the whole batch",
                "the code behind backward() runs once, with the last slice",
            )
        return result

    # What the guard asks.

    def rules(self, data: Any) -> Rules:
        """Whether it may be sliced; found out on the first call."""
        if self._rules is None:
            if any(map(is_lazy, self._parts.parameters())):
                return Rules(refusal="its lazy layers have no weights before their first batch")
            if (lacking := patches.missing("slices")) is not None:
                self._rules = Rules(refusal=lacking)
            else:
                trial = Trial(
                    self._part,
                    self._origin,
                    self._parts,
                    trains=self._trains,
                    compiled=self._uncompiled is not None,
                )
                self._rules, self._course = trial.find(data)
        return self._rules

    def needs(self, data: Any, free: int | None) -> Needs | None:
        """Nothing tells yet what a step should need."""
        return None

    def usable(self, *, planned: bool) -> float:
        """The share of what is free that a size above those that were seen may need."""
        return 1.0

    def tensors(self, samples: int) -> Sequence[tuple[str, int]]:
        """The largest tensors of a slice: not known."""
        return ()

    def layer_costs(self, data: Any) -> tuple[Sequence[LayerCost], bool]:
        """What layers keep for their gradients, in order, and whether neighbours form blocks."""
        samples = batch.batch_size(data)
        if not isinstance(self._parts, KerasModel) or not self._trains or samples is None:
            return (), False
        from legroom.backends.torch.recompute.layer_costs import step_costs

        return step_costs(self._parts.model, samples, data)

    def recompute(self, blocks: Sequence[Sequence[str]]) -> None:
        """Compute these blocks of layers again from now on, instead of keeping them."""
        if isinstance(self._parts, KerasModel):
            from legroom.backends.keras.recompute_blocks import recompute_blocks

            recompute_blocks(self._parts.model, blocks)

    def put_in_order(self, samples: int) -> None:
        """PyTorch runs ops in the order of the code."""

    @property
    def lean_saves(self) -> int:
        """Whole batches take what plain PyTorch takes."""
        return 0

    @property
    def unborn_bytes(self) -> int:
        """State that the first update will create: not known."""
        return 0

    def go_lean(self, lean: bool = True) -> None:
        """Whole batches take what plain PyTorch takes."""

    def is_oom(self, error: BaseException) -> bool:
        """Whether an error means that memory ran out."""
        return errors.is_oom(error)

    def is_about_data(self, error: BaseException) -> bool:
        """Whether PyTorch raises such errors for what is in a batch."""
        return isinstance(error, (RuntimeError, IndexError, ValueError))

    def describe(self, error: BaseException) -> tuple[str | None, int | None]:
        """Where it ran out, and how many bytes were asked for."""
        return errors.describe(error, self._parts.names())

    @property
    def oom_seconds(self) -> float:
        """What running out costs, about."""
        return self.pool.oom_seconds

    @property
    def broken_by_oom(self) -> bool:
        """Running out breaks nothing."""
        return False

    def recover(self) -> None:
        """Free what a failed step left behind."""
        gc.collect()
        self.pool.forget_cached()
