"""What is called, bound, copied and looked at like the function it stands for."""

from __future__ import annotations

import functools
import types
from typing import Any, cast

__all__ = ["StandIn"]


class StandIn:
    """Stands for a function. Whoever calls it is answered by a class of this one.

    Args:
        function: The function.
    """

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(cast(Any, self), function)
        self._function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: the instance comes first among the arguments."""
        return self if instance is None else types.MethodType(cast(Any, self), instance)

    def __getattr__(self, name: str) -> Any:
        if name == "_function":  # not there yet: a copy of this is being made
            raise AttributeError(name)
        return getattr(self._function, name)

    def __reduce__(self) -> Any:
        """Copied and pickled like a function: by its name."""
        return self.__qualname__

    def __deepcopy__(self, memo: Any) -> StandIn:
        return self

    def __copy__(self) -> StandIn:
        return self
