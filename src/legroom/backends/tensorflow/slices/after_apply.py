"""What a step does after its last `apply`.

A moving average of the weights, a second net that follows the first, weights clipped to a range:
all that looks at the new weights, which only exist when all slices are through. So in slices it is
left out, and done once after them. It may then need nothing of the batch, and nothing else that the
step does may need the new weights; both can be tried.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from keras import tree

from legroom.backends.tensorflow.commit.collect import Applied, collecting, inner_variable
from legroom.backends.tensorflow.effects.side_effects import on_trial
from legroom.backends.tensorflow.effects.write_log import logging_writes, writing_only
from legroom.backends.tensorflow.slices.neutral import neutral
from legroom.backends.tensorflow.slices.observe import to_array
from legroom.backends.tensorflow.step.traits import Traits

__all__ = ["run_tail", "tail_refusal", "without_tail"]


def run_tail(call: Callable[[Any], Any], data: Any, applies: int, late: Collection[int]) -> None:
    """Run a step of which only the tail is written.

    In a graph, what leads up to the last apply is then needed by nothing, and is not computed.

    Args:
        call: The step.
        data: Any slice of its batch.
        applies: How many optimizers it applies.
        late: The ids of the variables that the tail writes.
    """
    applied = 0

    def catch(_: Applied) -> None:
        nonlocal applied
        applied += 1

    late_only = writing_only(lambda v: applied == applies and id(v) in late)
    with on_trial(), collecting(catch), late_only:
        call(data)


@contextlib.contextmanager
def without_tail(is_in_tail: Callable[[], bool], late: Collection[int]) -> Iterator[None]:
    """Leave out what a step writes in its tail.

    Args:
        is_in_tail: Whether the last apply is behind it, asked at each write.
        late: The ids of the variables that the tail writes.
    """
    with writing_only(lambda v: not (id(v) in late and is_in_tail())):
        yield


def tail_refusal(
    traits: Traits, pieces: Collection[Any], applies: int, late: Collection[int], same: Any
) -> str | None:
    """Why a step's tail can't be left for the end, if it can't.

    Args:
        traits: The step.
        pieces: Different slices of a batch.
        applies: How many optimizers the step applies.
        late: The ids of the variables that the tail writes.
        same: Whether two arrays are equal up to rounding.
    """

    def tail(data: Any) -> None:
        run_tail(traits.call, data, applies, late)

    first, *others = [_written(traits, tail, piece)[1] for piece in pieces]
    for other in others:
        if other.keys() != first.keys() or not all(
            np.array_equal(other[key], first[key], equal_nan=True) for key in first
        ):
            return "after applying its optimizer it uses the new weights and its batch together"
    piece = next(iter(pieces))
    plain, moved = (
        _written(traits, _moving(traits.call, applies, late, by), piece) for by in (0.0, 0.25)
    )
    if not all(
        one is other or same(one, other) for one, other in zip(plain[0], moved[0], strict=True)
    ):
        return "it returns what it computes from the weights after applying its optimizer"
    if not all(same(plain[1][key], moved[1].get(key)) for key in plain[1]):
        return "it writes what it computes from its batch with the weights after applying"
    return None


def _moving(
    call: Callable[[Any], Any], applies: int, late: Collection[int], by: float
) -> Callable[[Any], Any]:
    """The step without its tail, with the weights moved at the last apply by a part of them."""

    def run(data: Any) -> Any:
        applied = 0

        def catch(caught: Applied) -> None:
            nonlocal applied
            if applied == applies - 1:
                for variable in map(inner_variable, caught.variables if by else ()):
                    variable.assign(variable * (1 + by) + by)
            applied += 1

        with collecting(catch), without_tail(lambda: applied == applies, late):
            return call(data)

    return run


def _written(
    traits: Traits, body: Callable[[Any], Any], data: Any
) -> tuple[list[Any], dict[int, Any]]:
    """What a body returns and what it writes; then all is as it was."""
    with logging_writes() as log:

        def logged(inputs: Any) -> Any:
            with logging_writes(log), on_trial():
                return body(inputs)

        try:
            with neutral():
                outputs = traits.run(logged, data)
            leaves = [to_array(leaf) for leaf in tree.flatten(outputs)]
            return leaves, {id(v): to_array(v) for v, _ in log.written}
        finally:
            log.restore()
