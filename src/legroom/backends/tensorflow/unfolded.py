"""Functions whose constants are not computed ahead.

When a function first runs, TensorFlow's graph optimiser computes what does not depend on its
inputs. Where shapes are known, as those of slices are, that can be tensors as large as the
activations; and when memory runs out there, the process dies by a segmentation fault instead of an
error that could be caught.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context

from legroom.backends.tensorflow import pool

__all__ = ["unfolded"]


@contextlib.contextmanager
def unfolded() -> Iterator[None]:
    """Functions that are first run in here compute nothing ahead, where memory has a limit."""
    if pool.limit_bytes() is None:
        yield
        return
    current = context.context()
    before = current.function_call_options
    config = config_pb2.ConfigProto()
    config.ParseFromString(before.config_proto_serialized)
    config.graph_options.rewrite_options.constant_folding = rewriter_config_pb2.RewriterConfig.OFF
    current.function_call_options = context.FunctionCallOptions(before.executor_type, config)
    try:
        yield
    finally:
        current.function_call_options = before
