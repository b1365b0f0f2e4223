"""A step as a flat list of operations, which can be run in parts.

JAX traces a step to operations that are nested as its functions are. Here those that only call
others are gone, so that a step can be cut anywhere. Loops, branches and what is recomputed stay as
they are: each is one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex

__all__ = ["Flat", "Place", "flattened"]

# An operation's result: which operation, and which of its results.
Place = tuple[int, int]

_CALLS = frozenset(
    ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
)


class Flat:
    """A traced step.

    Args:
        closed: What JAX has traced, without calls.

    Attributes:
        operations: In order.
        inputs: The variables that it is called with.
        outputs: What it returns: variables, or constants.
        places: Where each variable comes from.
    """

    def __init__(self, closed: Any) -> None:
        self.operations: Sequence[Any] = closed.jaxpr.eqns
        self.inputs: Sequence[Any] = closed.jaxpr.invars
        self.outputs: Sequence[Any] = closed.jaxpr.outvars
        self.constants = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        self.places: dict[Any, Place] = {
            variable: (number, which)
            for number, operation in enumerate(self.operations)
            for which, variable in enumerate(operation.outvars)
        }

    def at(self, place: Place) -> Any:
        """The variable that an operation makes."""
        return self.operations[place[0]].outvars[place[1]]

    def upstream(self, wanted: Collection[Any], given: Collection[Any] = ()) -> set[int]:
        """The operations that make these variables, where some others are known."""
        known, found = set(given), set()
        waiting = [x for x in wanted if not isinstance(x, jex.Literal)]
        while waiting:
            variable = waiting.pop()
            if variable in known or variable not in self.places:
                continue
            number, _ = self.places[variable]
            if number not in found:
                found.add(number)
                inputs = self.operations[number].invars
                waiting += [x for x in inputs if not isinstance(x, jex.Literal)]
        return found

    def run(
        self,
        wanted: Sequence[Any],
        given: Mapping[Any, Any],
        instead: Mapping[int, Callable[[Sequence[Any]], Sequence[Any]]] | None = None,
    ) -> list[Any]:
        """The values of some variables.

        Args:
            wanted: The variables.
            given: Values that are known.
            instead: Functions that are run in the place of operations.
        """
        values = {**self.constants, **given}

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, jex.Literal) else values[atom]

        for number in sorted(self.upstream(wanted, given)):
            operation = self.operations[number]
            inputs = [read(x) for x in operation.invars]
            other = (instead or {}).get(number)
            made = _run(operation, inputs) if other is None else other(inputs)
            for variable, value in zip(operation.outvars, made, strict=True):
                values.setdefault(variable, value)  # what was given stays
        return [read(x) for x in wanted]


def flattened(closed: Any) -> Flat:
    """A traced step without calls."""

    def run(*arguments: Any) -> Any:
        return _inline(closed.jaxpr, closed.consts, arguments)

    return Flat(jax.make_jaxpr(run)(*(_like(x.aval) for x in closed.jaxpr.invars)))


def _like(aval: Any) -> Any:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _inline(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else values[atom]

    for operation in jaxpr.eqns:
        inputs = [read(x) for x in operation.invars]
        if operation.primitive.name in _CALLS:
            inner = operation.params.get("jaxpr") or operation.params["call_jaxpr"]
            made: Sequence[Any] = _inline(inner.jaxpr, inner.consts, inputs)
        else:
            made = _run(operation, inputs)
        values.update(zip(operation.outvars, made, strict=True))
    return [read(x) for x in jaxpr.outvars]


def _run(operation: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    primitive = operation.primitive
    bound = primitive.get_bind_params(operation.params)
    functions, options = bound if isinstance(bound, tuple) else ((), bound)
    with operation.ctx.manager, jax.named_scope(str(operation.source_info.name_stack) or "step"):
        made = primitive.bind(*functions, *inputs, **options)
    return made if primitive.multiple_results else [made]
