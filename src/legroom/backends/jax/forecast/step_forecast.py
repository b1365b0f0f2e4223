"""What a model's step will need, by the compiler: XLA plans all memory of a program before it runs.

Its figures are exact for the sizes that are compiled. Others lie on the line through two of them.
"""

from __future__ import annotations

import weakref
from typing import Any

from legroom.backends.jax.device.pool import default_pool
from legroom.backends.jax.forecast.keras_step import KINDS, StepProgram, compile_step
from legroom.backends.jax.forecast.parts import look_into
from legroom.core.errors import LegroomError, UnsupportedModelError
from legroom.core.figures import BREAKDOWN, StepFigures
from legroom.core.series import thinned

__all__ = ["StepForecast", "compiles", "conditions", "forecast_step", "orders_ops", "probes",
           "tries_here"]  # fmt: skip

# How far the figures may be off, below and above, as shares of what a program takes: XLA's were
# 0.1 to 0.4 % under the peak of ResNet50 on a GPU. On a CPU kernels take more, which is counted by
# itself.
_BELOW, _ABOVE = 0.01, 0.02
# Of what lies between sizes that were compiled: XLA may choose other kernels there.
_BETWEEN = 0.03
_SLACK = {"cpu": 8 * 2**20, "gpu": 2**20}
_MOST_TIMELINE = 4000
# The sizes that are compiled where nobody has asked for one.
_FIRST, _SECOND = 32, 8


def conditions() -> dict[str, Any]:
    """What an answer depends on in this process, beside the model and the environment."""
    device = default_pool().device
    return {"device": device.platform, "card": str(device.device_kind)}


def compiles(model: Any) -> bool:
    """Whether XLA makes one program of a model's step."""
    return bool(getattr(model, "jit_compile", False)) and not getattr(model, "run_eagerly", False)


def probes() -> bool:
    """Whether a probe tells more: none is made."""
    return False


def orders_ops() -> bool:
    """Whether a step's ops can be put in another order: XLA chooses it."""
    return False


def tries_here() -> bool:
    """Whether sizes are tried in this process."""
    return True


# The forecasts of whole batches, by model: that of its slices asks there, too.
_wholes: weakref.WeakValueDictionary[int, StepForecast] = weakref.WeakValueDictionary()


def forecast_step(
    model: Any,
    *,
    method: str,
    data: Any,
    length: int | None,
    order: int | None,
    slice_of: int | None,
) -> StepForecast:
    """A step to be asked about; nothing is compiled before it is.

    Args:
        model: A compiled Keras model.
        method: As for `compile_step`.
        data: As for `compile_step`.
        length: As for `compile_step`.
        order: Of no meaning here.
        slice_of: The size of a batch that is run in slices, where those are asked about.
    """
    del order
    asked = {"method": method, "data": data, "length": length}
    whole = _wholes.get(id(model))
    if whole is None or not whole.is_about(model, asked):
        whole = _wholes[id(model)] = StepForecast(model, asked)
    elif slice_of is None:
        # It may be another step by now: layers are recomputed meanwhile, for one.
        whole = StepForecast(model, asked)
    return whole if slice_of is None else _SliceForecast(model, asked, slice_of, whole)


class StepForecast:
    """A step, compiled for a few sizes of batches, and asked for any.

    Args:
        model: The model.
        asked: What `compile_step` is asked for.
    """

    sliced = False

    def __init__(self, model: Any, asked: dict[str, Any]) -> None:
        self._model = model
        self._asked = asked
        self._pool = default_pool()
        self._programs: dict[int, StepProgram] = {}
        self._failed: LegroomError | None = None

    def is_about(self, model: Any, asked: dict[str, Any]) -> bool:
        """Whether it answers for a model, asked like this."""
        return self._model is model and all(asked[key] is self._asked[key] for key in asked)

    def is_made(self, source: str) -> bool:
        """Whether a source was asked before, and so answers quickly."""
        return source == "compiled" and bool(self._programs)

    def figures(self, source: str, samples: int) -> StepFigures:
        """What the compiler says of a batch size.

        Raises:
            LegroomError: If this source can't tell.
            UnsupportedModelError: If none can.
        """
        self._refuse(source)
        program = self._program(samples)
        peak = self._middle(program)
        beside = {**program.held, "input": self._batches() * program.input}
        kinds, layers, line = look_into(program, peak - sum(beside.values()))
        shown = thinned([[size for _, size in line]], _MOST_TIMELINE)
        return StepFigures(
            peak_bytes=peak,
            low_bytes=max(0, self._low(program)),
            high_bytes=self._high(program),
            first_step_bytes=peak,
            breakdown={name: {**beside, **kinds}.get(name, 0) for name in BREAKDOWN},
            layers=layers,
            timeline=tuple((line[k][0], sum(beside.values()) + line[k][1]) for k in shown),
        )

    def pool_bytes(self, source: str, samples: int) -> int:
        """The pool that a batch size needs, error bar included; quicker than all its figures."""
        if samples in self._programs:
            return self._high(self._programs[samples])
        return self._on_line(self._high, samples, _BETWEEN)

    def middle_peak(self, source: str, samples: int) -> int:
        """The peak by a source, without its error bar; quicker than all its figures."""
        if samples in self._programs:
            return self._middle(self._programs[samples])
        return self._on_line(self._middle, samples)

    def traced_peak(self, samples: int) -> int:
        """The steady peak, without an error bar: for comparing two steps."""
        return self.middle_peak("compiled", samples)

    def seen_by_probe(self, samples: int) -> int:
        """What only a probe has seen: none is made."""
        return 0

    def least_pool(self, samples: int) -> int:
        """The pool without which a step does not even begin."""
        if samples in self._programs:
            return self._low(self._programs[samples])
        return self._on_line(self._low, samples)

    def try_size(self, samples: int, limit: int, card: int | None) -> bool:
        """Whether steps of this size run in so much memory: they are run, here, and undone."""
        from legroom.backends.jax.forecast.trying import runs_within

        self._refuse("compiled")
        program = self._program(samples)
        if self._low(program) > limit:
            return False
        return runs_within(self._model, KINDS[self._asked["method"]], program, limit)

    def _refuse(self, source: str) -> None:
        if not compiles(self._model):
            raise UnsupportedModelError(
                f"{self._model.name!r} runs op by op (run_eagerly=True or jit_compile=False), and "
                "on JAX an estimate comes from the compiler. Call model.compile without these "
                "options first."
            )
        if self._failed is not None:
            raise self._failed  # whoever asks another source is to know why this one can't tell
        if source not in ("compiled", "auto"):
            raise LegroomError(
                f"source={source!r} is not for JAX: estimates there come from XLA, which compiles "
                "the whole step. Leave source out, or give source='compiled'."
            )

    def _program(self, samples: int) -> StepProgram:
        if samples not in self._programs:
            try:
                self._programs[samples] = compile_step(
                    self._model, samples, **self._asked, sliced=self.sliced
                )
            except LegroomError as error:
                self._failed = error
                raise
        return self._programs[samples]

    def _on_line(self, find: Any, samples: int, doubt: float = 0.0) -> int:
        """What a size takes that was not compiled, by two that were."""
        self._refuse("compiled")
        if not self._programs:
            self._program(self._begin())
        if len(self._programs) == 1:
            (only,) = self._programs
            self._program(only // 4 if only >= 8 else _SECOND * 4)
        small, large = min(self._programs), max(self._programs)
        less, more = find(self._programs[small]), find(self._programs[large])
        each = max(0.0, (more - less) / (large - small))
        fixed = sum(self._programs[small].held.values())
        found = max(less - each * (small - samples), fixed)
        return int(found + doubt * (found - fixed))

    def _begin(self) -> int:
        return _FIRST

    def _batches(self) -> int:
        """How many batches are there at once: on a card, Keras brings the next one meanwhile."""
        return 1 if self._pool.device.platform == "cpu" else 2

    def _beside(self, program: StepProgram) -> int:
        return (self._batches() - 1) * program.input

    def _middle(self, program: StepProgram) -> int:
        return program.sure + self._beside(program) + program.scratch[0]

    def _low(self, program: StepProgram) -> int:
        return program.sure - int(_BELOW * program.taken)

    def _high(self, program: StepProgram) -> int:
        # NumPy has cut a batch out of the data, which JAX copies where it has to.
        copied = program.input if self._pool.device.platform == "cpu" else 0
        slack = _SLACK.get(self._pool.device.platform, _SLACK["gpu"])
        doubt = int(_ABOVE * program.taken) + program.scratch[1] + copied + slack
        return program.sure + self._beside(program) + doubt


class _SliceForecast(StepForecast):
    """The same of a step in slices, as the guard runs them.

    Args:
        model: The model.
        asked: What `compile_step` is asked for.
        batch: The size of the batch that is cut.
        whole: The step on whole batches.
    """

    sliced = True

    def __init__(self, model: Any, asked: dict[str, Any], batch: int, whole: StepForecast) -> None:
        super().__init__(model, asked)
        self._batch = batch
        self._whole = whole

    def traced_peak(self, samples: int) -> int:
        """The steady peak: whole batches run as they are."""
        if samples >= self._batch:
            return self._whole.traced_peak(samples)
        return super().traced_peak(samples)

    def _begin(self) -> int:
        return max(1, self._batch // 2)
