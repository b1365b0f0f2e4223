"""The three ways to an estimate, behind one interface, and the choice between them.

*compiled*: XLA's own figures, for steps that it compiles. *probed*: a child process runs the step
at two small sizes, and what it allocated is carried over. *traced*: the step's graph is walked by
the executor's rules; nothing runs, so it also serves for machines that are not here.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import time
from collections.abc import Callable
from typing import Any

from legroom.backends.base import current
from legroom.backends.tensorflow.forecast.breakdown import by_kind, by_layer, kind_of, plain_name
from legroom.backends.tensorflow.forecast.ordering import orderer
from legroom.backends.tensorflow.forecast.replay import (
    Replay,
    look_closer,
    replay,
    replays,
    smallest_pool,
)
from legroom.backends.tensorflow.forecast.script import Script
from legroom.backends.tensorflow.forecast.xla_script import write_compiled
from legroom.core.errors import LegroomError, UnsupportedModel
from legroom.core.garbage import collected_later
from legroom.core.series import thinned
from legroom.core.units import parse_size
from legroom.prediction.estimate import BREAKDOWN, Estimate

__all__ = ["SOURCES", "Prediction", "estimate", "read_batch_size", "read_count"]

SOURCES = ("auto", "compiled", "probed", "traced")
# How far each source may be off, below and above: from benchmarks/accuracy.py.
_MARGINS = {"probed": (0.12, 0.16), "traced": (0.25, 0.30), "compiled": (0.02, 0.03)}
# With several threads the order of ops is a matter of chance.
_MARGINS_WITH_THREADS = {"probed": (0.20, 0.25), "traced": (0.25, 0.40)}
# In a small pool it is chance which chunk is free and too large: that is worth this much, at most.
_SLACK = 4 * 2**20
# Beyond these shares of the budget a traced figure answers the question.
_FAR_BELOW, _FAR_ABOVE = 0.5, 2.0
# No machine has room for more.
_MOST = 10**9
_MOST_TIMELINE = 4000


def estimate(
    model: Any,
    batch_size: int = 32,
    *,
    method: str = "fit",
    data: Any = None,
    length: int | None = None,
    memory: str | int | None = None,
    source: str = "auto",
) -> Estimate:
    """Say what a model's step will need, without training and without changing anything.

    Args:
        model: A compiled Keras model.
        batch_size: The number of samples in a batch.
        method: "fit", "evaluate" or "predict".
        data: One batch, as arrays or specs, or a data set, where the model alone does not tell
            what `fit` is given: `(x, y)`.
        length: What input axes of any length (words in a text) stand for: the longest there is.
        memory: A budget. Where the quick figure is far from it, nothing is probed.
        source: "auto", or one of "compiled", "probed", "traced".

    Raises:
        UnsupportedModel: If the model can't be asked about, with what to do.
        BadBudget: If `memory` can't be read.
        LegroomError: If an argument makes no sense.
    """
    samples = read_batch_size(batch_size)
    budget = None if memory is None else parse_size(memory, whole=current().caps.whole_bytes())
    return Prediction(model, method=method, data=data, length=length, source=source).estimate(
        samples, budget
    )


def read_batch_size(batch_size: Any) -> int:
    """Check a batch size.

    Raises:
        LegroomError: If it is no whole number of samples that any machine could take.
    """
    return read_count("batch_size", batch_size)


def read_count(name: str, value: Any) -> int:
    """Check an argument that counts something.

    Raises:
        LegroomError: If it is no whole number from 1 to a billion.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if isinstance(value, bool) or not 1 <= count <= _MOST:
        raise LegroomError(
            f"{name} must be a whole number, from 1 to {_MOST:,}. Received: {name}={value!r}"
        )
    return count


class Prediction:
    """A model's step, traced or probed once, and asked for any number of batch sizes.

    Args:
        model: A compiled Keras model.
        method: "fit", "evaluate" or "predict".
        data: As in :func:`estimate`.
        length: As in :func:`estimate`.
        source: As in :func:`estimate`.
        order: The batch size for which the step's ops are put into an order that needs little
            memory; None leaves them as they come.
        slice_of: The size of a batch that is run in slices: those are asked for then, with the sums
            of their gradients, and traced only.
    """

    def __init__(
        self,
        model: Any,
        *,
        method: str = "fit",
        data: Any = None,
        length: int | None = None,
        source: str = "auto",
        order: int | None = None,
        slice_of: int | None = None,
    ) -> None:
        if source not in SOURCES:
            raise LegroomError(
                f"source must be one of {', '.join(map(repr, SOURCES))}. Received: {source!r}"
            )
        if length is not None:
            read_count("length", length)
        _check_backend()
        self.model = model
        self.method = method
        self.asked = {"method": method, "data": data, "length": length}
        self._source = source
        self._order = order
        self._slice_of = slice_of
        self._scripts: dict[str, tuple[Script, Any]] = {}
        self._alone: Script | None = None
        self._notes: list[str] = []
        self._made: dict[tuple[str, int], Estimate] = {}
        self._peaks: dict[int, int] = {}

    def estimate(self, samples: int, budget: int | None = None) -> Estimate:
        """The estimate for a batch size."""
        began = time.perf_counter()
        with collected_later():
            made = self._choose(samples, budget)
        return dataclasses.replace(
            made, seconds=time.perf_counter() - began, notes=tuple(self._notes)
        )

    def _choose(self, samples: int, budget: int | None) -> Estimate:
        from legroom.backends.tensorflow.probe.compiled import compiles

        if self._source == "compiled" or (self._source == "auto" and compiles(self.model)):
            made = self._compiled(samples)
            if made is not None or self._source == "compiled":
                assert made is not None
                return made
        if self._source == "traced":
            return self._replayed("traced", samples)
        if self._source == "auto" and budget is not None:
            quick = self._replayed("traced", samples)
            far = quick.peak_bytes < _FAR_BELOW * budget or quick.peak_bytes > _FAR_ABOVE * budget
            if far and "probed" not in self._scripts:
                return quick
        try:
            return self._replayed("probed", samples)
        except UnsupportedModel:
            raise
        except LegroomError as error:
            if self._source == "probed":
                raise
            self._note(f"not probed: {error}")
            return self._replayed("traced", samples)

    def _compiled(self, samples: int) -> Estimate | None:
        from legroom.backends.tensorflow.probe.compiled import compile_step

        try:
            step, temporary = compile_step(self.model, samples, **self.asked)
        except UnsupportedModel:
            raise
        except LegroomError as error:
            if self._source == "compiled":
                raise
            self._note(f"not compiled: {error}")
            return None
        given = step.input_bytes_per_sample * samples
        script = write_compiled(step.held, temporary, given)
        played = _played(script, samples)
        below, above = _MARGINS["compiled"]
        self._peaks[samples] = pool = int(smallest_pool(script, samples) * (1 + above))
        breakdown = {
            "weights": step.bytes_of("weights"),
            "gradients": 0,
            "optimizer": step.bytes_of("optimizer"),
            "activations": temporary,  # XLA plans gradients and workspace into the same memory
            "workspace": 0,
            "input": given,
        }
        breakdown["other"] = max(0, played.steady - sum(breakdown.values()))
        weights = {item.path: item.nbytes for item in step.held if item.role == "weights"}
        return Estimate(
            model=str(self.model.name),
            method=self.method,
            batch_size=samples,
            peak_bytes=played.steady,
            low_bytes=int(played.steady * (1 - below)),
            high_bytes=max(pool, int(played.steady * (1 + above))),
            first_step_bytes=played.first,
            source="compiled",
            breakdown=breakdown,
            layers=by_layer([], step.layers, weights),
        )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _script(self, source: str) -> tuple[Script, Any]:
        if source not in self._scripts:
            make: Callable[..., tuple[Script, Any]] = _probe if source == "probed" else _trace
            self._scripts[source] = make(self.model, {**self.asked, **self._changed()})
        return self._scripts[source]

    def _changed(self) -> dict[str, Any]:
        """In what the step that is asked for differs from Keras's."""
        if self._slice_of is not None:
            return {"slice_of": self._slice_of}
        if self._order is None:
            return {}
        from legroom.backends.tensorflow.graph.op_order import impose_order

        return {"finish": functools.partial(impose_order, order=orderer(self._order))}

    def _margins(self, source: str) -> tuple[float, float]:
        """How far a source may be off: with ops in order as little as with one thread."""
        return (_MARGINS if self._one_by_one() else _MARGINS_WITH_THREADS)[source]

    def _one_by_one(self) -> bool:
        from legroom.backends.tensorflow.device.threads import asked_threads

        return asked_threads() == 1 or self._order is not None

    def _counted(self, source: str) -> list[Script]:
        """The scripts of which the one that needs most counts."""
        scripts = [self._script(source)[0]]
        if source == "probed" and not self._one_by_one():
            # A few samples are done before another thread begins, so a probe does not see what
            # threads do side by side at larger sizes. The walk does.
            scripts.append(self._script("traced")[0])
        return scripts

    def peak(self, samples: int) -> int:
        """The pool that a batch size needs, quickly and without its parts; error bar included.

        By the best source that was asked for an estimate before.
        """
        if samples not in self._peaks:
            source = "probed" if "probed" in self._scripts else "traced"
            _, step = self._script(source)
            _, above = self._margins(source)
            held = sum(step.bytes_of(role) for role in ("weights", "optimizer", "gradients"))
            needs = []
            for script in self._counted(source):
                played = _played(script, samples)
                high = int(played.steady + above * max(0, played.steady - held)) + _SLACK
                needs += [played.first, high, smallest_pool(script, samples)]
            self._peaks[samples] = max(needs)
        return self._peaks[samples]

    def traced_peak(self, samples: int) -> int:
        """The steady peak by the graph alone, without an error bar: for comparing two graphs."""
        script, _ = self._script("traced")
        return replay(script, samples).steady

    def seen_by_probe(self, samples: int) -> int:
        """What a step takes that only a probe has seen; nothing where none was made."""
        if "probed" not in self._scripts:
            return 0
        probed, walked = (
            _played(self._script(source)[0], samples).steady for source in ("probed", "traced")
        )
        return max(0, probed - walked)

    def least_pool(self, samples: int) -> int:
        """The pool that a step goes through in if its ops run one after the other.

        So they do where memory is short: an op that finds none waits for one that gives some back.
        """
        script, step = self._script("traced")
        if not self._one_by_one():
            if self._alone is None:
                self._alone = _walk(step, threads=1)
            script = self._alone
        return smallest_pool(script, samples)

    def middle_peak(self, samples: int) -> int:
        """The peak at a batch size, quickly: the figure itself, without its error bar."""
        source = "traced" if self._source == "traced" else "probed"
        played = [_played(script, samples) for script in self._counted(source)]
        return max(max(each.first, each.steady) for each in played)

    def try_size(self, samples: int, budget: int, card: int | None = None) -> bool:
        """Whether steps of this size run in a pool of this size: they are run, by a child.

        Args:
            samples: The batch size.
            budget: The pool.
            card: The GPU to run them on; None for the CPU.

        Raises:
            LegroomError: If the child could not run them for another reason.
        """
        from legroom.backends.tensorflow.device.threads import asked_threads
        from legroom.backends.tensorflow.probe.parent import ProbeChild

        _, step = self._script("probed")
        with ProbeChild(threads=asked_threads(), limit=budget, card=card) as child:
            return child.fits(step, samples)

    def _replayed(self, source: str, samples: int) -> Estimate:
        if (source, samples) not in self._made:
            self._made[source, samples] = self._play(source, samples)
        return self._made[source, samples]

    def _play(self, source: str, samples: int) -> Estimate:
        script, step = self._script(source)
        played = replays(script, samples) if source == "probed" else [replay(script, samples)]
        for other in self._counted(source)[1:]:
            walked = replay(other, samples)
            if walked.steady > played[0].steady:
                script, played = other, [walked, *played]
        peaks = [each.steady for each in played]
        peak, first = peaks[0], played[0].first
        below, above = self._margins(source)
        held = {role: step.bytes_of(role) for role in ("weights", "optimizer", "other")}
        # What is held does not grow and is known: doubt is about the rest.
        doubt = max(0, peak - sum(held.values()))
        weights = {item.path: item.nbytes for item in step.held if item.role == "weights"}
        gradients = step.gradient_ops
        live, line, kinds = look_closer(script, samples, lambda item: kind_of(item, gradients))
        shown = thinned([[size for _, size in line]], _MOST_TIMELINE)
        return Estimate(
            model=str(self.model.name),
            method=self.method,
            batch_size=samples,
            peak_bytes=peak,
            low_bytes=max(0, min([*peaks, int(peak - below * doubt)]) - _SLACK),
            high_bytes=max([*peaks, int(peak + above * doubt)]) + _SLACK,
            first_step_bytes=first,
            source=source,
            breakdown=by_kind(live, peak, held, gradients),
            layers=by_layer(live, step.layers, weights),
            timeline=tuple((plain_name(line[place][0]), line[place][1]) for place in shown),
            parts=tuple(_parts(line[place][1], kinds[place], held) for place in shown),
        )


def _played(script: Script, samples: int) -> Replay:
    """A script's steps until they are alike."""
    return replay(script, samples, steps=max(4, len(script.steps) + 1))


def _parts(total: int, kinds: dict[str, int], held: dict[str, int]) -> tuple[int, ...]:
    """The bytes at a moment of a step by what they are for, in the order of the breakdown."""
    sizes = {**kinds, "weights": held["weights"], "optimizer": held["optimizer"]}
    sizes["other"] = max(0, total - sum(sizes.get(name, 0) for name in BREAKDOWN[:-1]))
    return tuple(sizes.get(name, 0) for name in BREAKDOWN)


def _probe(model: Any, asked: dict[str, Any]) -> tuple[Script, Any]:
    from legroom.backends.tensorflow.device.threads import asked_threads
    from legroom.backends.tensorflow.forecast.probe_script import read_recording
    from legroom.backends.tensorflow.graph.scratch import later_scratch
    from legroom.backends.tensorflow.graph.stepgraph import trace_step
    from legroom.backends.tensorflow.probe.parent import SIZES, ProbeChild

    with ProbeChild(
        threads=asked_threads()
    ) as child:  # it imports TensorFlow while the step is traced here
        step = trace_step(model, **asked)
        record = child.record(step)
    return read_recording(record, SIZES, later_scratch(step.graph)), step


def _trace(model: Any, asked: dict[str, Any]) -> tuple[Script, Any]:
    from legroom.backends.tensorflow.device.threads import executor_threads
    from legroom.backends.tensorflow.graph.axes import TRACED_SIZE
    from legroom.backends.tensorflow.graph.stepgraph import trace_step

    step = trace_step(model, **asked, samples=TRACED_SIZE, repeats=True)
    return _walk(step, executor_threads()), step


def _walk(step: Any, threads: int) -> Script:
    from legroom.backends.tensorflow.forecast.graph_script import write_script
    from legroom.backends.tensorflow.graph.walk import input_sizes, walk_step

    return write_script(walk_step(step), step.held, input_sizes(step), threads)


def _check_backend() -> None:
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise UnsupportedModel(
            f"legroom estimates Keras on TensorFlow so far; here Keras runs on {backend!r}. "
            "Set KERAS_BACKEND=tensorflow before keras is imported."
        )
