"""What a step writes: finding it, holding it back, keeping what was there before.

A step that runs out of memory must leave no trace. In a graph every write is an op on a resource,
so what a step writes can be read off its graph, whoever wrote the step. Most of it (metrics,
BatchNorm statistics) feeds nothing that the gradients need: such a write is held back behind a
barrier, and then a step that fails before the barrier has written nothing. What can't be held
back (a seed that is drawn twice) is read before the step and put back after a failure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.ops import gen_resource_variable_ops

from legroom.backends.tensorflow.device import oom

__all__ = [
    "HeldWrites",
    "HostSnapshot",
    "Snapshot",
    "defer_writes",
    "handle_bytes",
    "on_host",
    "put_back",
    "read_handle",
    "resource_order",
    "touches",
    "undone_by",
    "written_handles",
]

# Of an array, in bytes, for TensorFlow to take it as it is: 64 at most, by processor.
_ALIGNMENT = 64


class Snapshot:
    """Values of variables at one moment, held by reference.

    Reading a variable costs no copy: the value is shared until one side is written, and only then
    does TensorFlow copy. A snapshot of what the step replaces wholesale is therefore free in time,
    and costs its bytes only while the step runs.
    """

    def __init__(self, handles: Iterable[Any]) -> None:
        self._values = [(handle, read_handle(handle)) for handle in handles]

    @classmethod
    def of(cls, handles: Iterable[Any], values: Iterable[Any]) -> Snapshot:
        """A snapshot of values that were read before."""
        made = cls([])
        made._values = list(zip(handles, values, strict=True))
        return made

    def restore(self) -> None:
        """Put every variable back to what it was. Needs no memory: values are shared."""
        self.restore_first(len(self._values))

    def moved(self, handles: Iterable[Any]) -> bool:
        """Whether one of these variables of the snapshot is not what it was."""
        then = {id(handle): value for handle, value in self._values}
        return any(
            not np.array_equal(
                then[id(handle)], gen_resource_variable_ops.read_variable_op(handle, _dtype(handle))
            )
            for handle in handles
        )

    def restore_first(self, count: int) -> None:
        """Put back the first variables of the snapshot only."""
        for handle, value in self._values[:count]:
            gen_resource_variable_ops.assign_variable_op(handle, value)


class HostSnapshot:
    """Values of variables, copied to the host's own memory: slower, and free on the device."""

    def __init__(self) -> None:
        self._taken: list[tuple[Any, np.ndarray]] = []
        self._buffers: dict[int, np.ndarray] = {}

    def take(self, handles: Iterable[Any]) -> None:
        """Copy what the variables hold now."""
        self._taken = []
        for handle in handles:
            value = gen_resource_variable_ops.read_variable_op(handle, _dtype(handle))
            # Memory that was used before is quicker than new memory, by far.
            buffer = self._buffers[id(handle)] = on_host(value, self._buffers.get(id(handle)))
            self._taken.append((handle, buffer))

    def restore(self) -> None:
        """Put every variable back to what it was, one by one.

        Raises:
            OutOfMemoryError: If there is no memory for that.
        """
        for handle, value in self._taken:
            put_back(handle, value)
        # Some of these very arrays may be the variables' memory now.
        self._taken, self._buffers = [], {}


def on_host(value: Any, into: np.ndarray | None = None) -> np.ndarray:
    """A copy in the host's memory that TensorFlow takes back without another copy.

    On a CPU it takes an array as it is where that is aligned. Otherwise it copies it into its own
    memory, and where that is full the process dies by a segmentation fault, with no error to catch.

    Args:
        value: A tensor or an array.
        into: A copy of an earlier value of the same shape, to be written over.
    """
    value = np.asarray(value)
    if into is None:
        room = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        into = room[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    np.copyto(into, value)
    return into


def put_back(handle: Any, value: Any) -> None:
    """Give a variable the value it had, which may be in the host's memory.

    Raises:
        OutOfMemoryError: If there is no memory for that.
    """
    oom.insist(
        lambda: gen_resource_variable_ops.assign_variable_op(handle, value),
        "Memory ran out while a step that had failed was undone: some weights are as they were "
        "before the step, others are not. Load the last checkpoint or snapshot before you train "
        "on.",
    )
    if isinstance(value, np.ndarray) and "CPU" in handle.device:
        # It is the array itself now, past the device's memory and its limit. What was there has
        # left room for it.
        with contextlib.suppress(tf.errors.ResourceExhaustedError):
            inside = tf.raw_ops.DeepCopy(
                x=gen_resource_variable_ops.read_variable_op(handle, _dtype(handle))
            )
            gen_resource_variable_ops.assign_variable_op(handle, inside)


def undone_by(saved: Any, call: Callable[[], Any]) -> Any:
    """Run something; whatever it raises, put back what was saved.

    Args:
        saved: Has a `restore`, which may need memory.
        call: What to run.
    """
    try:
        return call()
    except BaseException as error:
        if not oom.is_oom(error):
            saved.restore()
            raise
        # The frames of its traceback hold the tensors of the failed step.
        failure = error.with_traceback(None)
    gc.collect()
    saved.restore()
    raise failure


def written_handles(graph: Any, *, among: Iterable[Any] | None = None) -> list[Any]:
    """The variables that a function's graph writes, as the handles it captured.

    Args:
        graph: The FuncGraph.
        among: Look at these ops only.
    """
    captured = {inside.name: outside for outside, inside in graph.captures}
    found: dict[int, Any] = {}
    for op in graph.get_operations() if among is None else among:
        for resource in _touched(op)[1]:
            handle = captured.get(resource.name)
            if handle is not None and _dtype(handle) is not None:
                found[id(handle)] = handle
    return list(found.values())


def touches(graph: Any, operations: Iterable[Any], variables: Iterable[Any]) -> bool:
    """Whether any of a graph's ops reads or writes one of these variables.

    Args:
        graph: The FuncGraph.
        operations: Ops of it.
        variables: TensorFlow's own variables.
    """
    wanted = {id(variable.handle) for variable in variables}
    inside = {inner.name for outside, inner in graph.captures if id(outside) in wanted}
    return any(x.name in inside for op in operations for x in op.inputs if x.dtype == tf.resource)


@dataclasses.dataclass
class HeldWrites:
    """Writes of a graph that are held back.

    Attributes:
        barrier: The op that runs when all results are finished, and all that will be written.
        early: The handles of the variables that are written before it after all, because the
            results depend on it.
    """

    barrier: Any
    early: list[Any]
    _graph: Any
    _held: list[Any]

    def wait_for(self, last: Sequence[Any]) -> None:
        """Hold the writes back until these ops have run, after which nothing can fail.

        A write that those ops themselves depend on (a learning rate that the step sets) waits for
        the barrier only, and its variable is one of the early ones.
        """
        operations = self._graph.get_operations()
        needed = _needed(operations, resource_order(operations), last)
        for op in self._held:
            for other in [self.barrier] if op in needed else last:
                op._add_control_input(other)
        sooner = [op for op in self._held if op in needed]
        self.early += written_handles(self._graph, among=sooner)


def defer_writes(graph: Any, results: list[Any]) -> HeldWrites:
    """Find the graph's writes that can be held back until the results are finished.

    Called while the graph is still being traced.

    Args:
        graph: The FuncGraph that is being traced.
        results: The tensors (gradients) that must be finished before anything is written.
    """
    operations = graph.get_operations()
    order = resource_order(operations)
    finished = [tensor for result in results for tensor in _components(result)]
    needed = _needed(operations, order, (tensor.op for tensor in finished))
    writes = [op for op in operations if _touched(op)[1]]
    held = [op for op in writes if op not in needed]
    following = _following(operations, set(held), order)
    # What the held writes will write is computed before the barrier too: past it, nothing but the
    # writes themselves is left to do, and they need no memory.
    for op in held:
        finished.extend(
            tensor
            for tensor in op.inputs
            if tensor.dtype != tf.resource and tensor.op not in following and tensor.op not in held
        )
    with tf.control_dependencies(finished):
        barrier = tf.no_op(name="legroom_barrier")
    early = written_handles(graph, among=[op for op in writes if op in needed])
    return HeldWrites(barrier, early, graph, held)


def _needed(
    operations: Sequence[Any], order: dict[Any, list[Any]], last: Iterable[Any]
) -> set[Any]:
    """These ops and all that they depend on."""
    needed = set(last)
    for op in reversed(operations):
        if op in needed:
            needed.update(tensor.op for tensor in op.inputs)
            needed.update(op.control_inputs)
            needed.update(order.get(op, ()))
    return needed


def _components(value: Any) -> list[Any]:
    return [t for t in tf.nest.flatten(value, expand_composites=True) if t is not None]


def read_handle(handle: Any) -> Any:
    """What the variable of a handle holds."""
    return gen_resource_variable_ops.read_variable_op(handle, _dtype(handle))


def handle_bytes(handle: Any) -> int:
    """What the variable of a handle takes."""
    shape = tf.TensorShape(handle._handle_data.shape_and_type[0].shape)
    return int(shape.num_elements() or 0) * int(_dtype(handle).size)


def _dtype(handle: Any) -> Any:
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or not data.shape_and_type:
        return None  # a resource that is no variable: an iterator, a table
    return tf.dtypes.as_dtype(data.shape_and_type[0].dtype)


def _touched(op: Any) -> tuple[list[Any], list[Any]]:
    """The resources an op reads and those it may write."""
    if not any(tensor.dtype == tf.resource for tensor in op.inputs):
        return [], []
    reads, writes = auto_control_deps_utils.get_read_write_resource_inputs(op)
    return list(reads), list(writes)


def resource_order(operations: list[Any]) -> dict[Any, list[Any]]:
    """Whom each op will wait for because both touch one resource.

    TensorFlow adds these control edges itself when the trace ends; they have to be known before.
    """
    order: dict[Any, list[Any]] = {}
    last_write: dict[str, Any] = {}
    reads_since: dict[str, list[Any]] = {}
    for op in operations:
        reads, writes = _touched(op)
        waits: list[Any] = []
        for resource in (tensor.name for tensor in reads):
            if resource in last_write:
                waits.append(last_write[resource])
            reads_since.setdefault(resource, []).append(op)
        for resource in (tensor.name for tensor in writes):
            if resource in last_write:
                waits.append(last_write[resource])
            waits.extend(read for read in reads_since.pop(resource, ()) if read is not op)
            last_write[resource] = op
        if waits:
            order[op] = waits
    return order


def _following(operations: list[Any], held: set[Any], order: dict[Any, list[Any]]) -> set[Any]:
    """All ops that come, directly or not, after one of the held writes."""
    after: set[Any] = set()
    behind = held | after
    for op in operations:  # in the order of creation, so inputs come first
        before = [*(tensor.op for tensor in op.inputs), *op.control_inputs, *order.get(op, ())]
        if any(other in behind for other in before):
            behind.add(op)
            after.add(op)
    return after
