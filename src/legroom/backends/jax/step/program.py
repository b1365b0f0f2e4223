"""Functions as programs of XLA: compiled once for each shape, with the memory that they take.

A program is compiled before it runs, and not when it is called, because its compiler knows what it
takes. A step that Keras runs op by op is run so here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from legroom.backends.jax.device.errors import NoRoom, is_oom
from legroom.backends.jax.device.pool import Pool

__all__ = ["Program"]

# For XLA: half the time to compile for a CPU, which is most of what a trial takes.
_QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0}


class Program:
    """A function of arrays.

    Args:
        function: The function.
        pool: Where it runs.
        donates: The arguments whose memory it may write its results to; they are gone then.
        missed: Whether those would be missed if it failed. Where that is found out too late, they
            are only given away where there is no room for the results beside them.
        compiled: Whether it is compiled, or run op by op.
        once: Whether it is run only once, so that making it fast would take longer than it runs.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        pool: Pool,
        donates: Sequence[int] = (),
        *,
        missed: bool = False,
        compiled: bool = True,
        once: bool = False,
    ) -> None:
        self._function = function
        self._pool = pool
        self._donates = tuple(donates)
        self._missed = missed
        self._is_compiled = compiled
        self._options = _QUICKLY if once and pool.device.platform == "cpu" else {}
        self._made: dict[Any, tuple[Any, int]] = {}

    def __call__(self, *args: Any, key: Any = None) -> Any:
        """Run it.

        Args:
            *args: What it is called with.
            key: What tells apart the shapes that it is called with.

        Raises:
            NoRoom: If it needs more than is free; nothing has happened then.
        """
        if not self._is_compiled:
            made = self._function(*args)
            return jax.block_until_ready(made) if self._pool.has_limit() else made
        if self._keeps_first and self._has_room(self._compiled(args, key, keeps=True)[1]):
            return self._run(args, key, keeps=True)
        if self._pool.has_limit():
            needed = self._compiled(args, key)[1]
            if not self._has_room(needed):
                raise NoRoom(needed)
        return self._run(args, key)

    def needs(self, *args: Any, key: Any = None) -> int | None:
        """The bytes that it takes beyond what it is called with; None op by op."""
        if not self._is_compiled:
            return None
        if not self._keeps_first:
            return self._compiled(args, key)[1]
        leaves = jax.tree.leaves([args[number] for number in self._donates])
        given = sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves)
        return max(0, self._compiled(args, key, keeps=True)[1] - given)

    @property
    def _keeps_first(self) -> bool:
        return self._missed and bool(self._donates) and self._pool.fails_late()

    def _run(self, args: Any, key: Any, *, keeps: bool = False) -> Any:
        program, needed = self._compiled(args, key, keeps=keeps)
        before = self._pool.in_use_bytes() if self._pool.fails_late() else None
        try:
            made = program(*args)
        except (TypeError, ValueError) as error:
            if is_oom(error):
                raise
            # Other types or devices than those that it was compiled for, which no key tells.
            del self._made[key, keeps]
            program, _ = self._compiled(args, key, keeps=keeps)
            made = program(*args)
        # What fails late does so here, and not in what uses the results.
        waits = self._pool.has_limit() and (not self._donates or self._pool.fails_late())
        if waits:
            jax.block_until_ready(made)
        if before is not None:
            kept = sum(x.nbytes for x in jax.tree.leaves(made))
            self._pool.see_given_back(before + kept, needed - kept)
        return made

    def _compiled(self, args: Any, key: Any, *, keeps: bool = False) -> tuple[Any, int]:
        made = self._made.get((key, keeps))
        if made is None:
            donates = () if keeps else self._donates
            lowered = jax.jit(self._function, donate_argnums=donates).lower(*args)
            with self._pool.compiling():
                program = lowered.compile(self._options)
            self._made[key, keeps] = made = (program, _bytes_of(program, self._pool))
        return made

    def _has_room(self, needed: int) -> bool:
        return self._pool.has_room(needed) or self._pool.has_room_soon(needed)


def _bytes_of(program: Any, pool: Pool) -> int:
    figures = program.memory_analysis()
    if figures is None:
        return 0
    known = figures.temp_size_in_bytes + figures.output_size_in_bytes - figures.alias_size_in_bytes
    return int(known * (1 + pool.unknown_share)) + pool.scratch_bytes(program)
