"""Train any Keras model in the memory you have.

Public names are loaded when they are first used, so that ``import legroom`` costs nothing and
imports no framework: a script may import legroom before it sets up TensorFlow.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legroom.core.errors import (
        BadBudgetError,
        CannotFitError,
        LegroomError,
        OutOfMemoryError,
        SnapshotError,
        UnsupportedModelError,
    )
    from legroom.core.released import Released
    from legroom.data.stream import stream
    from legroom.doctor.check import check
    from legroom.doctor.growing.watch import watch
    from legroom.doctor.isolated import isolated
    from legroom.doctor.release import release
    from legroom.doctor.slim import slim
    from legroom.guarding import fit, guard, install, limit, resumable, step
    from legroom.guarding.showing.tensorboard import MemoryTensorBoard
    from legroom.guarding.uninstalling import uninstall
    from legroom.planning import Plan, largest_batch, plan
    from legroom.planning.explain import explain
    from legroom.prediction.show import Estimate, estimate
    from legroom.report import Finding
    from legroom.report.explain import Diagnosis
    from legroom.report.run import RunReport
    from legroom.sweeps.sweep import sweep
    from legroom.sweeps.trials.trial import Trial

    __version__: str

__all__ = [
    "BadBudgetError",
    "CannotFitError",
    "Diagnosis",
    "Estimate",
    "Finding",
    "LegroomError",
    "MemoryTensorBoard",
    "OutOfMemoryError",
    "Plan",
    "Released",
    "RunReport",
    "SnapshotError",
    "Trial",
    "UnsupportedModelError",
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
    "sweep",
    "uninstall",
    "unload_ipython_extension",
    "watch",
]

_MEMORY = "LEGROOM_MEMORY"
_HOMES = {
    "BadBudgetError": "legroom.core.errors",
    "CannotFitError": "legroom.core.errors",
    "Diagnosis": "legroom.report.explain",
    "Estimate": "legroom.prediction.show",
    "LegroomError": "legroom.core.errors",
    "OutOfMemoryError": "legroom.core.errors",
    "Plan": "legroom.planning",
    "Released": "legroom.core.released",
    "RunReport": "legroom.report.run",
    "SnapshotError": "legroom.core.errors",
    "MemoryTensorBoard": "legroom.guarding.showing.tensorboard",
    "Trial": "legroom.sweeps.trials.trial",
    "UnsupportedModelError": "legroom.core.errors",
    "Finding": "legroom.report",
    "check": "legroom.doctor.check",
    "estimate": "legroom.prediction.show",
    "explain": "legroom.planning.explain",
    "fit": "legroom.guarding",
    "guard": "legroom.guarding",
    "install": "legroom.guarding",
    "isolated": "legroom.doctor.isolated",
    "largest_batch": "legroom.planning",
    "limit": "legroom.guarding",
    "plan": "legroom.planning",
    "release": "legroom.doctor.release",
    "resumable": "legroom.guarding",
    "slim": "legroom.doctor.slim",
    "step": "legroom.guarding",
    "stream": "legroom.data.stream",
    "sweep": "legroom.sweeps.sweep",
    "uninstall": "legroom.guarding.uninstalling",
    "watch": "legroom.doctor.growing.watch",
}
# Names of before, for one release.
_RENAMED = {
    "BadBudget": "BadBudgetError",
    "CannotFit": "CannotFitError",
    "OutOfMemory": "OutOfMemoryError",
    "TensorBoard": "MemoryTensorBoard",
    "UnsupportedModel": "UnsupportedModelError",
}


def _cap_from_environment() -> None:
    """Honour LEGROOM_MEMORY in a process that `legroom run` did not start.

    Here and not later, because TensorFlow reads its own settings when it is imported.
    """
    command = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    if command in ("legroom", "legroom.exe", "-m"):
        return  # the command line reads the variable itself, and has better words for it

    from legroom.backends.base import current, running
    from legroom.core.errors import UnsupportedModelError

    try:
        wanted = running() is None and current().caps.capped_bytes() is None
    except UnsupportedModelError as error:
        import warnings

        warnings.warn(f"{_MEMORY} has no effect. {error}", stacklevel=3)
        return
    if wanted:
        importlib.import_module("legroom.guarding.api").limit(os.environ[_MEMORY])


def load_ipython_extension(ipython: Any) -> None:
    """What ``%load_ext legroom`` calls: from now on every Keras model is guarded."""
    del ipython  # nothing is added to the shell itself
    importlib.import_module("legroom.guarding").install()


def unload_ipython_extension(ipython: Any) -> None:
    """What ``%unload_ext legroom`` calls: nothing of legroom is left in Keras and TensorFlow."""
    del ipython
    importlib.import_module("legroom.guarding.uninstalling").uninstall()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Reading the metadata takes longer than all the rest of the import.
        from importlib.metadata import version

        value: Any = version("legroom")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _RENAMED:
        import warnings

        new = _RENAMED[name]
        warnings.warn(f"legroom.{name} is legroom.{new} now.", DeprecationWarning, stacklevel=2)
        return __getattr__(new)
    else:
        raise AttributeError(f"module 'legroom' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if os.environ.get(_MEMORY):
    _cap_from_environment()
