"""The threads that TensorFlow runs a step's ops on."""

from __future__ import annotations

import os

import tensorflow as tf

__all__ = ["asked_threads", "executor_threads"]


def asked_threads() -> int:
    """The inter-op threads that were asked for in this process; 0 for TensorFlow's default."""
    return int(tf.config.threading.get_inter_op_parallelism_threads())


def executor_threads() -> int:
    """How many ops may run side by side."""
    return asked_threads() or os.cpu_count() or 1
