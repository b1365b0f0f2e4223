"""A step run on a few samples, whole and in two slices, without leaving a trace of it.

What agrees tells how its slices make up the step; `backends.keras.slices.judge` says what follows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from legroom.backends.keras.slices import judge
from legroom.backends.keras.slices.few_samples import compare_in_turn
from legroom.backends.keras.slices.own_draws import own_draws
from legroom.backends.keras.slices.python_state import PythonState, iterators
from legroom.backends.keras.slices.rules import OVERWRITTEN, Refused, Rules
from legroom.backends.keras.slices.runs import Run
from legroom.backends.torch.device.errors import is_oom
from legroom.backends.torch.device.pool import pool_of
from legroom.backends.torch.slices.as_arrays import as_array
from legroom.backends.torch.slices.few_samples import in_two, unlike
from legroom.backends.torch.slices.loss_terms import noting
from legroom.backends.torch.slices.no_writes import BY_HAND, not_written
from legroom.backends.torch.slices.noise import Still, draws_of
from legroom.backends.torch.slices.sliced import Course, Sliced, holding_metrics, without_steps
from legroom.backends.torch.slices.thinned import Thinned
from legroom.backends.torch.step import batch
from legroom.backends.torch.step.adopting import adopting
from legroom.backends.torch.step.arguments import beside_data
from legroom.backends.torch.step.participants import KerasModel, Participants, PlainLoop
from legroom.backends.torch.step.reach import calls_of
from legroom.backends.torch.step.undo import Undo
from legroom.backends.torch.step.watching import SliceEnd, Watch, watching

__all__ = ["Trial"]

_SEVERAL = "it updates its weights several times for one batch"


class Trial:
    """Finds out how a step's slices make up the step.

    Args:
        call: The step.
        origin: The function behind it, whose memory in Python is looked at.
        parts: Whose state it changes.
        trains: Whether it trains.
        compiled: Whether whole batches are compiled, which draw other numbers then.
    """

    def __init__(
        self,
        call: Callable[[Any], Any],
        origin: Any,
        parts: Participants,
        *,
        trains: bool,
        compiled: bool = False,
    ) -> None:
        self._call = call
        self._origin = origin
        self._parts = parts
        self._trains = trains
        self._compiled = compiled
        self._pool = pool_of(parts.device)
        self._grads: list[tuple[Any, Any]] = []
        self._thin = Thinned()
        self._norms: list[Any] = []
        self._arguments: list[tuple[str, Any]] = []
        # Where generators of Python and NumPy were after the last run.
        self._drawn: dict[str, str] = {}
        self._halves = False  # whether anything is computed in half precision

    def find(self, data: Any) -> tuple[Rules, Course]:
        """Compare a few samples of a batch, whole and in slices."""
        nothing = Course((1,))
        samples = batch.batch_size(data)
        if samples is None:
            return Rules(refusal="its arguments do not share a first axis of samples"), nothing
        if samples < 2:
            return Rules(refusal="its batch is a single sample"), nothing
        if isinstance(self._parts, KerasModel) and self._parts.overwrites:
            return Rules(refusal=OVERWRITTEN), nothing
        if self._trains and _is_distributed():
            why = "it trains in several processes at once, which have to take the same steps"
            return Rules(refusal=why), nothing
        if self._parts.updates_early:
            return Rules(refusal="a hook on its weights acts on their gradients at once"), nothing
        self._arguments = beside_data(data, self._origin)
        if taken := iterators(self._origin, self._arguments):
            why = f"it takes from {', '.join(taken)}, and each slice would take more"
            return Rules(refusal=why), nothing
        self._norms = _training_norms(self._parts)
        problem = None
        for few in dict.fromkeys((min(4, samples), 2)):
            try:

                def compare(picked: list[int], few: int = few) -> tuple[Rules, Course]:
                    return self._compare(batch.pick(data, picked, samples), few, samples)

                return compare_in_turn(unlike(data, samples, few), samples, compare)
            except Refused as refusal:
                return Rules(refusal=str(refusal)), nothing
            except Exception as error:
                if not is_oom(error):
                    why = f"it does not run on a part of its batch: {_line(error)}"
                    return Rules(refusal=why), nothing
                problem = f"{few} samples were too much for a comparison"
            gc.collect()
            self._pool.forget_cached()
        return Rules(refusal=f"whether slices are the same is not known: {problem}"), nothing

    def _compare(self, tiny: Any, few: int, samples: int) -> tuple[Rules, Course]:
        course = self._course(tiny) if self._trains else Course()
        if changed := self._changes_again(tiny, course):
            before = "" if course.by_keras else " before backward()"
            raise Refused(
                f"it changes {', '.join(changed)}{before}, which each slice would change again"
            )
        whole = self._run([tiny], [few], course)
        drawn = self._drawn
        sizes = [1, few - 1]
        pieces = [part for _, _, part in in_two(tiny, few)]
        parts = self._run(pieces, sizes, course)
        # Numbers for each sample come one after the other; one for the batch comes in each slice.
        drawn_alike = drawn == self._drawn
        judge.refuse_other_course(whole, parts, samples)
        near = judge.Near(self._halves)
        judge.refuse_no_numbers(whole, parts, near)
        terms, coupled = judge.term_rules(whole, parts, near)
        totals = judge.total_counts(whole, parts)
        draws = draws_of(whole.draws[0], parts.draws, sizes)
        if self._pool.device.type != "cpu":
            draws = [dataclasses.replace(draw, way="apart") for draw in draws]
        rules = Rules(applies=1, terms=terms, counts=bool(totals), draws=draws)
        if totals or any(terms):
            parts = self._run(pieces, sizes, course, rules, totals)
        gradients = judge.gradient_rules(whole, parts, near) if self._trains else ["mean"]
        judge.refuse_unshown(terms, gradients, whole, parts)
        ways = [draw.way for draw in rules.draws]
        if "rows" in ways or "cut" in ways:
            # Numbers that are sorted, or not in the order of the samples, are no rows.
            one = self._run([tiny], [few], course, rules, totals, draws=rules.draws)
            cut = self._run(pieces, sizes, course, rules, totals, draws=rules.draws)
            unlike = None not in gradients and None in judge.gradient_rules(one, cut, near)
            if unlike or self._compiled:
                apart = [dataclasses.replace(draw, way="apart") for draw in rules.draws]
                rules = dataclasses.replace(rules, draws=apart)
        moved = [name for name in whole.moved if name in parts.moved]
        if None in gradients and not coupled and not moved:
            hooked = any(p._backward_hooks for p in self._parts.parameters())
            coupled = ["a hook on the gradients" if hooked else "the loss of the step"]
            if layer := self._elsewhere():
                raise Refused(
                    f"{layer} has batch_first=False: the samples are not along the first axis of "
                    "its data, and a batch is cut along that one"
                )
            if not course.by_keras:
                twice = batch.map_leaves(
                    lambda x: batch.concatenate([x, x]) if batch.leading(x) == few else x, tiny
                )
                doubled = self._run([twice], [2 * few], course)
                gradients = list(judge.coupled_rules(whole, doubled, near))
        agree = not coupled and None not in gradients
        keras = isinstance(self._parts, KerasModel)
        own = isinstance(self._parts, KerasModel) and self._parts.has_own_step
        resumes = not (keras and rules.counts)
        noise = judge.own_noise(
            whole, parts, agree=agree and drawn_alike, resumes=resumes, known=own
        )
        if noise:
            coupled = []  # what does not agree has its reason
        if len(course.ends) > 1 and (not agree or noise or len({*gradients}) > 1):
            raise Refused(f"{_SEVERAL}, and whether slices make the same updates is not known")
        rules = dataclasses.replace(rules, gradients=gradients)
        if self._trains and not course.by_keras and agree and not noise:
            self._refuse_unless_sums(pieces, course, rules, totals, whole, near)
            if list(totals) == [0] and len(course.ends) == 1:
                double = {0: 2 * totals[0]}
                halved = self._run([tiny], [few], course, rules, double)
                course = dataclasses.replace(course, one_count=judge.halves(whole, halved))
        rules = self._look_at_state(rules, whole, parts, near)
        rules = self._look_at_held_updates(rules, tiny, pieces, sizes, course, totals, near)
        redrawn = self._redrawn() if any(d.way == "apart" for d in rules.draws) else []
        outputs = judge.output_ways(judge.output_rules(whole, parts, near), whole.results)
        return (
            dataclasses.replace(
                rules,
                coupled=list(dict.fromkeys([*whole.batch_norms, *rules.coupled, *coupled])),
                redrawn=[*redrawn, *noise],
                outputs=outputs,
            ),
            course,
        )

    def _look_at_state(self, rules: Rules, whole: Run, parts: Run, near: judge.Near) -> Rules:
        """What it writes besides its weights: does it come out the same?"""
        unlike = judge.unlike_state(whole, parts, (), near)
        if not unlike:
            return rules
        if not isinstance(self._parts, KerasModel):
            names = list(dict.fromkeys(owner.name for owner in unlike.values()))
            return dataclasses.replace(rules, coupled=[*rules.coupled, *names])
        from legroom.backends.keras.models.variable_owners import layer_of, metrics_by_variable

        model = self._parts.model
        metrics, layers = judge.owners(
            unlike, metrics_by_variable(), lambda v: layer_of(model, v._value)
        )
        return dataclasses.replace(rules, metrics=metrics, coupled=layers)

    def _look_at_held_updates(
        self,
        rules: Rules,
        tiny: Any,
        pieces: Sequence[Any],
        sizes: list[int],
        course: Course,
        totals: dict[int, Any],
        near: judge.Near,
    ) -> Rules:
        """The metrics that are to be told of the whole batch at once: how that is put together."""
        if not rules.metrics:
            return rules
        whole = self._run([tiny], [sum(sizes)], course, rules, totals)
        parts = self._run(pieces, sizes, course, rules, totals)
        held = judge.held_rules(whole, parts, near)
        if held is not None:
            return dataclasses.replace(rules, held=held)
        # Told something that slices can't be put together to, each counts for itself.
        names = [metric.name for metric in rules.metrics]
        return dataclasses.replace(rules, metrics=(), coupled=[*rules.coupled, *names])

    def _changes_again(self, tiny: Any, course: Course) -> list[str]:
        """What it changes in Python each time, and not the first time only."""

        def run() -> None:
            watch = Watch(
                last=False,
                ends=course.ends,
                on_trial=lambda *given: None,
                on_update=_end,
            )
            with (
                Still(),
                watching(watch),
                self._without_steps(),
                contextlib.suppress(SliceEnd),
            ):
                self._call(tiny)
            self._parts.forget_failed()

        def summed_up() -> list[Any]:
            """Two numbers a gradient: copies of all of them would need room."""
            self._clear_gradients()
            run()
            found = [p.grad for p in self._parts.parameters() if p.grad is not None]
            return [(float(g.sum()), float(g.norm())) for g in found]

        with self._undone():
            one = summed_up()
            first, carried = self._python.changed(), self._python.carried()
            if not first and not carried:
                return []
            again = PythonState(self._origin, arguments=self._arguments)
            other = summed_up()
            # Tensors that are kept to be looked at later do not matter to the next run.
            same = len(one) == len(other) and np.allclose(one, other, rtol=1e-4, equal_nan=True)
            return [*again.changed(), *([] if same else carried)]

    def _changed_buffers(self, undo: Undo) -> Iterator[tuple[str, Any, Any, Any]]:
        """The buffers that are others now: whose, which, and what they held and hold."""
        if not isinstance(self._parts, PlainLoop):
            return
        before = {id(tensor): twin for tensor, twin in undo.changed()}
        for name, tensor, now in self._parts.buffers():
            if now is not tensor:
                yield name, tensor, tensor, now
            elif id(tensor) in before:
                yield name, tensor, before[id(tensor)], tensor

    def _elsewhere(self) -> str | None:
        """A layer whose samples are not along the first axis, by its name."""
        if not isinstance(self._parts, PlainLoop):
            return None
        names = self._parts.names()
        return next(
            (
                names[id(x)]
                for module in self._parts.modules
                for x in module.modules()
                if getattr(x, "batch_first", None) is False
            ),
            None,
        )

    def _redrawn(self) -> list[str]:
        """The layers that draw, by their names; "the step" where none is known."""
        from torch.nn.modules.dropout import _DropoutNd

        found = []
        if isinstance(self._parts, KerasModel):
            found = [x.name for x in self._parts.model._flatten_layers() if _has_seeds(x)]
        elif isinstance(self._parts, PlainLoop):
            names = self._parts.names()
            found = [
                names[id(x)]
                for module in self._parts.modules
                for x in module.modules()
                if isinstance(x, _DropoutNd) and x.training and x.p
            ]
        return found or ["the step"]

    # Running it.

    def _course(self, tiny: Any) -> Course:
        """Run it whole, and see what it does."""
        moved: dict[int, set[int]] = {}  # by the number of backward passes before an update
        held: dict[int, set[int]] = {}  # by that before a backward pass, what has a gradient
        written: list[int] = []
        by_keras = False

        def on_trial(optimizer: Any, gradients: Any, variables: Any) -> None:
            nonlocal by_keras
            by_keras = True
            moved[watch.count] = set()
            if not _are_own_gradients(gradients, variables):
                raise Refused(
                    "it hands other gradients to its optimizer than those that backward() has left "
                    "in .grad"
                )

        def on_update(optimizer: Any) -> None:
            raise SliceEnd  # of an optimizer that was not known

        def on_step(optimizer: Any) -> None:
            weights = [p for group in optimizer.param_groups for p in group["params"]]
            moved.setdefault(watch.count, set()).update(map(id, weights))

        def on_backward() -> None:
            if written:
                raise Refused(BY_HAND)  # each slice that is run for this update would write again
            held[watch.count] = {id(p) for p in self._parts.parameters() if _has_gradient(p)}

        def on_write() -> None:
            # Behind an update is where averages of weights are made: once, by the last slice. With
            # an optimizer of Keras every slice runs to its end.
            if by_keras or watch.count not in moved:
                raise Refused(BY_HAND)
            written.append(watch.count)

        watch = Watch(on_trial=on_trial, on_update=on_update, on_backward=on_backward)
        with (
            self._undone(),
            not_written(self._parts.weights(), on_write),
            self._without_steps(on_step),
            contextlib.suppress(SliceEnd),
            watching(watch),
        ):
            for parameter in self._parts.parameters():
                if parameter.requires_grad and not isinstance(self._parts, KerasModel):
                    parameter.grad = torch.ones_like(parameter)
            self._call(tiny)
        if not watch.count:
            raise Refused("it does not call backward()")
        # Several optimizers may move after one backward pass: that is one update.
        ends = tuple(moved) or (watch.count,)
        if ends[-1] != watch.count or (by_keras and len(ends) > 1):
            raise Refused(_SEVERAL)
        if len(ends) > 1 and any(
            held[begin] & moved[end] for begin, end in zip((0, *ends), ends, strict=False)
        ):
            raise Refused(f"{_SEVERAL}, and does not clear their gradients before")
        found = tuple(frozenset(weights) for weights in moved.values())
        if by_keras:
            return Course()
        things = [value for _, value in self._arguments]
        return Course(ends, found, varies=calls_of("backward", self._origin, things) > len(ends))

    def _without_steps(
        self, tell: Callable[[Any], None] = lambda optimizer: None
    ) -> contextlib.AbstractContextManager[None]:
        """Optimizers of PyTorch do not move, and are noted."""

        def moved(optimizer: Any, *args: Any, closure: Any = None) -> None:
            if args or closure is not None:
                raise Refused("its optimizer calls a closure, several times for one batch")
            tell(optimizer)

        return without_steps(getattr(self._parts, "optimizers", ()), moved)

    def _run(
        self,
        pieces: Sequence[Any],
        sizes: list[int],
        course: Course,
        rules: Rules | None = None,
        totals: dict[int, Any] | None = None,
        *,
        draws: Sequence[Any] = (),
    ) -> Run:
        """Run it on some slices, one after another, and undo all it did."""
        run = Run(sizes)
        rules = rules or Rules()
        with self._undone() as undo:
            for piece, size in zip(pieces, sizes, strict=True):
                gradients: list[list[Any]] = []

                def caught(
                    optimizer: Any, given: Any, variables: Any, into: list[list[Any]] = gradients
                ) -> None:
                    into.append([self._thin((len(into), i), g) for i, g in enumerate(given)])

                share = None if len(sizes) == 1 else size / sum(sizes)

                def ended(watch: Watch, passes: int, into: list[list[Any]] = gradients) -> None:
                    into.append(self._gradients_of(course, len(into)))

                watch = Watch(
                    last=False,
                    ends=course.ends,
                    on_end=ended if self._trains else lambda watch, passes: None,
                    on_trial=caught,
                    on_update=_end,
                )
                self._clear_gradients()
                self._parts.forget_failed()
                undo.restore_seeds()
                outputs: Any = None
                with (
                    Still(draws, start=sum(sizes[: len(run.outputs)])) as still,
                    watching(watch),
                    noting(self._parts, share, rules, totals) as seen,
                    holding_metrics(rules.metrics) as held,
                    self._noting_results() as results,
                    self._without_steps(),
                    contextlib.suppress(SliceEnd),
                ):
                    outputs = self._call(self._parts.as_slice(piece))
                calls = [] if held is None else held.calls
                run.held.append([[as_array(x) for x in batch.flatten(call)] for call in calls])
                if seen.weighted:
                    gradients = [[x if x is None else x / share for x in g] for g in gradients]
                run.gradients.append(gradients)
                leaves = batch.flatten(outputs)
                run.results = {i for i, leaf in enumerate(leaves) if id(leaf) in results}
                run.outputs.append([as_array(x) for x in leaves])
                run.draws.append(still.draws)
                self._halves = self._halves or still.halves
                run.terms.append([as_array(x) for x in seen.terms])
                run.names = seen.names
                run.counts.append({k: as_array(x) for k, x in seen.counts.items()})
                names = self._parts.names()
                norms = [names.get(id(x), type(x).__name__) for x in self._norms]
                run.batch_norms = [*seen.batch_norms, *norms]
            if isinstance(self._parts, KerasModel):
                variables = {id(v._value): v for v in self._parts.small_variables()}
                for tensor, before in undo.changed():
                    if id(tensor) in variables:
                        run.written[id(tensor)] = (
                            variables[id(tensor)], as_array(before), as_array(tensor)
                        )  # fmt: skip
            else:
                run.written = {
                    id(tensor): (_Owner(name), as_array(before), as_array(now))
                    for name, tensor, before, now in self._changed_buffers(undo)
                }
            self._drawn = {**self._own_draws.drawn(), **self._python.drawn()}
            run.moved = list(self._drawn)
        return run

    def _noting_results(self) -> contextlib.AbstractContextManager[Any]:
        """What a model's metrics give as their results; nothing for a plain loop."""
        if not isinstance(self._parts, KerasModel):
            return contextlib.nullcontext({})
        from legroom.backends.keras.slices.held_metrics import noting_results

        return noting_results(self._parts.model.metrics)

    def _refuse_unless_sums(
        self,
        pieces: Sequence[Any],
        course: Course,
        rules: Rules,
        totals: dict[int, Any],
        whole: Run,
        near: judge.Near,
    ) -> None:
        """Gradients of slices have to add up in `.grad`, as they will."""
        sums: list[list[Any]] = []
        starts = (0, batch.batch_size(pieces[0]) or 1)
        with self._undone() as undo, self._without_steps(), contextlib.suppress(SliceEnd):
            self._clear_gradients()
            sliced = Sliced(
                self._call,
                self._parts,
                rules,
                course,
                undo,
                [(a, batch.batch_size(x) or 1, x) for a, x in zip(starts, pieces, strict=True)],
                functools.partial(Watch, on_update=_end),
                on_end=lambda: sums.append(self._gradients_of(course, len(sums))),
                draws=Still(),
            )
            sliced.use_totals(totals)
            sliced.run()
        for gradients, made in zip(whole.gradients[0], sums, strict=True):
            pairs = [(a, b) for a, b in zip(gradients, made, strict=True) if a is not None]
            largest = max((np.abs(a).max() for a, _ in pairs if a.size), default=0)
            if not all(b is not None and near(a, b, floor=largest) for a, b in pairs):
                raise Refused("its own code clears or sets .grad, so slices do not add up")

    @contextlib.contextmanager
    def _undone(self) -> Iterator[Undo]:
        """Put everything back that is changed inside."""
        undo = Undo(self._parts.small_state(), self._pool, generators=self._parts.generators())
        undo.save()
        self._python = PythonState(self._origin, arguments=self._arguments)
        numbers_back = self._parts.numbers_as_now()
        self._grads = [(p, p.grad) for p in self._parts.parameters()]
        said = io.StringIO()  # what it prints is for the real step to say
        try:
            with (
                own_draws() as self._own_draws,
                adopting(self._parts),
                _still(self._norms),
                contextlib.redirect_stdout(said),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                yield undo
        finally:
            self._parts.rebind()
            undo.restore()
            self._python.restore()
            numbers_back()
            self._parts.forget_failed()
            for parameter, gradient in self._grads:
                parameter.grad = gradient

    def _gradients_of(self, course: Course, update: int) -> list[Any]:
        """The gradients of an update's own weights, those of others being left over."""
        own = course.moved[update] if len(course.ends) > 1 else None
        return [
            self._thin(id(p), p.grad) if own is None or id(p) in own else None
            for p in self._parts.parameters()
        ]

    def _clear_gradients(self) -> None:
        for parameter in self._parts.parameters():
            parameter.grad = None


class _Owner(NamedTuple):
    """The module that a buffer is of."""

    name: str


@contextlib.contextmanager
def _still(norms: Sequence[Any]) -> Iterator[None]:
    """BatchNorm modules by their running statistics, which do not couple samples."""
    hooks = [norm.register_forward_pre_hook(_be_still) for norm in norms]
    for norm in norms:
        norm.training = False
    try:
        yield
    finally:
        for hook, norm in zip(hooks, norms, strict=True):
            hook.remove()
            norm.training = True


def _be_still(norm: Any, args: Any) -> None:
    norm.training = False  # a layer of Keras's puts the modules inside of it in order


def _training_norms(parts: Participants) -> list[Any]:
    kind = torch.nn.modules.batchnorm._BatchNorm
    modules = [parts.model] if isinstance(parts, KerasModel) else getattr(parts, "modules", ())
    return [
        x
        for module in modules
        for x in module.modules()
        if isinstance(x, kind) and x.training and x.track_running_stats
    ]


def _has_gradient(parameter: Any) -> bool:
    gradient = parameter.grad
    return gradient is not None and (gradient.is_sparse or bool(gradient.any()))


def _end(optimizer: Any) -> None:
    raise SliceEnd


def _are_own_gradients(gradients: Any, variables: Any) -> bool:
    if gradients is None or variables is None:
        return False
    return all(g is None or g is v.value.grad for g, v in zip(gradients, variables, strict=False))


def _has_seeds(layer: Any) -> bool:
    return bool(getattr(layer, "_seed_generators", ())) and bool(getattr(layer, "rate", 1))


def _is_distributed() -> bool:
    distributed = torch.distributed
    return bool(
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def _line(error: BaseException) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    # Keras tells first in which layer it was.
    lines = [line for line in lines if not line.startswith("Exception encountered when")] or lines
    return f"{type(error).__name__}: {(lines or [''])[0][:160]}"
