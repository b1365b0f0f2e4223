"""A whole script, watched: its loops, the models it trains and the data it feeds them."""

from __future__ import annotations

import contextlib
from typing import Any

from legroom.backends.base import running
from legroom.core.findings import Finding, ranked
from legroom.doctor.growing.follower import Watcher
from legroom.guarding.importing import after_import

__all__ = ["ScriptWatch"]


class ScriptWatch:
    """Watches this process from now on, and looks at each `fit`, and each loop over data, once."""

    def __init__(self) -> None:
        self._watcher = Watcher()
        self._found: dict[tuple[str, str], Finding] = {}
        self._seen: set[Any] = set()

    def start(self) -> None:
        """Begin; frameworks are followed when, and if, the script imports them."""
        after_import("keras", self._follow_fits)
        self._watcher.start()

    def stop(self) -> list[Finding]:
        """End, and say what was found."""
        for found in self._watcher.stop():
            self._found[found.id, found.place] = found
        return ranked(self._found.values())

    def _follow_fits(self, module: Any) -> None:
        del module
        backend = running()
        if backend is None:
            return
        backend.fits.follow_fits(self._fit)
        backend.fits.follow_iterations(self._iterated)
        self._watcher.find_signs()

    def _fit(self, model: Any, data: Any, arguments: dict[str, Any], place: str) -> list[Any]:
        """Look at what a call of `fit` was given; returns the callbacks to add to it."""
        if (place, model.name.rstrip("0123456789_")) not in self._seen:
            self._seen.add((place, model.name.rstrip("0123456789_")))
            # What can't be looked at is no reason for a script to fail.
            with contextlib.suppress(Exception):
                self._check(data, arguments, place)
            with contextlib.suppress(Exception):
                self._check_model(model, place)
        return [_Ticks(self._watcher, place)]

    def _iterated(self, dataset: Any, place: str) -> None:
        """Look at a data set that a loop of the script goes through."""
        if place not in self._seen:
            self._seen.add(place)
            with contextlib.suppress(Exception):
                self._check(dataset, {}, place)

    def _check(self, data: Any, arguments: dict[str, Any], place: str) -> None:
        from legroom.doctor.pipelines import check_input

        for found in check_input(data, batch_size=arguments.get("batch_size"), place=place):
            self._found.setdefault((found.id, found.place), found)

    def _check_model(self, model: Any, place: str) -> None:
        from legroom.doctor.diet import quick_model_findings

        for found in quick_model_findings(model, place):
            self._found.setdefault((found.id, found.place), found)


class _Ticks:
    """Tells the watcher of the epochs of one `fit`."""

    def __init__(self, watcher: Watcher, place: str) -> None:
        self._watcher = watcher
        self._place = place
        self._epochs = 0

    def epoch_ended(self) -> None:
        """An epoch has ended."""
        self._epochs += 1
        self._watcher.tick(self, self._place, "epoch", self._epochs)

    def ended(self) -> None:
        """The training has ended."""
        self._watcher.ended(self)
