"""What users call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, overload

from legroom.backends.base import current, running
from legroom.core.aside import say_left_out
from legroom.core.errors import UnsupportedModelError
from legroom.core.process.disabled import is_disabled
from legroom.core.units import parse_size
from legroom.guarding.importing import cap_when_imported
from legroom.guarding.options import GuardOptions

if TYPE_CHECKING:
    from legroom.planning.strategies import Plan

__all__ = ["fit", "guard", "install", "limit", "resumable", "step"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def fit(
    model: Any,
    *args: Any,
    memory: str | int | None = None,
    exact: bool = False,
    slice_size: int | None = None,
    plan: Plan | None = None,
    snapshots: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Any:
    """Train a Keras model like `model.fit`, in the memory there is.

    Args:
        model: The compiled model.
        *args: As for `model.fit`.
        memory: A budget to plan by ("8GiB", "80%"): slices are chosen to stay under it.
        exact: Never slice what slices would change (BatchNorm, losses that couple samples).
        slice_size: Slices fixed by hand.
        plan: What `legroom.plan` returned for this model: where to begin. If memory runs out all
            the same, or there is room for more, the training goes on in other slices.
        snapshots: A folder to keep the training in while it runs. If the process is killed, the
            same call goes on where it was; when the training has ended, the folder is emptied.
        **kwargs: As for `model.fit`.

    Returns:
        Keras's `History`; its `.legroom` is the run's `legroom.RunReport`.

    Raises:
        CannotFitError: If even one sample at a time is too much.
        LegroomError: If the plan is for another model, or of another version of legroom.
        SnapshotError: If another process trains in the folder.
    """
    if is_disabled():
        return _plain_fit(model, args, kwargs)
    from legroom.guarding.registry import registry
    from legroom.guarding.resuming.kept import kept_in

    _checked(model)
    options = GuardOptions.read(memory, exact, slice_size)
    if plan is not None:
        from legroom.guarding.planned import planned_options

        options = planned_options(model, plan, options)
    with kept_in(snapshots), registry.guarding(model, options):
        history = model.fit(*args, **kwargs)
    if not hasattr(history, "legroom"):  # trained as Keras would
        from legroom.report.run import RunReport

        history.legroom = RunReport.from_events([])
    return history


def guard(
    model: Any,
    *,
    memory: str | int | None = None,
    exact: bool = False,
    slice_size: int | None = None,
) -> Any:
    """Guard a model's own `fit`, `evaluate`, `predict` and `*_on_batch` from now on.

    Args:
        model: The Keras model.
        memory: A budget to plan by.
        exact: Never slice what slices would change.
        slice_size: Slices fixed by hand.

    Returns:
        The same model.
    """
    if is_disabled():
        return model
    options = GuardOptions.read(memory, exact, slice_size)
    from legroom.guarding.registry import registry

    registry.add(_checked(model), options)
    return model


def install(*, memory: str | int | None = None, exact: bool = False) -> None:
    """Guard every Keras model of this process from now on; in notebooks `%load_ext legroom`."""
    if is_disabled():
        return
    options = GuardOptions.read(memory, exact)
    _refuse_legacy()
    from legroom.guarding.registry import registry

    registry.add_everything(options)


def limit(size: str | int) -> None:
    """Cap the device memory of this process.

    To be called before TensorFlow takes memory; on a CPU before it is imported.

    Raises:
        BadBudgetError: If the size can't be used, or it is too late.
    """
    if is_disabled():
        return
    backend = current()
    limit_bytes = parse_size(size, whole=backend.caps.whole_bytes())
    if running() is not None:
        backend.device.set_limit(limit_bytes)
    else:
        os.environ.update(backend.caps.cap_environment(limit_bytes))
        # What is capped by a call, when it is there. A script may turn out to be plain PyTorch, or
        # choose Keras's backend itself.
        for name in dict.fromkeys((backend.name, "torch", "jax")):
            cap_when_imported(name, limit_bytes)


def resumable(dataset: Iterable[T], state: Any) -> Iterator[T]:
    """Go through a data set in a loop written by hand, so that a killed run can go on in it.

    Under `legroom run`, the loop goes on with the next batch and everything in `state` as it was;
    passes that had ended are over at once. Elsewhere it is a plain loop.

    Args:
        dataset: What to go through, once. Data that can be asked for by number is; a `DataLoader`
            without workers draws its order again and reads nothing before the place; other data is
            read and passed over up to the place, so it must come in the same order again.
        state: What the loop changes, by name: models, optimizers, metrics, variables, lists and
            dicts of plain values; on PyTorch modules, optimizers, schedulers, a `GradScaler`, and
            whatever else has a `state_dict`; on JAX trees of arrays, in a dict that the loop puts
            new ones into.
    """
    from legroom.snapshots.run import current_run

    run = current_run()
    if run is None or run.training is not None:
        return iter(dataset)
    from legroom.guarding.resuming.resumable import KeptLoop, as_state

    return iter(KeptLoop(run, dataset, as_state(state)))


@overload
def step(function: F) -> F: ...
@overload
def step(
    *, memory: str | int | None = ..., exact: bool = ..., slice_size: int | None = ...,
    returns: Any = ...,
) -> Callable[[F], F]: ...  # fmt: skip
def step(
    function: Any = None,
    *,
    memory: str | int | None = None,
    exact: bool = False,
    slice_size: int | None = None,
    returns: Any = None,
) -> Any:
    """Guard a hand-written training step, plain or a `tf.function`.

    Arguments that share their first axis with the first tensor among them are sliced, others are
    passed whole. What the step returns is put together again: one entry for each sample is joined,
    a mean stays a mean, a sum a sum.

    Args:
        function: The step.
        memory: A budget to plan by.
        exact: Never slice what slices would change.
        slice_size: Slices fixed by hand.
        returns: How results are put together, where the guess is wrong: "mean", "sum", "concat"
            or "last", one for all or a structure like the result's.
    """
    options = GuardOptions.read(memory, exact, slice_size)

    def decorate(inner: Any) -> Any:
        if is_disabled():
            return inner
        from legroom.backends import patches

        if (lacking := patches.missing("guard")) is not None:
            from legroom.guarding.session import terminal

            with terminal():
                say_left_out("every step runs as it is, without legroom", lacking)
            return inner
        from legroom.guarding.registry import supervised
        from legroom.guarding.session import SpeakingStep

        patches.switch_on()
        return current().functions.guarded_function(
            inner, lambda made: SpeakingStep(supervised(made, options)), returns
        )

    return decorate if function is None else decorate(function)


def _plain_fit(model: Any, args: Any, kwargs: Any) -> Any:
    """Keras's own, with an empty report for scripts that look at it."""
    from legroom.report.run import RunReport

    history = model.fit(*args, **kwargs)
    history.legroom = RunReport()
    return history


def _checked(model: Any) -> Any:
    _refuse_legacy()
    import keras

    if not isinstance(model, keras.Model):
        module = type(model).__module__
        legacy = " It is a model of the old tf_keras; legroom needs Keras 3." * (
            module.startswith("tf_keras")
        )
        raise UnsupportedModelError(
            f"Expected a Keras model.{legacy} Received: {type(model).__name__} of {module}"
        )
    return model


def _refuse_legacy() -> None:
    if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):
        raise UnsupportedModelError(
            "TF_USE_LEGACY_KERAS is set, so tf.keras is the old Keras 2. legroom guards Keras 3: "
            "unset the variable, and import keras (or tf.keras) as it comes with TensorFlow."
        )
