"""Exceptions with their causes, and one table a framework of the types that mean memory.

No framework is imported: types are known by name, along their base classes, so that a subclass of
a library's own is known too. What a type leaves open its message decides, by the same patterns
that read logs.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["FOREIGN", "chain", "chain_text", "framework_of"]

# By framework: the types that its failures of memory come as. True: the type says it by itself,
# unless the message says that it was something else (a full disk). False: it depends on the
# message.
FOREIGN: dict[str, dict[str, bool]] = {
    "tensorflow": {
        "ResourceExhaustedError": True,
        "InternalError": False,
        "UnknownError": False,
        "NotFoundError": False,
        "AbortedError": False,
        "FailedPreconditionError": False,
    },
    "jax": {"XlaRuntimeError": False, "JaxRuntimeError": False},
    "torch": {"OutOfMemoryError": True, "AcceleratorError": False},
    "numpy": {"_ArrayMemoryError": True},
    "system": {"MemoryError": True, "OSError": False, "CalledProcessError": False},
}
_MOST = 64  # exceptions of one chain
_LONGEST = 256 * 1024  # of one message; the ends of a longer one are read


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and its causes, the oldest first."""
    seen: dict[int, BaseException] = {}
    waiting: list[BaseException] = [error]
    while waiting and len(seen) < _MOST:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen[id(current)] = current
        context = None if current.__suppress_context__ else current.__context__
        members = getattr(current, "exceptions", ())  # an ExceptionGroup's
        for other in (*(members if isinstance(members, tuple) else ()), context, current.__cause__):
            if isinstance(other, BaseException):
                waiting.append(other)
    return reversed(list(seen.values()))


def chain_text(error: BaseException) -> str:
    """The exception and its causes as a log would show them, the oldest first."""
    return "\n\n".join(_one_text(one) for one in chain(error))


def framework_of(error: BaseException) -> str | None:
    """The framework whose exception it is, by where its type is defined."""
    for kind in type(error).__mro__:
        home = str(getattr(kind, "__module__", "")).split(".")[0].replace("jaxlib", "jax")
        if home in FOREIGN:
            return home
    return None


def _one_text(error: BaseException) -> str:
    kind = type(error)
    names = [f"{kind.__module__}.{kind.__qualname__}"]
    for base in kind.__mro__[1:]:
        if any(base.__name__ in types and types[base.__name__] for types in FOREIGN.values()):
            names.append(base.__name__)
            break
    message = _message(error)
    lines = [f"{' '.join(names)}: {message}"]
    node = _node(error)
    if node and node not in message:
        lines.append(f"[[{{{{node {node}}}}}]]")
    notes = getattr(error, "__notes__", ())
    if isinstance(notes, (list, tuple)):
        lines += [note for note in notes if isinstance(note, str)][:16]
    return "\n".join(lines)


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # a foreign __str__ may do anything
        return ""
    if len(text) > _LONGEST:
        text = text[: _LONGEST // 2] + "\n" + text[-_LONGEST // 2 :]
    return text


def _node(error: BaseException) -> str | None:
    """The node that TensorFlow names in the exception itself rather than in its message."""
    try:
        name = getattr(getattr(error, "node_def", None), "name", None)
    except Exception:  # a foreign property may do anything
        return None
    return name if isinstance(name, str) and name and not any(map(str.isspace, name)) else None
