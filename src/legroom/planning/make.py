"""From a model and a budget to a plan."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
from collections.abc import Collection, Iterator
from typing import Any

from legroom.backends.base import current
from legroom.core.errors import BadBudgetError, CannotFitError, LegroomError
from legroom.core.units import format_bytes, parse_size
from legroom.planning.bound import fingerprint, layer_names
from legroom.planning.choose import choose
from legroom.planning.ordered import ordered_strategy
from legroom.planning.slices import Slices
from legroom.planning.strategies import Plan, Strategy
from legroom.prediction.estimate import Estimate
from legroom.prediction.kept import kept_answer
from legroom.prediction.sources import Prediction, question_about, read_batch_size

__all__ = ["ALLOWED", "as_built", "plan", "read_budget"]

ALLOWED = ("slices", "order", "recompute", "mixed_precision")


def plan(
    model: Any,
    batch_size: int = 32,
    *,
    memory: str | int | None = None,
    allow: Collection[str] = ("slices", "order", "recompute"),
    exact: bool = False,
    data: Any = None,
    length: int | None = None,
    source: str = "auto",
) -> Plan:
    """Choose the fastest predicted strategy to train a model within a budget.

    Args:
        model: A compiled Keras model.
        batch_size: The batch size to train with; it stays the same in every plan.
        memory: The budget: "16GiB", "80%", bytes. Without it, what this machine has.
        allow: What may be used: "slices", "order" (of a step's ops), "recompute" (parts of the
            forward pass), "mixed_precision". The last changes numbers and is used only if named.
        exact: Only strategies that make the same update as the whole batch: no slices for
            BatchNorm.
        data: As in `legroom.estimate`.
        length: As in `legroom.estimate`.
        source: As in `legroom.estimate`.

    Raises:
        CannotFitError: If no strategy fits, with what each would need.
        BadBudgetError: If the budget can't be read, or is less than the weights take.
    """
    samples = read_batch_size(batch_size)
    names = (allow,) if isinstance(allow, str) else allow
    allow = tuple("recompute" if name == "remat" else name for name in names)  # its older name
    unknown = [name for name in allow if name not in ALLOWED]
    if unknown:
        raise LegroomError(f"allow takes {', '.join(map(repr, ALLOWED))}. Received: {unknown[0]!r}")
    budget = read_budget(memory, model)
    with as_built(model):
        question = question_about(
            model, data, batch_size=samples, budget=budget, allow=sorted(allow), exact=bool(exact),
            length=length, source=source,
        )  # fmt: skip

        def make() -> Plan:
            asked = Prediction(model, data=data, length=length, source=source)
            return _plan(asked, samples, budget, allow, exact=bool(exact), source=source)

        return kept_answer(Plan, question, make)[0]


def _plan(
    prediction: Prediction, samples: int, budget: int, allow: Collection[str], *, exact: bool,
    source: str,
) -> Plan:  # fmt: skip
    model = prediction.model
    whole = prediction.estimate(samples, budget)
    held = whole.breakdown["weights"] + whole.breakdown["optimizer"]
    if held > budget:
        raise CannotFitError(
            f"The weights and the optimizer's state of {whole.model!r} take {format_bytes(held)} "
            f"alone, and the budget is {format_bytes(budget)}. No batch size helps: give more "
            "memory, use a smaller model, or an optimizer without state (SGD).",
            needed_bytes=held,
            budget_bytes=budget,
        )
    strategies = _strategies(prediction, whole, samples, budget, allow, exact=exact, source=source)
    notes = list(whole.notes)
    coupled = current().models.coupling_layers(model)
    if coupled and not exact and any(strategy.slice_size is not None for strategy in strategies):
        notes.append(
            f"{_listed(coupled)} would take statistics from slices, not from the whole batch: not "
            "exactly the same training. exact=True leaves slices out."
        )
    chosen, others, better = choose(strategies, budget, exact=exact)
    if not chosen.sure:
        notes.append(
            f"{chosen.name} should fit, but this estimate is uncertain: if memory runs out, the "
            "training continues with smaller slices."
        )
    return Plan(
        model=whole.model,
        fingerprint=fingerprint(model),
        legroom=importlib.metadata.version("legroom"),
        batch_size=samples,
        budget_bytes=budget,
        chosen=chosen,
        alternatives=tuple(others),
        estimate=whole,
        next_better_bytes=better,
        notes=tuple(notes),
        exact=exact,
        layers=layer_names(model) if chosen.recompute else (),
    )


@contextlib.contextmanager
def as_built(model: Any) -> Iterator[None]:
    """Without what a plan that is in force recomputes: that is not the model as it is."""
    current().models.check_model(model, "fit")
    with current().recompute.recomputing(model, ()):
        yield


def _strategies(
    prediction: Prediction, whole: Estimate, samples: int, budget: int, allow: Collection[str], *,
    exact: bool, source: str,
) -> list[Strategy]:  # fmt: skip
    """All strategies that are allowed; those that do more work only if it does not fit as it is."""
    same = not current().models.coupling_layers(prediction.model)
    slices = Slices(prediction, whole, samples, exact=same)
    strategies = [_as_it_is(prediction, whole, slices, budget)]
    sliceable = "slices" in allow and samples > 1
    if sliceable:
        strategies.append(slices.strategy(budget))
    if strategies[0].fits:
        return strategies
    held_back = slices.held_back()
    others: list[Strategy | None] = []
    if "order" in allow:
        usable = [strategy for strategy in strategies if strategy.exact or not exact]
        others.append(ordered_strategy(prediction, whole, samples, budget - held_back, usable))
    if "recompute" in allow:
        # Not at the top: it needs NumPy, which a script that trains nothing need not load.
        from legroom.planning.recomputed import Recompute

        recompute = Recompute(prediction, samples, whole)
        others.append(recompute.whole(budget - held_back))
    if "mixed_precision" in allow:
        others.append(_mixed(prediction, samples, budget - held_back, source))
    strategies += [_with(held_back, strategy) for strategy in others if strategy is not None]
    if not sliceable or (exact and not same):
        return strategies
    if "recompute" in allow and not any(
        one.fits and (one.exact or not exact) for one in strategies
    ):
        # Both kinds of additional work: looked at only where neither is enough.
        both = recompute.sliced(slices.peak, budget, exact=same)
        strategies += [strategy for strategy in [both] if strategy is not None]
    if not any(strategy.fits for strategy in strategies):
        perhaps = slices.perhaps(budget)
        strategies += [strategy for strategy in [perhaps] if strategy is not None]
    return strategies


def read_budget(memory: str | int | None, model: Any = None) -> int:
    """A budget in bytes; without one, what is free for a model on the device that it trains on.

    Args:
        memory: What the user gave.
        model: A model that is there already: what it holds is part of its budget.

    Raises:
        BadBudgetError: If it can't be read.
    """
    if memory is not None:
        return parse_size(memory, whole=current().caps.whole_bytes())
    budget = _free_for(model)
    if budget is None:
        raise BadBudgetError(
            "The memory of the GPU that is trained on can't be read. Give memory= to plan "
            'by, as in memory="14GiB".'
        )
    if budget <= 0:
        raise BadBudgetError("No memory is free on this machine now. Give memory= to plan by.")
    return int(budget)


def _free_for(model: Any) -> int | None:
    """What a training of a model can have: of TensorFlow's pool, once there is one."""
    from legroom.machine.memory import device_limit, host_available

    backend, pool = current(), current().device
    if not pool.has_started():
        return device_limit() if backend.caps.uses_gpu() else host_available()
    limit = pool.limit_bytes()
    if limit is None:
        return host_available() if pool.device_name() == "CPU:0" else None
    _, held = backend.growth.weigh(model) or ("", 0)
    return limit - max(0, (pool.in_use_bytes() or 0) - held)


def _as_it_is(prediction: Prediction, whole: Estimate, slices: Slices, budget: int) -> Strategy:
    if whole.source == "compiled":
        # It takes one large piece. In a pool that has room that may be handed out generously, so
        # that its peak says less of what it needs than the smallest pool that it runs in.
        peak = prediction.peak(whole.batch_size)
        return Strategy("as it is", peak, 1.0, peak <= budget)
    peak = max(whole.high_bytes, whole.first_step_bytes)
    if peak <= budget < peak + whole.breakdown["weights"]:
        peak += slices.held_back()
    return Strategy("as it is", peak, 1.0, peak <= budget)


def _with(added: int, strategy: Strategy) -> Strategy:
    """A strategy that takes so much more."""
    if strategy.peak_bytes is None:
        return strategy
    return dataclasses.replace(strategy, peak_bytes=strategy.peak_bytes + added)


def _mixed(prediction: Prediction, samples: int, budget: int, source: str) -> Strategy:
    why = "only the model's own code knows what it is made of"
    try:
        with current().leaner_models.imagined(prediction.model, "float16") as other:
            if other is not None:
                asked = Prediction(other, source=source, **prediction.asked)
                made = asked.estimate(samples, budget)
                peak = max(made.high_bytes, made.first_step_bytes)
                # It changes numbers, and was allowed by name: it counts as the user's own choice.
                return Strategy("mixed precision", peak, 0.9, peak <= budget, mixed_precision=True)
    except LegroomError as error:
        why = str(error)
    return Strategy("mixed precision", None, 0.9, False, exact=False, mixed_precision=True,
               reason=f"could not be predicted: {why}")  # fmt: skip


def _listed(names: Collection[str]) -> str:
    first, *rest = names
    return first if not rest else f"{first} and {len(rest)} more"
