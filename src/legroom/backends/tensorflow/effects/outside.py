"""What a step takes from, or gives to, things that are no variables: tables and data sets.

Neither can be put back. A step that fills a lookup table, or takes another batch from a data set of
its own, can't be run on trial, and slices would do it several times.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from legroom.backends import patches
from legroom.core.errors import UnlikeBeforeError

__all__ = ["nothing_outside", "op_types", "reaches_outside"]

_TABLE = "it changes a lookup table, which each slice would change again"
_DATA = "it takes batches from a data set of its own, which each slice would take again"
_OPS = {
    "LookupTableInsertV2": _TABLE,
    "LookupTableRemoveV2": _TABLE,
    "LookupTableImportV2": _TABLE,
    "IteratorGetNext": _DATA,
    "IteratorGetNextSync": _DATA,
    "IteratorGetNextAsOptional": _DATA,
}
_FUNCTIONS = {
    "tensorflow.python.ops.gen_lookup_ops": {
        "lookup_table_insert_v2": _TABLE,
        "lookup_table_remove_v2": _TABLE,
        "lookup_table_import_v2": _TABLE,
    },
    "tensorflow.python.ops.gen_dataset_ops": {
        "iterator_get_next": _DATA,
        "iterator_get_next_sync": _DATA,
        "iterator_get_next_as_optional": _DATA,
    },
}


def op_types(graphs: Iterable[Any]) -> set[str]:
    """The types of a traced step's ops, those of the functions that it calls too."""
    found: set[str] = set()
    for graph in graphs:
        definition = graph.as_graph_def()
        found.update(node.op for node in definition.node)
        found.update(node.op for f in definition.library.function for node in f.node_def)
    return found


def reaches_outside(ops: Collection[str]) -> str | None:
    """Why a step with ops of these types can't be run on trial, if it can't."""
    return next((reason for op, reason in _OPS.items() if op in ops), None)


@contextlib.contextmanager
def nothing_outside() -> Iterator[None]:
    """Let no op of this thread, run eagerly, change a table or take from a data set.

    Raises:
        UnlikeBeforeError: Inside, where one would.
    """
    with contextlib.ExitStack() as stack:
        for module, names in _FUNCTIONS.items():
            for name, reason in names.items():
                refusing = functools.partial(_refusing, reason)
                stack.enter_context(patches.replaced(module, name, refusing))
        yield


def _refusing(reason: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnlikeBeforeError(reason)

    return refuse
