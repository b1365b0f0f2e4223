"""From a budget and an estimate to a plan: the fastest way that fits."""

from __future__ import annotations

from legroom.plan.largest import largest_batch
from legroom.plan.make import plan
from legroom.plan.show import plan_view
from legroom.plan.ways import Plan, Way

__all__ = ["Plan", "Way", "largest_batch", "plan", "plan_view"]
