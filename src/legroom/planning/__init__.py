"""From a budget and an estimate to a plan: the fastest strategy that fits."""

from __future__ import annotations

from legroom.planning.largest import largest_batch
from legroom.planning.make import plan
from legroom.planning.show import plan_view
from legroom.planning.strategies import Plan, Strategy

__all__ = ["Plan", "Strategy", "largest_batch", "plan", "plan_view"]
