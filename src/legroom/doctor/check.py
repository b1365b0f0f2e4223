"""``legroom.check``: what data, or a loop in a function, costs; each thing with its fix."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from legroom.core.findings import Finding, ranked
from legroom.doctor.suppressions import read_ids, wanted

__all__ = ["check"]


def check(
    subject: Any, *, batch_size: int | None = None, ignore: Iterable[str] = ()
) -> list[Finding]:
    """Look at what a training is given, before it runs.

    Args:
        subject: A `tf.data` pipeline, arrays in any structure (`(x, y)`), a `PyDataset`: what each
            holds of main memory. A function is called once, without arguments, and its loops are
            watched.
        batch_size: As for `fit`, where the data is not batched yet.
        ignore: Ids of findings that are not wanted.

    Returns:
        The findings, what matters most first; each has a `text`, a `fix` and its `bytes`.

    Raises:
        TypeError: If it is none of these.
    """
    ids = read_ids([ignore] if isinstance(ignore, str) else ignore)
    if isinstance(subject, (types.FunctionType, types.MethodType)):
        from legroom.doctor.watch import watch

        with watch(quiet=True) as seen:
            subject()
        return ranked(wanted(seen.findings, ids))
    from legroom.doctor.pipelines import check_input, is_input

    if not is_input(subject):
        raise TypeError(
            "legroom.check looks at data and functions: a tf.data pipeline, arrays, a PyDataset, "
            f"or a function without arguments. Received: {type(subject).__name__}"
        )
    return ranked(wanted(check_input(subject, batch_size=batch_size), ids))
