"""Functions that can run out of memory and be run again.

When a function first runs, TensorFlow's graph optimiser rewrites it. Two of its rewrites take the
retry away, and both happen only where memory is short:

* It computes what does not depend on the inputs. Where shapes are known, as those of slices are,
  that can be tensors as large as the activations; when memory runs out there, the process dies by a
  segmentation fault instead of an error that could be caught.
* Where it expects more than four fifths of the device's memory to be taken, it turns an `AddN` into
  a temporary variable that the terms are added to. A step that ends between making and destroying
  it leaves it behind, in a container that all steps share: its memory stays taken, and every later
  step with an op of this name fails with `AlreadyExistsError`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager import context

from legroom.backends.tensorflow.device import pool

__all__ = ["survivable"]


@contextlib.contextmanager
def survivable() -> Iterator[None]:
    """Functions that run in here are spared those rewrites, where memory has a limit.

    Every run of a function has to be in here, not the first only: with other options TensorFlow
    takes it for another function, and optimises it anew.
    """
    if not pool.has_limit():
        yield
        return
    current = context.context()
    before = current.function_call_options
    current.function_call_options = _spared(before.executor_type, before.config_proto_serialized)
    try:
        yield
    finally:
        current.function_call_options = before


@functools.lru_cache(maxsize=8)
def _spared(executor_type: str | None, config_serialized: bytes) -> context.FunctionCallOptions:
    config = config_pb2.ConfigProto()
    config.ParseFromString(config_serialized)
    rewrites = config.graph_options.rewrite_options
    rewrites.constant_folding = RewriterConfig.OFF
    rewrites.memory_optimization = RewriterConfig.NO_MEM_OPT
    return context.FunctionCallOptions(executor_type, config)
