"""What is done when, and if, a script imports a framework."""

from __future__ import annotations

import atexit
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from legroom.backends import patches
from legroom.backends.base import current, named, running, used_name
from legroom.core.aside import in_a_line, say_left_out
from legroom.core.errors import LegroomError
from legroom.core.process.disabled import is_disabled
from legroom.core.units import MEMORY_VARIABLE

__all__ = ["after_import", "cap_when_imported", "install_when_imported"]

# The frameworks that are capped by a call, whatever the environment says: the import behind which
# that is. Keras imports JAX when it is not yet there itself, and on JAX only its steps are guarded.
_CAPPED_BEHIND = {"torch": "torch", "jax": "keras"}


def install_when_imported(*, exact: bool = False) -> None:
    """Guard every Keras model as soon as keras is imported; until then, import nothing.

    A script may set up its environment before it imports TensorFlow, or never import it at all.
    """
    if is_disabled():
        return

    def guard_all(module: ModuleType) -> None:
        if running() is not None:
            _guard_everything(exact)

    after_import("keras", guard_all)
    after_import("torch", lambda _: named("torch").functions.advise_loops())
    if (cap := os.environ.get(MEMORY_VARIABLE, "")).isdigit():
        # Nobody knows before whether a script uses Keras, and on what.
        for name in _CAPPED_BEHIND:
            cap_when_imported(name, int(cap))


def cap_when_imported(name: str, limit_bytes: int) -> None:
    """Cap a framework once it is imported, if it is the one that trains by then."""

    def cap(module: ModuleType) -> None:
        if used_name() == name:
            named(name).caps.cap_imported(limit_bytes)

    after_import(_CAPPED_BEHIND.get(name, name), cap)


def _guard_everything(exact: bool) -> None:
    import legroom.guarding.api as api
    from legroom.guarding.registry import registry, supervised

    api.install(exact=exact)
    if not registry.guards_everything:
        return  # this Keras can't be guarded, which was said
    from legroom.guarding.options import GuardOptions
    from legroom.guarding.session import report_at_exit

    options = GuardOptions(exact=exact)
    current().functions.guard_functions(lambda step: report_at_exit(supervised(step, options)))
    _release_between_trainings()


def _release_between_trainings() -> None:
    from legroom.core.events import listening
    from legroom.guarding.releasing import BetweenTrainings

    listeners = contextlib.ExitStack()
    listeners.enter_context(listening(BetweenTrainings()))
    patches.at_removal(listeners.close)
    atexit.register(listeners.close)


def after_import(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call back as soon as a module is imported; at once if it is already."""

    def carefully(module: ModuleType) -> None:
        try:
            then(module)
        except LegroomError:
            raise
        except Exception as error:  # in the middle of an import of the script's own
            say_left_out("a part of legroom is left out, and the script runs on", in_a_line(error))

    if name in sys.modules:
        carefully(sys.modules[name])
    else:
        finder = _AfterImport(name, carefully)
        sys.meta_path.insert(0, finder)
        patches.at_removal(finder.take_away)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back when a module was imported, and then takes itself away.

    Looking for a module is not importing it: TensorFlow looks for keras long before anyone
    imports it, so the finder stays until the module was really executed.
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then
        self._looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, with a call behind its loader."""
        if fullname != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._finish)
        return spec

    def take_away(self) -> bool:
        """Look no longer; whether it did."""
        if self not in sys.meta_path:
            return False
        sys.meta_path.remove(self)
        return True

    def _finish(self, module: ModuleType) -> None:
        if self.take_away():
            self._then(module)


class _Loader(importlib.abc.Loader):
    """A module's own loader, with a call behind it."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does, and then the call."""
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
