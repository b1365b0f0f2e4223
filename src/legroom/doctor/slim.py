"""``legroom.slim``: a leaner copy of a model."""

from __future__ import annotations

from typing import Any

from legroom.backends.base import current
from legroom.core.errors import UnsupportedModelError
from legroom.core.events import Note, emit
from legroom.planning.changes import CHANGES, PRUNED_SHARE

__all__ = ["slim"]

_INT8, _PRUNED = "int8", "pruned"  # of a model that is trained


def slim(model: Any, *, change: str) -> Any:
    """A copy of a model with one change that makes it leaner; the model itself stays as it is.

    Weights are taken over where their shapes allow, the others begin anew. It is another model:
    train it, and compare its accuracy before you keep it. `legroom.check(model)` says what each
    change would save.

    Args:
        model: A sequential or functional Keras model.
        change: "average_pooling", "separable", "factorized_embedding", "hashed_embedding",
            "bottleneck", "fewer_units", "smaller_input", "bfloat16", "float16", "sgd",
            "eight_bits"; or, for a model that is trained, "int8" or "pruned".

    Returns:
        The changed model, compiled as the old one.

    Raises:
        ValueError: If there is no such change, or nothing that it would change.
        UnsupportedModelError: If the model's architecture is known to its own code only.
    """
    if change not in (_INT8, _PRUNED, *CHANGES):
        names = ", ".join([*CHANGES, _INT8, _PRUNED])
        raise ValueError(f"There is no change {change!r}. Expected one of {names}.")
    backend = current()
    if backend.models.architecture(model) is None:
        raise UnsupportedModelError(
            f"legroom.slim changes sequential and functional models; what {model.name!r} is made "
            "of is known to its own code only. legroom.check(model) says what to change there."
        )
    if change == _INT8:
        made, changed = backend.after_training.int8_model(model)
        if not changed:
            raise ValueError(f"{model.name!r} has no layer that can hold int8: no Dense, Embedding")
        told = f"slim: int8 in {', '.join(changed)}. Compare the accuracy before you use it."
        emit(Note(told))
        return made
    if change == _PRUNED:
        emit(Note("slim: half of each matrix's weights are zero. Compare the accuracy."))
        return backend.after_training.pruned_model(model, PRUNED_SHARE)
    done = backend.leaner_models.changed_model(model, change)
    if done is None:
        raise ValueError(f"{model.name!r} has nothing that {change!r} would change.")
    made, fresh = done
    anew = f" New weights in {', '.join(fresh)}." if fresh else ""
    emit(Note(f"slim: {CHANGES[change].text}{anew} Train it, and compare the accuracy."))
    return made
