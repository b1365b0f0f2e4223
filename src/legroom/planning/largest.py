"""The largest batch that fits: predicted, and tried before it is returned."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from legroom.backends.base import current
from legroom.core.errors import BadBudgetError, CannotFitError, LegroomError
from legroom.core.units import format_bytes
from legroom.machine.budget import CONTEXT_BYTES, DeviceReading
from legroom.planning.choose import largest_that_fits
from legroom.planning.make import read_budget
from legroom.prediction.sources import Prediction, read_count

__all__ = ["Tries", "largest_batch", "refuse_card", "round_down", "search"]

_LEAST = 2**20


@dataclasses.dataclass(frozen=True)
class Tries:
    """How sizes are tried, by what a try costs and how steady a step's need is.

    Attributes:
        share: Of the budget, that a size is tried in. One and the same step does not take the same
            in every process, and a size at the edge would run today and not tomorrow.
        up: The next size, where one fits.
        most_up: How often that is tried.
        down: The next size, where one does not.
        between: How many sizes are tried between one that fits and one that does not.
    """

    share: float = 0.96
    up: float = 1.12
    most_up: int = 2
    down: float = 0.85
    between: int = 0


_IN_A_CHILD = Tries()
# No process has to be started, but a step may take long.
_HERE = Tries(between=2)
# A try takes a second, and the need is the same each time.
_ON_A_CARD = Tries(share=0.99, up=1.05, most_up=8, down=0.95, between=8)
# Sizes closer than this share of them are alike.
_ALIKE = 0.005
# A larger batch is of no use to anyone, and may be a model without memory to speak of.
_MOST = 2**20


def largest_batch(
    model: Any,
    *,
    memory: str | int | None = None,
    most: int | None = None,
    multiple: int = 1,
    power_of_two: bool = False,
    data: Any = None,
    length: int | None = None,
) -> int:
    """The largest batch size that a model trains with in the memory there is.

    It is predicted, and then tried: real steps of that size are taken, in a pool that is a little
    smaller than the budget, on the device that this process trains on. A number that was not tried
    is never returned.

    On TensorFlow a child process takes the steps. On a GPU, where this is not yet verified, it
    needs memory beside this process, and TensorFlow reserves most of a card when it starts: turn
    memory growth on before the model is made. On PyTorch and JAX they are taken in this process,
    and everything that they change is put back.

    Args:
        model: A compiled Keras model.
        memory: The budget: "16GiB", "80%", bytes. Without it, what this machine has.
        most: The largest size of use: the number of samples there are, for one.
        multiple: Only multiples of this: 8, for one.
        power_of_two: Only powers of two.
        data: As in `legroom.estimate`.
        length: As in `legroom.estimate`.

    Raises:
        CannotFitError: If not even the smallest such size fits.
        BadBudgetError: If the budget is more than this machine has to try it with, or less than
            TensorFlow can be held to.
    """
    read_count("multiple", multiple)
    bound = _MOST if most is None else read_count("most", most)
    budget = read_budget(memory, model)
    _check_can_try(budget)
    card = current().device.card_number()

    def allowed(size: int) -> int:
        return round_down(min(size, bound), multiple, power_of_two)

    smallest = 1 if power_of_two else multiple
    if allowed(bound) < smallest:
        raise LegroomError(f"No multiple of {multiple} is as small as most={most}.")
    source = "probed" if current().predictions.probes() else "auto"
    prediction = Prediction(model, data=data, length=length, source=source)
    tried: dict[int, bool] = {}
    here = current().predictions.tries_here()
    tries = _IN_A_CHILD if not here else _HERE if card is None else _ON_A_CARD
    room = int(tries.share * budget)

    def fits(size: int) -> bool:
        if size not in tried:
            tried[size] = prediction.try_size(size, max(_LEAST, room), card)
        return tried[size]

    guess = largest_that_fits(prediction.middle_peak, room if here else budget, bound)
    begin = allowed(max(guess, smallest)) or smallest
    found = search(begin, smallest, fits, allowed, tries)
    if found is None:
        needed = prediction.estimate(smallest).peak_bytes
        raise CannotFitError(
            f"A batch of {smallest} does not fit: it needs about {format_bytes(needed)}, and the "
            f"budget is {format_bytes(budget)}. Give more memory, or make the model or its inputs "
            "smaller.",
            needed_bytes=needed,
            budget_bytes=budget,
        )
    return found


def round_down(size: int, multiple: int, power_of_two: bool) -> int:
    """The largest size of the wanted form that is not above this one; 0 if there is none."""
    if power_of_two:
        return 1 << (size.bit_length() - 1) if size > 0 else 0
    return size // multiple * multiple


def search(
    guess: int,
    smallest: int,
    fits: Callable[[int], bool],
    allowed: Callable[[int], int],
    tries: Tries = _IN_A_CHILD,
) -> int | None:
    """From a guess to the largest size that was tried and fits.

    Args:
        guess: A size of the wanted form.
        smallest: The smallest such size.
        fits: Tries a size.
        allowed: Rounds a size down to the wanted form.
        tries: How far, and how often.
    """
    failed: list[int] = []

    def tried(size: int) -> bool:
        if fits(size):
            return True
        failed.append(size)
        return False

    found = _around(guess, smallest, tried, allowed, tries)
    for _ in range(tries.between if found is not None and failed else 0):
        assert found is not None
        middle = allowed((found + min(failed)) // 2)
        if middle <= found or min(failed) - found <= _ALIKE * found:
            break
        if tried(middle):
            found = middle
    return found


def _around(
    guess: int,
    smallest: int,
    fits: Callable[[int], bool],
    allowed: Callable[[int], int],
    tries: Tries,
) -> int | None:
    """The largest size that fits, in steps down or up from a guess."""
    size = guess
    while not fits(size):
        smaller = allowed(int(size * tries.down))
        if smaller >= size:
            smaller = allowed(size - 1)
        if smaller < smallest:
            return None
        size = smaller
    if size < guess:
        return size  # the next larger one failed
    for _ in range(tries.most_up):
        larger = allowed(math.ceil(size * tries.up))
        if larger <= size:
            larger = allowed(size * 2)  # the next power, or multiple
        if larger <= size or not fits(larger):
            return size
        size = larger
    return size


def _check_can_try(budget: int) -> None:
    from legroom.machine.memory import host_available

    if budget < _LEAST:
        raise BadBudgetError(
            f"A batch can't be tried in {format_bytes(budget)}: limits are whole MiB. "
            "Give memory= of 1MiB or more."
        )
    reading = current().device.read_device()
    if reading.is_gpu and current().predictions.tries_here():
        limit = current().device.limit_bytes()
        if limit is not None and budget > limit:
            raise BadBudgetError(
                f"A batch for {format_bytes(budget)} can't be tried on {reading.device}, which has "
                f"{format_bytes(limit)}. Give memory= within that, or ask legroom.plan(model, "
                "batch_size), which predicts and tries nothing."
            )
        return
    if reading.is_gpu:
        reason = refuse_card(reading, budget)
        if reason is not None:
            raise BadBudgetError(reason)
        return
    free = host_available()
    if budget > free:
        raise BadBudgetError(
            f"A batch for {format_bytes(budget)} can't be tried on this machine, which has "
            f"{format_bytes(free)} free. Give memory= within that, or ask `legroom plan "
            "--device …`, which predicts and tries nothing."
        )


def refuse_card(reading: DeviceReading, budget: int) -> str | None:
    """Why a batch for a budget can't be tried on a card; None where it can.

    The trial is another process: all that it needs must be free beside this one.
    """
    what = f"A batch for {format_bytes(budget)} can't be tried on {reading.device}"
    growth = (
        "TensorFlow reserves most of a card when it starts: call "
        "tf.config.experimental.set_memory_growth(gpu, True) before the model is made"
    )
    asks = "or ask legroom.plan(model, batch_size), which predicts and tries nothing."
    if reading.free_bytes is None:
        return f"{what}: the driver does not tell how much of the card is free. Instead, {asks[3:]}"
    room = max(0, reading.free_bytes - CONTEXT_BYTES)
    if room >= int(_IN_A_CHILD.share * budget):
        return None
    return (
        f"{what}: it is tried in a process of its own, and only {format_bytes(room)} are left for "
        f"that. {growth}, give memory= within what is left, {asks}"
    )
