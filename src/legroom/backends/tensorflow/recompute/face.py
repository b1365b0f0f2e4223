"""What the floors above ask of recomputing."""

from __future__ import annotations

from legroom.backends.keras.recompute_blocks import block_order, recomputing
from legroom.backends.tensorflow.graph.layer_costs import step_costs
from legroom.backends.tensorflow.recompute.again import run_recomputed

__all__ = ["block_order", "recomputing", "run_recomputed", "step_costs"]
