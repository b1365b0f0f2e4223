"""The order of a step's ops, for the guard, until it asks its backend for that."""

from __future__ import annotations

from legroom.backends.tensorflow.forecast.ordering import orderer

__all__ = ["orderer"]
