"""The sources of an estimate, and the choice between them.

*compiled*: the compiler's own figures, for steps that are compiled. *probed*: a child process runs
the step at small sizes, and what it allocated is carried over. *traced*: the step's ops are walked;
nothing runs, so it also serves for machines that are not here. How each does it is for the backend
to know, and whether a probe tells more than a trace.
"""

from __future__ import annotations

import dataclasses
import operator
import time
from typing import Any

from legroom.backends.base import current
from legroom.core.errors import LegroomError, UnsupportedModelError
from legroom.core.process.garbage import collected_later
from legroom.core.units import parse_size
from legroom.prediction.estimate import Estimate
from legroom.prediction.kept import kept_answer

__all__ = [
    "SOURCES",
    "Prediction",
    "estimate",
    "question_about",
    "read_batch_size",
    "read_count",
]

SOURCES = ("auto", "compiled", "probed", "traced")
# Beyond these shares of the budget a traced figure answers the question.
_FAR_BELOW, _FAR_ABOVE = 0.5, 2.0
# No machine has room for more.
_MOST = 10**9


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

    An answer is kept on disk: the same question about the same model is answered at once, unless
    code of your own has a part in the model. `LEGROOM_CACHE=off` turns this off.

    Args:
        model: A compiled Keras model. On PyTorch also a training step in plain PyTorch, the
            function that `legroom.step` takes; it needs `data`: what it is called with.
        batch_size: The number of samples in a batch.
        method: "fit", "evaluate" or "predict".
        data: One batch, as arrays or specs, or a data set, where the model alone does not tell
            what `fit` is given: `(x, y)`.
        length: What input axes of any length (words in a text) stand for: the longest there is.
        memory: A budget. Where the quick figure is far from it, nothing is probed.
        source: "auto", or one of "compiled", "probed", "traced".

    Raises:
        UnsupportedModelError: If the model can't be asked about, with what to do.
        BadBudgetError: If `memory` can't be read.
        LegroomError: If an argument makes no sense.
    """
    samples = read_batch_size(batch_size)
    budget = None if memory is None else parse_size(memory, whole=current().caps.whole_bytes())

    def make() -> Estimate:
        asked = Prediction(model, method=method, data=data, length=length, source=source)
        return asked.estimate(samples, budget)

    question = question_about(
        model, data, batch_size=samples, method=method, length=length, budget=budget, source=source
    )
    return kept_answer(Estimate, question, make)[0]


def question_about(model: Any, data: Any, **options: Any) -> dict[str, Any] | None:
    """All that an answer about a model depends on; None where that can't be written down."""
    models = current().models
    identity, shapes = models.identity(model), models.data_identity(data)
    if identity is None or shapes is None:
        return None
    conditions = current().predictions.conditions()
    return {"model": identity, "data": shapes, "conditions": conditions, **options}


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
        data: As in `estimate`.
        length: As in `estimate`.
        source: As in `estimate`.
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
        self.model = model
        self.method = method
        self.asked = {"method": method, "data": data, "length": length}
        self._source = source
        self._step = current().predictions.forecast_step(
            model, method=method, data=data, length=length, order=order, slice_of=slice_of
        )
        self._notes: list[str] = []
        self._made: dict[tuple[str, int], Estimate] = {}

    def estimate(self, samples: int, budget: int | None = None) -> Estimate:
        """The estimate for a batch size."""
        began = time.perf_counter()
        with collected_later():
            made = self._choose(samples, budget)
        return dataclasses.replace(
            made, seconds=time.perf_counter() - began, notes=tuple(self._notes)
        )

    def _choose(self, samples: int, budget: int | None) -> Estimate:
        auto = self._source == "auto"
        if self._source == "compiled" or (auto and current().predictions.compiles(self.model)):
            made = self._try("compiled", samples)
            if made is not None:
                return made
        if self._source == "traced" or (auto and not current().predictions.probes()):
            return self._ask("traced", samples)
        if auto and budget is not None:
            quick = self._ask("traced", samples)
            far = quick.peak_bytes < _FAR_BELOW * budget or quick.peak_bytes > _FAR_ABOVE * budget
            if far and not self._step.is_made("probed"):
                return quick
        return self._try("probed", samples) or self._ask("traced", samples)

    def _try(self, source: str, samples: int) -> Estimate | None:
        """What a source says; None, with a note, where it can't tell and another one may."""
        try:
            return self._ask(source, samples)
        except UnsupportedModelError:
            raise
        except LegroomError as error:
            if self._source == source:
                raise
            note = f"not {source}: {error}"
            if note not in self._notes:
                self._notes.append(note)
            return None

    def _ask(self, source: str, samples: int) -> Estimate:
        if (source, samples) not in self._made:
            # First of all: here it is said what is wrong with something that is no model.
            figures = self._step.figures(source, samples)
            self._made[source, samples] = Estimate(
                model=str(getattr(self.model, "name", None) or self.model.__name__),
                method=self.method,
                batch_size=samples,
                source=source,
                **vars(figures),
            )
        return self._made[source, samples]

    def peak(self, samples: int) -> int:
        """The pool that a batch size needs, quickly and without its parts; error bar included.

        By the best source that was asked for an estimate before.
        """
        source = "probed" if self._step.is_made("probed") else "traced"
        if ("compiled", samples) in self._made:
            source = "compiled"
        return self._step.pool_bytes(source, samples)

    def traced_peak(self, samples: int) -> int:
        """The steady peak by the graph alone, without an error bar: for comparing two graphs."""
        return self._step.traced_peak(samples)

    def seen_by_probe(self, samples: int) -> int:
        """What a step takes that only a probe has seen; nothing where none was made."""
        return self._step.seen_by_probe(samples)

    def least_pool(self, samples: int) -> int:
        """The pool that a step goes through in if its ops run one after the other."""
        return self._step.least_pool(samples)

    def middle_peak(self, samples: int) -> int:
        """The peak at a batch size, quickly: the figure itself, without its error bar."""
        probed = self._source != "traced" and current().predictions.probes()
        source = "probed" if probed else "traced"
        return self._step.middle_peak(source, samples)

    def try_size(self, samples: int, budget: int, card: int | None = None) -> bool:
        """Whether steps of this size run in a pool of this size: they are run.

        Args:
            samples: The batch size.
            budget: The pool.
            card: The GPU to run them on; None for the CPU.

        Raises:
            LegroomError: If the child could not run them for another reason.
        """
        return self._step.try_size(samples, budget, card)
