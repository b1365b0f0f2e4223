"""What the floors above ask of recomputing."""

from __future__ import annotations

from legroom.backends.jax.recompute.again import run_recomputed
from legroom.backends.jax.recompute.layer_costs import step_costs
from legroom.backends.keras.recompute_blocks import block_order, recomputing

__all__ = ["block_order", "recomputing", "run_recomputed", "step_costs"]
