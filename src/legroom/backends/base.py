"""What a framework must do for legroom, and which one Keras runs on here.

The floors above know a framework by these protocols only, and get it from `current` or `running`.
A backend is a class with a property for each of them, which imports what is behind it when it is
first asked for: asking which backend there is imports no framework. Mostly a module is behind it,
whose functions are the protocol's. Protocols about data are in `inputs`, those about models that
are looked at and not trained in `models`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from legroom.backends.inputs import Fits, Input, Passages, Shuffles, Streams, WatchedEpochs
from legroom.backends.models import (
    AfterTraining,
    LeanerModels,
    ModelFiles,
    Models,
    Predictions,
    StepForecast,
)
from legroom.backends.steps import BackendStep
from legroom.core.errors import UnsupportedModelError
from legroom.core.traces import LayerCost
from legroom.machine.budget import DeviceReading

__all__ = [
    "SPELLED",
    "AfterTraining",
    "Backend",
    "Caps",
    "Device",
    "Errors",
    "Fits",
    "Functions",
    "Growth",
    "GrowthSigns",
    "HostCopies",
    "Input",
    "LeanerModels",
    "ModelFiles",
    "Models",
    "Passages",
    "Predictions",
    "Recompute",
    "Shuffles",
    "State",
    "StepForecast",
    "Streams",
    "Trainer",
    "WatchedEpochs",
    "current",
    "imported",
    "named",
    "running",
    "used_name",
]


class Caps(Protocol):
    """Hard caps on the device of a process, set before the framework is imported."""

    def cap_environment(self, limit_bytes: int, *, keep_onednn: bool = False) -> dict[str, str]:
        """The environment that caps the device of a process about to start."""
        ...

    def capped_bytes(self) -> int | None:
        """The cap this process was started with, if any."""
        ...

    def cap_imported(self, limit_bytes: int) -> None:
        """Cap this process, whose framework was just imported, where its environment does not."""
        ...

    def uses_gpu(self) -> bool:
        """Whether the framework, when it starts, will find a GPU here."""
        ...

    def whole_bytes(self) -> int | None:
        """What 100 % means in a size; None where that is a GPU that nobody tells about."""
        ...


class Device(Protocol):
    """The memory that is trained in."""

    def device_name(self) -> str:
        """The device that training runs on: "CPU:0", "GPU:1"."""
        ...

    def card_number(self) -> int | None:
        """Which of the cards that CUDA shows it is on; None for a CPU."""
        ...

    def has_started(self) -> bool:
        """Whether the framework has set up its memory, so that its limit can be read."""
        ...

    def has_limit(self) -> bool:
        """Whether there is a hard limit; asked before every step, so no size is read."""
        ...

    def limit_bytes(self) -> int | None:
        """The hard limit, where there is one that the framework knows of."""
        ...

    def is_certain(self) -> bool:
        """Whether the limit can be relied on; where not, a whole batch is tried first."""
        ...

    def in_use_bytes(self) -> int | None:
        """Bytes in use, where the allocator keeps count."""
        ...

    def peak_bytes(self) -> int | None:
        """The most bytes in use since the last reset, where the allocator keeps count."""
        ...

    def reset_peak(self) -> None:
        """Reset the peak."""
        ...

    def read_device(self) -> DeviceReading:
        """All that can be read of it."""
        ...

    def set_limit(self, limit: int) -> None:
        """Cap it; raises `BadBudgetError` where that comes too late."""
        ...


class Errors(Protocol):
    """Which errors mean that memory ran out."""

    def is_oom(self, error: BaseException) -> bool:
        """Whether an exception means that device memory ran out."""
        ...


class Trainer(Protocol):
    """The place where Keras's trainer asks for its functions."""

    def patch_trainer(
        self,
        manner: Callable[[Any], Hashable],
        guard: Callable[[Any, str, BackendStep], Callable[[Any], Any]],
        around: Callable[[Any, str, Callable[[], Any]], Any],
    ) -> None:
        """Hand Keras guarded functions for the models that are wanted."""
        ...

    def unguardable(self, model: Any) -> str | None:
        """Why a model's own functions have to be left alone, if they have to."""
        ...

    def switch(self, model: Any, manner: Hashable) -> None:
        """Give a model the functions that go with how it is guarded now."""
        ...


class Functions(Protocol):
    """Training steps written by hand."""

    def guarded_function(
        self,
        function: Any,
        guard: Callable[[BackendStep], Callable[[Any], Any]],
        returns: Any = None,
    ) -> Any:
        """The function, guarded."""
        ...

    def advise_loops(self) -> None:
        """Say how a loop that is not guarded can be, once it trains."""
        ...

    def guard_functions(self, guard: Callable[[BackendStep], Callable[[Any], Any]]) -> None:
        """Guard every function that applies an optimizer."""
        ...


class HostCopies(Protocol):
    """Copies of variables' values in main memory, taken again and again."""

    @property
    def nbytes(self) -> int:
        """The memory that is held for them."""
        ...

    def read(self, variables: Iterable[tuple[str, Any]], arrays: list[Any]) -> list[list[Any]]:
        """Copy the values; returns a table of what is where among the arrays."""
        ...


class State(Protocol):
    """All that a training changes, read and written."""

    @property
    def HostCopies(self) -> Callable[[], HostCopies]:
        """Makes room for copies."""
        ...

    def training_variables(self, model: Any, graphs: Iterable[Any] = ()) -> list[tuple[str, Any]]:
        """Every variable that a training of the model changes, and what it belongs to."""
        ...

    def state_bytes(self, variables: Iterable[tuple[str, Any]]) -> int:
        """What a copy of the variables takes."""
        ...

    def write_variables(
        self, variables: Iterable[tuple[str, Any]], table: list[list[Any]], arrays: list[Any]
    ) -> None:
        """Put back what was read."""
        ...

    def seeds(self, arrays: list[Any]) -> dict[str, Any]:
        """Where the random generators are."""
        ...

    def set_seeds(self, taken: dict[str, Any], arrays: list[Any]) -> None:
        """Put the random generators back."""
        ...

    def parts_of(self, model: Any) -> dict[str, Any]:
        """What a model holds that has state of its own beside variables, by name."""
        ...

    def take(self, part: Any) -> Any:
        """What a part of a training is now, in plain values and arrays; None if it is unknown."""
        ...

    def put(self, part: Any, kept: Any) -> Any:
        """Put back what `take` has taken; returns what stands in its place, if that is new."""
        ...

    def is_replaced(self, part: Any) -> bool:
        """Whether a loop puts something new in the place of a part, and does not write to it."""
        ...

    def random_ops_in(self, graph: Any) -> list[str]:
        """The ops of a traced step whose random state can't be put back."""
        ...


class Recompute(Protocol):
    """Parts of a model that are run again for their gradients."""

    def block_order(self, model: Any) -> list[list[str]]:
        """The layers that can be recomputed, in chains."""
        ...

    def recomputing(
        self, model: Any, blocks: Sequence[Sequence[str]]
    ) -> AbstractContextManager[None]:
        """Recompute these blocks, and no others, for a while."""
        ...

    def run_recomputed(
        self,
        body: Callable[[Sequence[Any]], Any],
        inputs: Sequence[Any],
        layers: Sequence[Any],
        *,
        compiled: bool = False,
    ) -> Any:
        """Run a body of layers now, and once more when its gradients are asked for."""
        ...

    def step_costs(
        self, model: Any, samples: int, data: Any = None, length: int | None = None
    ) -> tuple[list[LayerCost], bool]:
        """What each layer keeps for its gradient, and whether neighbours form blocks."""
        ...


class Growth(Protocol):
    """What the framework and Keras keep of trainings that are over."""

    def release(self) -> int:
        """Let go of all that a user would not miss; returns how many graphs were pinned."""
        ...

    def unpin(self) -> int:
        """Let go of traced graphs that nobody can run any more."""
        ...

    def forget_kernels(self) -> None:
        """Let go of what was made for steps that have run."""
        ...

    def weigh(self, value: Any) -> tuple[str, int] | None:
        """What an object is and weighs; None where it holds no memory by itself."""
        ...


class GrowthSigns(Protocol):
    """What tells that something grows, while it does."""

    @property
    def Signs(self) -> Callable[[Any], Any]:
        """Reads the signs; it is given who is told of calls that take long."""
        ...


class Backend(Protocol):
    """A framework that Keras runs on."""

    @property
    def name(self) -> str:
        """As Keras calls it, and as it is imported."""
        ...

    @property
    def caps(self) -> Caps:
        """Hard caps, before the framework is imported."""
        ...

    @property
    def device(self) -> Device:
        """The memory that is trained in."""
        ...

    @property
    def errors(self) -> Errors:
        """Which errors mean that memory ran out."""
        ...

    @property
    def trainer(self) -> Trainer:
        """Keras's trainer."""
        ...

    @property
    def functions(self) -> Functions:
        """Training steps written by hand."""
        ...

    @property
    def state(self) -> State:
        """All that a training changes."""
        ...

    @property
    def input(self) -> Input:
        """Data as it is given."""
        ...

    @property
    def fits(self) -> Fits:
        """Calls of `fit`."""
        ...

    @property
    def epochs(self) -> WatchedEpochs:
        """The way of a training through its data."""
        ...

    @property
    def passages(self) -> Passages:
        """Loops over data that can be begun in the middle."""
        ...

    @property
    def shuffles(self) -> Shuffles:
        """Orders that nobody seeded."""
        ...

    @property
    def streams(self) -> Streams:
        """Data that legroom reads."""
        ...

    @property
    def recompute(self) -> Recompute:
        """Less kept, more computed."""
        ...

    @property
    def model_files(self) -> ModelFiles:
        """Saved models."""
        ...

    @property
    def models(self) -> Models:
        """Models read."""
        ...

    @property
    def leaner_models(self) -> LeanerModels:
        """Models changed."""
        ...

    @property
    def after_training(self) -> AfterTraining:
        """Models made smaller, for use."""
        ...

    @property
    def predictions(self) -> Predictions:
        """What steps will need."""
        ...

    @property
    def growth(self) -> Growth:
        """What stays behind."""
        ...

    @property
    def growth_signs(self) -> GrowthSigns:
        """What tells that something grows."""
        ...


# Frameworks as people write them.
SPELLED = {"tensorflow": "TensorFlow", "torch": "PyTorch", "jax": "JAX"}
_HOMES = {
    "tensorflow": "legroom.backends.tensorflow.backend",
    "torch": "legroom.backends.torch.backend",
    "jax": "legroom.backends.jax.backend",
}


def current() -> Backend:
    """The backend that Keras runs on, or will run on when it is imported.

    Raises:
        UnsupportedModelError: If legroom does not know it yet.
    """
    name = used_name()
    if name not in _HOMES:
        raise UnsupportedModelError(
            f"legroom guards Keras on TensorFlow, PyTorch and JAX; here Keras runs on {name!r}. "
            "Set KERAS_BACKEND to one of these before keras is imported, or train without legroom."
        )
    return named(name)


def running() -> Backend | None:
    """The backend that Keras runs on, where legroom knows it and its framework is imported."""
    name = used_name()
    return next((backend for backend in imported() if backend.name == name), None)


def imported() -> list[Backend]:
    """The backends whose frameworks are imported by now and take part in a training.

    TensorFlow does whatever Keras runs on, because `tf.data` feeds Keras on any of them. Others do
    where they train.
    """
    wanted = {"tensorflow", used_name()}
    return [named(name) for name in _HOMES if name in sys.modules and name in wanted]


def named(name: str) -> Backend:
    """One backend: `tf.data` feeds Keras on any of them."""
    backend: Backend = importlib.import_module(_HOMES[name]).BACKEND
    return backend


def used_name() -> str:
    """What Keras says or, before it is imported, where it looks; or what a plain loop imports."""
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "backend"):
        return str(keras.backend.backend())
    if asked := os.environ.get("KERAS_BACKEND"):
        return asked
    if "tensorflow" not in sys.modules:
        for plain in ("torch", "jax"):
            if plain in sys.modules:
                return plain
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        with open(os.path.join(home, "keras.json"), encoding="utf8") as file:
            return str(json.load(file).get("backend") or "tensorflow")
    except (OSError, ValueError, AttributeError):
        return "tensorflow"
