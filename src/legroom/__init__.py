"""Train any Keras model in the memory you have.

Public names are loaded when they are first used, so that ``import legroom`` costs nothing and
imports no framework: a script may import legroom before it sets up TensorFlow.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legroom.core.errors import (
        BadBudget,
        CannotFit,
        LegroomError,
        OutOfMemory,
        SnapshotError,
        UnsupportedModel,
    )
    from legroom.core.released import Released
    from legroom.data.stream import stream
    from legroom.doctor.check import check
    from legroom.doctor.isolated import isolated
    from legroom.doctor.release import release
    from legroom.doctor.slim import slim
    from legroom.doctor.watch import watch
    from legroom.guard import fit, guard, install, limit, resumable, step
    from legroom.guard.tensorboard import TensorBoard
    from legroom.guard.uninstalling import uninstall
    from legroom.plan import Plan, largest_batch, plan
    from legroom.predict.explain import explain
    from legroom.predict.show import Estimate, estimate
    from legroom.report import Finding
    from legroom.report.explain import Diagnosis
    from legroom.report.run import RunReport

    __version__: str

__all__ = [
    "BadBudget",
    "CannotFit",
    "Diagnosis",
    "Estimate",
    "Finding",
    "LegroomError",
    "OutOfMemory",
    "Plan",
    "Released",
    "RunReport",
    "SnapshotError",
    "TensorBoard",
    "UnsupportedModel",
    "__version__",
    "check",
    "estimate",
    "explain",
    "fit",
    "guard",
    "install",
    "isolated",
    "largest_batch",
    "limit",
    "load_ipython_extension",
    "plan",
    "release",
    "resumable",
    "slim",
    "step",
    "stream",
    "uninstall",
    "unload_ipython_extension",
    "watch",
]

_MEMORY = "LEGROOM_MEMORY"
_HOMES = {
    "BadBudget": "legroom.core.errors",
    "CannotFit": "legroom.core.errors",
    "Diagnosis": "legroom.report.explain",
    "Estimate": "legroom.predict.show",
    "LegroomError": "legroom.core.errors",
    "OutOfMemory": "legroom.core.errors",
    "Plan": "legroom.plan",
    "Released": "legroom.core.released",
    "RunReport": "legroom.report.run",
    "SnapshotError": "legroom.core.errors",
    "TensorBoard": "legroom.guard.tensorboard",
    "UnsupportedModel": "legroom.core.errors",
    "Finding": "legroom.report",
    "check": "legroom.doctor.check",
    "estimate": "legroom.predict.show",
    "explain": "legroom.predict.explain",
    "fit": "legroom.guard",
    "guard": "legroom.guard",
    "install": "legroom.guard",
    "isolated": "legroom.doctor.isolated",
    "largest_batch": "legroom.plan",
    "limit": "legroom.guard",
    "plan": "legroom.plan",
    "release": "legroom.doctor.release",
    "resumable": "legroom.guard",
    "slim": "legroom.doctor.slim",
    "step": "legroom.guard",
    "stream": "legroom.data.stream",
    "uninstall": "legroom.guard.uninstalling",
    "watch": "legroom.doctor.watch",
}


def _cap_from_environment() -> None:
    """Honour LEGROOM_MEMORY in a process that `legroom run` did not start.

    Here and not later, because TensorFlow reads its own settings when it is imported.
    """
    command = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    if command in ("legroom", "legroom.exe", "-m"):
        return  # the command line reads the variable itself, and has better words for it

    from legroom.backends.tensorflow import caps

    if caps.capped_bytes() is None and "tensorflow" not in sys.modules:
        importlib.import_module("legroom.guard.api").limit(os.environ[_MEMORY])


def load_ipython_extension(ipython: Any) -> None:
    """What ``%load_ext legroom`` calls: from now on every Keras model is guarded."""
    del ipython  # nothing is added to the shell itself
    importlib.import_module("legroom.guard").install()


def unload_ipython_extension(ipython: Any) -> None:
    """What ``%unload_ext legroom`` calls: nothing of legroom is left in Keras and TensorFlow."""
    del ipython
    importlib.import_module("legroom.guard.uninstalling").uninstall()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Reading the metadata takes longer than all the rest of the import.
        from importlib.metadata import version

        value: Any = version("legroom")
    elif name in _HOMES:
        home = importlib.import_module(_HOMES[name])
        # A floor that has the function's name is bound, and callable, by now: see below.
        value = globals().get(name) or getattr(home, name)
    else:
        raise AttributeError(f"module 'legroom' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _CallableFloor(types.ModuleType):
    """A package that is also the function of its own name in it.

    ``legroom.guard`` is a function to users and a floor of the house on disk. Python binds a
    package to its name in the parent when it is first imported, by anyone, and the function would
    turn into a module in the user's hands. So the module can be called.
    """

    @property
    def __signature__(self) -> Any:
        import inspect

        return inspect.signature(self._function)

    @property
    def _function(self) -> Any:
        return vars(self)[self.__name__.rpartition(".")[2]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class _Legroom(types.ModuleType):
    """The type of this module, which sees a floor being bound to its name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and isinstance(value, types.ModuleType):
            value.__class__ = _CallableFloor
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Legroom

if os.environ.get(_MEMORY):
    _cap_from_environment()
