"""What the floors above ask of recomputing."""

from __future__ import annotations

from legroom.backends.tensorflow.graph.layer_costs import step_costs
from legroom.backends.tensorflow.recompute.blocks import block_order, recomputing

__all__ = ["block_order", "recomputing", "step_costs"]
