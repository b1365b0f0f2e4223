"""What a model's step will need, by each of three sources.

*compiled*: XLA's own figures, for steps that it compiles. *probed*: a child process runs the step
at two small sizes, and what it allocated is carried over. *traced*: the step's graph is walked by
the executor's rules; nothing runs, so it also serves for machines that are not here.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from legroom.backends.tensorflow.device.threads import asked_threads, executor_threads
from legroom.backends.tensorflow.forecast.breakdown import (
    by_kind,
    by_layer,
    kind_of,
    parts_of,
    plain_name,
)
from legroom.backends.tensorflow.forecast.graph_script import write_script
from legroom.backends.tensorflow.forecast.ordering import orderer
from legroom.backends.tensorflow.forecast.probe_script import read_recording
from legroom.backends.tensorflow.forecast.replay import (
    Replay,
    look_closer,
    replay,
    replays,
    smallest_pool,
)
from legroom.backends.tensorflow.forecast.script import Script
from legroom.backends.tensorflow.forecast.xla_script import write_compiled
from legroom.backends.tensorflow.graph.axes import TRACED_SIZE
from legroom.backends.tensorflow.graph.op_order import impose_order
from legroom.backends.tensorflow.graph.scratch import later_scratch
from legroom.backends.tensorflow.graph.stepgraph import StepGraph, trace_step
from legroom.backends.tensorflow.graph.walk import input_sizes, walk_step
from legroom.backends.tensorflow.probe.compiled import compile_step, compiles
from legroom.backends.tensorflow.probe.parent import SIZES, ProbeChild
from legroom.core.figures import BREAKDOWN, StepFigures
from legroom.core.series import thinned

__all__ = ["StepForecast", "compiles", "conditions", "forecast_step", "orders_ops", "probes",
           "tries_here"]  # fmt: skip

# How far each source may be off, below and above: from benchmarks/accuracy.py.
_MARGINS = {"probed": (0.12, 0.16), "traced": (0.25, 0.30), "compiled": (0.02, 0.03)}
# With several threads the order of ops is a matter of chance.
_MARGINS_WITH_THREADS = {"probed": (0.20, 0.25), "traced": (0.25, 0.40)}
# In a small pool it is chance which chunk is free and too large: that is worth this much, at most.
_SLACK = 4 * 2**20
_MOST_TIMELINE = 4000


def conditions() -> dict[str, Any]:
    """What an answer depends on in this process, beside the model and the environment."""
    cards = [str(card) for card in tf.config.list_physical_devices("GPU")]
    return {"threads": asked_threads(), "cards": cards}


def probes() -> bool:
    """Whether a probe tells more than the traced step."""
    return True


def orders_ops() -> bool:
    """Whether a step's ops can be put into another order."""
    return True


def tries_here() -> bool:
    """Whether sizes are tried in this process: a child tries them."""
    return False


def forecast_step(
    model: Any,
    *,
    method: str,
    data: Any,
    length: int | None,
    order: int | None,
    slice_of: int | None,
) -> StepForecast:
    """A step to be asked about; nothing is traced before it is.

    Args:
        model: A compiled Keras model.
        method: As for `trace_step`.
        data: As for `trace_step`.
        length: As for `trace_step`.
        order: The batch size for which its ops are put into an order that needs little memory;
            None leaves them as they come.
        slice_of: As for `trace_step`.
    """
    asked = {"method": method, "data": data, "length": length}
    changes: dict[str, Any] = {}
    if slice_of is not None:
        changes = {"slice_of": slice_of}
    elif order is not None:
        changes = {"finish": functools.partial(impose_order, order=orderer(order))}
    return StepForecast(model, asked, changes, one_by_one=order is not None)


class StepForecast:
    """A step, traced or probed once, and asked for any number of batch sizes.

    Args:
        model: The model.
        asked: What `trace_step` is asked for.
        changes: In what the step differs from Keras's: what `trace_step` is asked for beside.
        one_by_one: Whether its ops run one after the other, whatever threads there are.
    """

    def __init__(
        self, model: Any, asked: dict[str, Any], changes: dict[str, Any], *, one_by_one: bool
    ) -> None:
        self._model = model
        self._asked = asked
        self._changes = changes
        self._ordered = one_by_one
        self._scripts: dict[str, tuple[Script, StepGraph]] = {}
        self._programs: dict[int, tuple[Script, StepGraph, int]] = {}
        self._alone: Script | None = None
        self._pools: dict[tuple[str, int], int] = {}

    def is_made(self, source: str) -> bool:
        """Whether a source was asked before, and so answers quickly."""
        return source in self._scripts

    def figures(self, source: str, samples: int) -> StepFigures:
        """What a source says of a batch size.

        Raises:
            LegroomError: If this source can't tell.
            UnsupportedModelError: If none can.
        """
        return self._of_program(samples) if source == "compiled" else self._of(source, samples)

    def pool_bytes(self, source: str, samples: int) -> int:
        """The pool that a batch size needs, error bar included; quicker than all its figures."""
        if (source, samples) not in self._pools:
            find = self._pool_of_program if source == "compiled" else self._pool
            self._pools[source, samples] = find(source, samples)
        return self._pools[source, samples]

    def middle_peak(self, source: str, samples: int) -> int:
        """The peak by a source, without its error bar; quicker than all its figures."""
        played = [_played(script, samples) for script in self._counted(source)]
        return max(max(each.first, each.steady) for each in played)

    def traced_peak(self, samples: int) -> int:
        """The steady peak by the graph alone, without an error bar: for comparing two graphs."""
        script, _ = self._script("traced")
        return replay(script, samples).steady

    def seen_by_probe(self, samples: int) -> int:
        """What a step takes that only a probe has seen; nothing where none was made."""
        if not self.is_made("probed"):
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

    def try_size(self, samples: int, limit: int, card: int | None) -> bool:
        """Whether steps of this size run in a pool of this size: they are run, by a child.

        Raises:
            ProbeFailed: If the child could not run them for another reason.
        """
        _, step = self._script("probed")
        with ProbeChild(threads=asked_threads(), limit=limit, card=card) as child:
            return child.fits(step, samples)

    def _script(self, source: str) -> tuple[Script, StepGraph]:
        if source not in self._scripts:
            make = _probe if source == "probed" else _trace
            self._scripts[source] = make(self._model, {**self._asked, **self._changes})
        return self._scripts[source]

    def _program(self, samples: int) -> tuple[Script, StepGraph, int]:
        if samples not in self._programs:
            step, temporary = compile_step(self._model, samples, **self._asked)
            given = step.input_bytes_per_sample * samples
            self._programs[samples] = write_compiled(step.held, temporary, given), step, temporary
        return self._programs[samples]

    def _one_by_one(self) -> bool:
        return asked_threads() == 1 or self._ordered

    def _margins(self, source: str) -> tuple[float, float]:
        """How far a source may be off: with ops in order as little as with one thread."""
        return (_MARGINS if self._one_by_one() else _MARGINS_WITH_THREADS)[source]

    def _counted(self, source: str) -> list[Script]:
        """The scripts of which the one that needs most counts."""
        scripts = [self._script(source)[0]]
        if source == "probed" and not self._one_by_one():
            # A few samples are done before another thread begins, so a probe does not see what
            # threads do side by side at larger sizes. The walk does.
            scripts.append(self._script("traced")[0])
        return scripts

    def _pool(self, source: str, samples: int) -> int:
        _, step = self._script(source)
        _, above = self._margins(source)
        held = sum(step.bytes_of(role) for role in ("weights", "optimizer", "gradients"))
        needs = []
        for script in self._counted(source):
            played = _played(script, samples)
            high = int(played.steady + above * max(0, played.steady - held)) + _SLACK
            needs += [played.first, high, smallest_pool(script, samples)]
        return max(needs)

    def _pool_of_program(self, source: str, samples: int) -> int:
        _, above = _MARGINS[source]
        return int(smallest_pool(self._program(samples)[0], samples) * (1 + above))

    def _of_program(self, samples: int) -> StepFigures:
        script, step, temporary = self._program(samples)
        played = _played(script, samples)
        below, above = _MARGINS["compiled"]
        pool = self.pool_bytes("compiled", samples)
        # XLA plans activations, gradients and workspace into the same memory.
        kinds = {"activations": temporary, "input": step.input_bytes_per_sample * samples}
        return StepFigures(
            peak_bytes=played.steady,
            low_bytes=int(played.steady * (1 - below)),
            high_bytes=max(pool, int(played.steady * (1 + above))),
            first_step_bytes=played.first,
            breakdown=_breakdown(parts_of(played.steady, kinds, _held(step))),
            layers=by_layer([], step.layers, _weights(step)),
        )

    def _of(self, source: str, samples: int) -> StepFigures:
        script, step = self._script(source)
        played = replays(script, samples) if source == "probed" else [replay(script, samples)]
        for other in self._counted(source)[1:]:
            walked = replay(other, samples)
            if walked.steady > played[0].steady:
                script, played = other, [walked, *played]
        peaks = [each.steady for each in played]
        peak = peaks[0]
        below, above = self._margins(source)
        held = _held(step)
        # What is held does not grow and is known: doubt is about the rest.
        doubt = max(0, peak - sum(held.values()))
        gradients = step.gradient_ops
        live, line, kinds = look_closer(script, samples, lambda item: kind_of(item, gradients))
        shown = thinned([[size for _, size in line]], _MOST_TIMELINE)
        return StepFigures(
            peak_bytes=peak,
            low_bytes=max(0, min([*peaks, int(peak - below * doubt)]) - _SLACK),
            high_bytes=max([*peaks, int(peak + above * doubt)]) + _SLACK,
            first_step_bytes=played[0].first,
            breakdown=_breakdown(parts_of(peak, by_kind(live, gradients), held)),
            layers=by_layer(live, step.layers, _weights(step)),
            timeline=tuple((plain_name(line[place][0]), line[place][1]) for place in shown),
            parts=tuple(parts_of(line[place][1], kinds[place], held) for place in shown),
        )


def _breakdown(parts: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(BREAKDOWN, parts, strict=True))


def _held(step: StepGraph) -> dict[str, int]:
    return {role: step.bytes_of(role) for role in ("weights", "optimizer", "other")}


def _weights(step: StepGraph) -> dict[str, int]:
    return {item.path: item.nbytes for item in step.held if item.role == "weights"}


def _played(script: Script, samples: int) -> Replay:
    """A script's steps until they are alike."""
    return replay(script, samples, steps=max(4, len(script.steps) + 1))


def _probe(model: Any, asked: dict[str, Any]) -> tuple[Script, StepGraph]:
    # It imports TensorFlow while the step is traced here.
    with ProbeChild(threads=asked_threads()) as child:
        step = trace_step(model, **asked)
        record = child.record(step)
    return read_recording(record, SIZES, later_scratch(step.graph)), step


def _trace(model: Any, asked: dict[str, Any]) -> tuple[Script, StepGraph]:
    step = trace_step(model, **asked, samples=TRACED_SIZE, repeats=True)
    return _walk(step, executor_threads()), step


def _walk(step: StepGraph, threads: int) -> Script:
    return write_script(walk_step(step), step.held, input_sizes(step), threads)
