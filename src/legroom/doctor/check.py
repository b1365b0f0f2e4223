"""``legroom.check``: what data, a model, or a loop costs; each thing with its fix."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Any

from legroom.core.findings import Finding, ranked
from legroom.doctor.suppressions import read_ids, wanted

__all__ = ["check"]


def check(
    subject: Any,
    *,
    batch_size: int | None = None,
    data: Any = None,
    memory: str | int | None = None,
    ignore: Iterable[str] = (),
) -> list[Finding]:
    """Look at what a training is given, before it runs.

    Args:
        subject: A `tf.data` pipeline, arrays in any structure (`(x, y)`), a `PyDataset`: what each
            holds of main memory. A compiled model: which layers hold the memory of a step, and
            what each change would save (a minute: each is tried in a process of its own). A
            function is called once, without arguments, and its loops are watched.
        batch_size: As for `fit`: for arrays, and for a model, where it is 32 without it.
        data: For a model, one batch, where the model alone does not tell what `fit` is given.
        memory: For a model, the memory there is for it, as for `legroom.plan`.
        ignore: Ids of findings that are not wanted.

    Returns:
        The findings, what matters most first; each has a `text`, a `fix` and its `bytes`.

    Raises:
        TypeError: If it is none of these.
        ValueError: If a batch size is given for data that comes in batches.
    """
    ids = read_ids([ignore] if isinstance(ignore, str) else ignore)
    if isinstance(subject, (types.FunctionType, types.MethodType)):
        from legroom.doctor.growing.watch import watch

        with watch(quiet=True) as seen:
            subject()
        return ranked(wanted(seen.findings, ids))
    if "keras" in sys.modules and isinstance(subject, sys.modules["keras"].Model):
        from legroom.doctor.diet import check_model

        found = check_model(subject, batch_size=batch_size, data=data, memory=memory)
        return ranked(wanted(found, ids))
    from legroom.doctor.pipelines import check_input, is_input

    if not is_input(subject):
        raise TypeError(
            "legroom.check looks at data, models and functions: a tf.data pipeline, arrays, a "
            "PyDataset, a compiled Keras model, or a function without arguments. "
            f"Received: {type(subject).__name__}"
        )
    return ranked(wanted(check_input(subject, batch_size=batch_size), ids))
