"""``legroom.uninstall``: everything that legroom has put into this process, taken off again."""

from __future__ import annotations

from legroom.backends import patches
from legroom.guarding.registry import registry
from legroom.guarding.session import report_all
from legroom.guarding.showing.sampling import sampler

__all__ = ["uninstall"]


def uninstall() -> None:
    """Leave Keras and TensorFlow as they are without legroom; in notebooks `%unload_ext legroom`.

    No model is guarded any more, steps made by `@legroom.step` run as they were written, and every
    function of Keras and TensorFlow that was replaced is its own again. A cap set by
    `legroom.limit` stays, because TensorFlow can't change it any more. Whatever is called
    afterwards, `legroom.install` for one, switches on what it needs.
    """
    report_all()
    registry.clear()
    patches.take_off_all()
    sampler.end()
