"""What a training step needs, and what would make it need less: one list, whoever asks.

`legroom.explain` and `CannotFitError` show it as remedies, `legroom.check(model)` as findings. The
step as it is comes from the same estimate as a plan's. Each change is tried on the model's
architecture, and estimated from the same source; where time is short its step is only traced, and
the difference to the model's own trace is what it saves. Nothing is trained, and no weight is
allocated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

from legroom.backends.base import current
from legroom.core.errors import LegroomError
from legroom.core.units import format_bytes
from legroom.machine.gpu import list_gpus
from legroom.messages.diagnosis import Remedy
from legroom.messages.remedies import by_guarding
from legroom.planning.changes import CHANGES
from legroom.planning.make import as_built
from legroom.planning.slices import Slices
from legroom.prediction.estimate import Estimate
from legroom.prediction.sources import Prediction

__all__ = ["Change", "ModelAdvice", "advise"]

_WORTH = 0.01  # of the peak: less than this is no advice


@dataclasses.dataclass(frozen=True)
class Change:
    """One thing that makes a training need less.

    Attributes:
        name: As `legroom.slim` calls it; "slices" and "smaller_batch" change no model.
        remedy: What it does, how, and what it saves.
        peak_bytes: The predicted peak with it.
        layer: The layer that it is about; empty where it is about the whole model.
        parameters: How many numbers the model's weights are after it.
    """

    name: str
    remedy: Remedy
    peak_bytes: int
    layer: str = ""
    parameters: int = 0


@dataclasses.dataclass(frozen=True)
class ModelAdvice:
    """What was found for a model, a batch and a budget.

    Attributes:
        estimate: What the step needs as it is.
        changes: What would make it less: first what keeps the training as it is, then by what it
            saves.
    """

    estimate: Estimate
    changes: tuple[Change, ...]


def advise(
    model: Any,
    samples: int,
    budget: int | None = None,
    *,
    data: Any = None,
    on_gpu: bool | None = None,
    guarded: bool = False,
    fewer_samples: bool = True,
    seconds: float = float("inf"),
) -> ModelAdvice:
    """Say what a model's step needs, and what would make it need less.

    Args:
        model: A Keras model. One that is not compiled is asked about as if it were, with Adam.
        samples: The batch size.
        budget: What there is, where it is known.
        data: As for `legroom.estimate`.
        on_gpu: Whether it trains on a GPU, which decides between the two half precisions; None for
            the machine's own.
        guarded: Whether legroom runs the training already: slices are no advice then.
        fewer_samples: Whether slices and smaller batches are tried, unless the step fits.
        seconds: After this time no further change is tried; where there is such a time, changes are
            not probed.

    Raises:
        UnsupportedModelError: If the model can't be asked about.
    """
    ends = time.monotonic() + seconds
    with current().leaner_models.askable(model) as asked, as_built(asked):
        quick = seconds < float("inf")
        adviser = _Adviser(Prediction(asked, data=data), samples, budget, quick=quick)
        found: list[Change] = []
        for change in adviser.changes(
            on_gpu=on_gpu, guarded=guarded, fewer_samples=fewer_samples and samples > 1
        ):
            if change is not None:
                found.append(change)
            if time.monotonic() > ends:
                break
    found.sort(key=lambda one: (not one.remedy.exact, -(one.remedy.bytes_saved or 0)))
    return ModelAdvice(adviser.whole, tuple(found))


class _Adviser:
    def __init__(
        self, prediction: Prediction, samples: int, budget: int | None, *, quick: bool
    ) -> None:
        self._quick = quick
        self._prediction = prediction
        self._model = prediction.model
        self._samples = samples
        self._budget = budget
        self.whole = prediction.estimate(samples, budget)

    def changes(
        self, *, on_gpu: bool | None, guarded: bool, fewer_samples: bool
    ) -> Iterator[Change | None]:
        """What saves something; None for what does not."""
        if fewer_samples and (self._budget is None or not self.whole.fits(self._budget)):
            yield from self._fewer_samples(guarded)
        if on_gpu is None:
            on_gpu = bool(list_gpus())
        for name in CHANGES:
            if name != ("bfloat16" if on_gpu else "float16"):
                yield self._leaner(name)

    def _fewer_samples(self, guarded: bool) -> Iterator[Change | None]:
        exact = not current().models.coupling_layers(self._model)
        slices = Slices(self._prediction, self.whole, self._samples, exact=exact)
        size = self._samples // 2
        if self._budget is not None:
            size = slices.strategy(self._budget).slice_size or size
        # With their error bars, as what has to fit is counted.
        before, peak = max(self.whole.high_bytes, self.whole.first_step_bytes), slices.peak(size)
        fits = self._fits(peak)
        if not guarded:
            words = (
                f"Run it in slices of {size} instead of {self._samples}{fits}: the same training, "
                "less at a time."
            )
            remedy = by_guarding(Remedy(words, exact=exact))
            yield self._saving("slices", remedy, peak, before)
        peak = self._prediction.peak(size)
        words = f"A batch of {size} instead of {self._samples}{self._fits(peak)}: more steps, "
        code = f"model.fit(x, y, batch_size={size})"
        remedy = Remedy(f"{words}noisier gradients.", code=code, exact=False)
        yield self._saving("smaller_batch", remedy, peak, before)

    def _fits(self, peak: int) -> str:
        fits = self._budget is not None and peak <= self._budget
        return f", which fits in {format_bytes(self._budget or 0)}" if fits else ""

    def _leaner(self, name: str) -> Change | None:
        models, leaner = current().models, current().leaner_models
        # A model that can't be built after the change, or predicted, is no advice.
        with (
            contextlib.suppress(LegroomError, ValueError, TypeError),
            leaner.imagined(self._model, name) as changed,
        ):
            if changed is not None:
                after = self._peak_of(changed, name)
                layer = leaner.layer_of_change(name, models.layer_facts(self._model))
                remedy = Remedy(self._words(name), code=_code(name, changed, layer), exact=False)
                made = self._saving(name, remedy, after, self.whole.peak_bytes)
                count = models.parameters(changed)
                return made and dataclasses.replace(made, layer=layer, parameters=count)
        return None

    def _peak_of(self, changed: Any, name: str) -> int:
        """The peak with a change."""
        asked = dict(self._prediction.asked)
        if name == "smaller_input":
            asked["data"] = None
        source = self.whole.source
        if source == "compiled" or (source == "probed" and not self._quick):
            made = Prediction(changed, source=source, **asked).estimate(self._samples)
            return made.peak_bytes
        after = Prediction(changed, source="traced", **asked).traced_peak(self._samples)
        return self.whole.peak_bytes - (self._prediction.traced_peak(self._samples) - after)

    def _words(self, name: str) -> str:
        text = CHANGES[name].text
        if name == "smaller_input":
            return f"A smaller input: {current().leaner_models.halved_input(self._model)}."
        if name == "sgd":
            kind = type(self._model.optimizer).__name__
            kept = current().models.slot_bytes(self._model.optimizer, self._model)
            return f"{text} {kind} keeps {format_bytes(kept)}."
        return text

    @staticmethod
    def _saving(name: str, remedy: Remedy, peak: int, before: int) -> Change | None:
        if before - peak <= _WORTH * before:
            return None
        remedy = dataclasses.replace(remedy, bytes_saved=before - peak, predicted=True)
        return Change(name, remedy, peak)


def _code(name: str, changed: Any, layer: str) -> str:
    """How a change is written: by hand where that is short, else by `legroom.slim`."""
    if name == "average_pooling":
        # For pictures, sequences or volumes, as the changed model has it.
        facts = current().models.layer_facts(changed)
        kind = next((one.kind for one in facts if one.name == layer), "GlobalAveragePooling2D")
        return f"keras.layers.{kind}()  # instead of Flatten()"
    return CHANGES[name].code or f'model = legroom.slim(model, change="{name}")'
