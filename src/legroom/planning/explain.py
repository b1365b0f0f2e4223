"""``legroom.explain`` as users get it: with the model where they have it at hand.

Reading messages and showing them are floors below, and need no framework; only a model that is
handed over brings one along.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from legroom.backends.base import current, named, running
from legroom.core.units import format_bytes
from legroom.messages.explain import explain as explain_text
from legroom.messages.model import Advice
from legroom.messages.reading.ops import match_layer
from legroom.report.explain import Diagnosis

__all__ = ["KnownModel", "advise_to_fit", "explain", "explain_with_models", "read_model_file"]

_SECONDS = 30.0  # spent on trying changes; those that come later are left out


class KnownModel:
    """A Keras model as a diagnosis asks for it (`legroom.messages.model.ModelAtHand`).

    Args:
        model: The model; its weights need no values.
        title: How it is called in sentences; by its own name without it.
        batch_size: The batch it is trained with, where the user said so.
        guarded: Whether legroom runs the training: to do so is no remedy then.
    """

    def __init__(
        self,
        model: Any,
        *,
        title: str | None = None,
        batch_size: int | None = None,
        guarded: bool = False,
    ) -> None:
        self._model = model
        self._guarded = guarded
        self.title = title or f"the model {model.name}"
        self.batch_size = batch_size
        # Where legroom does not know Keras's backend yet, layers are read all the same.
        self._models = (running() or named("tensorflow")).models
        self.layers = self._models.layer_facts(model)

    def advise(self, batch: int | None, limit_bytes: int | None, device: str | None) -> Advice:
        """Predict what a step needs, and what would save how much."""
        from legroom.planning.advice import advise

        if batch is None:
            return Advice(
                ""
                if self._guarded
                else "How large the batch was is not said; with --batch-size N (batch_size=N in "
                "Python) legroom predicts what each remedy saves."
            )
        if self._models.open_axes(self._model):
            return Advice(
                f"{self.title[:1].upper()}{self.title[1:]} leaves the length of its input open, so "
                "what a step needs can't be predicted."
            )
        try:
            found = advise(
                self._model,
                batch,
                limit_bytes,
                on_gpu=device is None or device.startswith("GPU"),
                guarded=self._guarded,
                seconds=_SECONDS,
            )
        except Exception:  # a model's own code, or Keras on another backend
            return Advice()
        estimate = found.estimate
        held = estimate.breakdown["weights"] + estimate.breakdown["optimizer"]
        samples = "one sample" if batch == 1 else f"a batch of {batch}"
        sentence = (
            f"A training step of {self.title} on {samples} is predicted to need about "
            f"{format_bytes(estimate.peak_bytes)}: {format_bytes(held)} for weights and optimizer, "
            f"{format_bytes(estimate.peak_bytes - held)} for the step itself."
        )
        return Advice(sentence, tuple(change.remedy for change in found.changes))


def read_model_file(path: Path, batch_size: int | None = None) -> KnownModel:
    """A saved model. Its weights are not loaded and no code in it is run.

    Raises:
        UnsupportedModelError: If it is none, is damaged, or holds classes that are not Keras's.
        OSError: If it can't be read.
    """
    files = current().model_files
    model = files.imagined_model(files.read_config(path))
    return KnownModel(model, title=path.name, batch_size=batch_size)


def explain(
    subject: BaseException | str | bytes | os.PathLike[str],
    *,
    model: Any = None,
    batch_size: int | None = None,
) -> Diagnosis:
    """Say what an exception, a message or a log means: what ran out, why, and what to do.

    Args:
        subject: The exception that was caught, the text of a message or of a whole log, or the
            path of a log or notebook as a ``pathlib.Path``.
        model: The Keras model that was trained, where it is at hand: then the failing op is tied
            to its layer, and what each remedy saves is predicted.
        batch_size: The batch it was trained with, where the message does not tell.

    Returns:
        A `Diagnosis`. It shows itself in a notebook and with ``rich.print``.
    """
    if model is None:
        return explain_text(subject)
    return explain_text(subject, KnownModel(model, batch_size=batch_size))


def explain_with_models(error: BaseException, models: Sequence[Any]) -> Diagnosis:
    """Explain an error to ``legroom run``, with the one of several models that it came from.

    Args:
        error: The error.
        models: Keras models that were at hand, the likeliest first.
    """
    plain = explain_text(error)
    for model in models:
        known = KnownModel(model, guarded=True)
        names = {name for layer in known.layers for name in (layer.name, layer.kind)}
        if plain.layer is None or match_layer(plain.layer, names):
            return explain_text(error, known)
    return plain


def advise_to_fit(models: Sequence[Any], limit_bytes: int | None) -> Diagnosis | None:
    """What one sample of a model needs, and what would save how much; None without a model.

    For a training that does not fit even at one sample at a time: nothing failed that could be
    read, but what to do is the same.
    """
    for model in models:
        known = KnownModel(model, guarded=True)
        advice = known.advise(1, limit_bytes, current().device.device_name())
        if advice.remedies:
            return Diagnosis(
                is_oom=True,
                fatal=True,
                framework=current().name,
                limit_bytes=limit_bytes,
                story=advice.sentence,
                remedies=advice.remedies,
            )
    return None
