"""``legroom.explain`` as users get it: with the model where they have it at hand.

Reading messages and showing them are floors below, and need no framework; only a model that is
handed over brings one along.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from legroom.backends.base import current
from legroom.messages.explain import explain as explain_text
from legroom.messages.ops import match_layer
from legroom.report.explain import Diagnosis

__all__ = ["advise", "explain", "explain_with_models"]


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
    from legroom.prediction.leaner import LeanerModel

    return explain_text(subject, LeanerModel.of(model, batch_size=batch_size))


def explain_with_models(error: BaseException, models: Sequence[Any]) -> Diagnosis:
    """Explain an error to ``legroom run``, with the one of several models that it came from.

    Args:
        error: The error.
        models: Keras models that were at hand, the likeliest first.
    """
    from legroom.prediction.leaner import LeanerModel

    plain = explain_text(error)
    for model in models:
        leaner = LeanerModel.of(model, running=True)
        names = {name for layer in leaner.layers for name in (layer.name, layer.kind)}
        if plain.layer is None or match_layer(plain.layer, names):
            return explain_text(error, leaner)
    return plain


def advise(models: Sequence[Any], limit_bytes: int | None) -> Diagnosis | None:
    """What one sample of a model needs, and what would save how much; None without a model.

    For a training that does not fit even at one sample at a time: nothing failed that could be
    read, but what to do is the same.
    """
    if not models:
        return None
    from legroom.prediction.leaner import LeanerModel

    for model in models:
        leaner = LeanerModel.of(model, running=True)
        advice = leaner.advise(1, limit_bytes, current().device.device_name())
        if advice.remedies:
            remedies = sorted(advice.remedies, key=lambda one: -(one.bytes_saved or 0))
            return Diagnosis(
                is_oom=True,
                fatal=True,
                framework="tensorflow",
                limit_bytes=limit_bytes,
                story=advice.sentence,
                remedies=tuple(remedies),
            )
    return None
