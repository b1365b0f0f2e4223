"""From signs of growth to findings: which cause, what it costs an iteration, what cures it. Pure.

What it is given are plain numbers and descriptions; where they come from is the watch's business.
What the user's own objects keep is `legroom.doctor.growing.object_findings`'s subject.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

from legroom.core.findings import Finding
from legroom.core.places import short_place
from legroom.core.units import format_bytes
from legroom.doctor.catalog import finding
from legroom.doctor.growing.loops import is_users_file

__all__ = ["ISOLATED", "Evidence", "made_anew", "name_culprits"]

_EACH = 0.4  # times an iteration: it happens again and again, perhaps not in every one
_WORTH = 1_000_000  # bytes an iteration, for what the user has not written
ISOLATED = "legroom.isolated(train, …) runs each training in a process of its own"


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What was seen in the iterations that count.

    Attributes:
        place: The loop's line.
        unit: What an iteration is: ``"iteration"``, ``"epoch"``, ``"step"``.
        iterations: How many.
        slope: Bytes that memory grew by, an iteration; 0 where it does not.
        pinned: Graphs of trainings pinned, an iteration.
        pinned_bytes: What their variables weigh, an iteration.
        generators: Python functions given to TensorFlow, an iteration.
        traces: The traces made (with ``name``, ``place``, ``family``, ``arguments``,
            ``compiled``, ``model`` and whether they are ``kept``).
        datasets: Lines that made data sets, and of which kind.
    """

    place: str
    unit: str
    iterations: float
    slope: float
    pinned: float = 0.0
    pinned_bytes: float = 0.0
    generators: float = 0.0
    traces: Sequence[Any] = ()
    datasets: Sequence[Any] = ()


def name_culprits(seen: Evidence) -> list[Finding]:
    """The causes that the signs prove."""
    return [
        *_pinned(seen),
        *_compiled(seen),
        *_retraced(seen),
        *_generators(seen),
    ]


def _pinned(seen: Evidence) -> list[Finding]:
    if seen.pinned < _EACH:
        return []
    models = [trace.model for trace in seen.traces if trace.model is not None]
    different = {serial for _, serial in models}
    names = list(dict.fromkeys(name for name, _ in models))
    size = seen.pinned_bytes
    if not any(trace.compiled for trace in seen.traces):
        size = max(size, seen.slope)
    fields: dict[str, Any] = {
        "place": seen.place, "bytes": round(size), "per": seen.unit,
        "data": {"loop": seen.place, "models": names[:20]},
    }  # fmt: skip
    called = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    held = f" ({format_bytes(seen.pinned_bytes)} of variables)" if seen.pinned_bytes else ""
    own = [trace for trace in seen.traces if _is_users(trace)]
    if len(different) <= 1 and _again_and_again(own, seen):
        return [_remade_finding(dataclasses.replace(seen, slope=size), own)]
    if len(different) == 1 and len(models) >= _EACH * seen.iterations:
        text = (
            f"{called} is compiled again each {seen.unit}: its old graphs and optimizer slots stay "
            f"pinned in TensorFlow{held}."
        )
        fix = "Compile once, before the loop; or call legroom.release() in it."
        return [finding("LR102", text, fix=fix, **fields)]
    what = f" ({called})" if called else ""
    text = (
        f"A new model is trained each {seen.unit}{what}, and TensorFlow keeps the graph, weights "
        f"and optimizer slots of every one of them{held}."
    )
    fix = (
        "Call legroom.release() at the end of the loop's body (legroom run does that for you); or "
        f"{ISOLATED}."
    )
    return [finding("LR101", text, fix=fix, **fields)]


def _compiled(seen: Evidence) -> list[Finding]:
    compiled = [trace for trace in seen.traces if trace.compiled]
    if not _again_and_again(compiled, seen):
        return []
    names = list(dict.fromkeys(trace.model[0] for trace in compiled if trace.model))
    called = f" ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})" if names else ""
    text = (
        f"XLA compiles a new function each {seen.unit}{called} and keeps the code it made until "
        "the process ends."
    )
    fix = (
        f"{ISOLATED[:1].upper()}{ISOLATED[1:]}; or train without XLA (jit_compile=False) where "
        "models are small and many."
    )
    size = max(seen.slope - seen.pinned_bytes, 0)
    return [
        finding("LR107", text, place=seen.place, bytes=round(size), per=seen.unit, fix=fix,
                data={"loop": seen.place, "models": names[:20]})
    ]  # fmt: skip


def _retraced(seen: Evidence) -> list[Finding]:
    if seen.pinned >= _EACH:
        return []  # each new model has new functions: they are not the cause
    found = []
    compiled = [trace for trace in seen.traces if trace.compiled]
    anew = _again_and_again(compiled, seen)
    kept = [trace for trace in seen.traces if trace.kept and not (trace.compiled and anew)]
    for traces in _grouped(kept, lambda trace: trace.family):
        if len(traces) >= max(3, _EACH * seen.iterations):
            found.append(_retraced_finding(seen, traces))
    if not found:
        for traces in _grouped(kept, lambda trace: trace.place):
            if len(traces) >= max(3, _EACH * seen.iterations):
                found.append(_remade_finding(seen, traces))
    return found[:3]


def _again_and_again(traces: Sequence[Any], seen: Evidence) -> bool:
    """Whether they are of ever new functions, and not of one that is traced again."""
    return len({trace.family for trace in traces}) >= max(1, _EACH * seen.iterations)


def made_anew(seen: Evidence) -> list[Finding]:
    """The functions that are made and traced each iteration, where memory does grow.

    Nothing of Python's keeps their traces, but making them leaves something behind.
    """
    # Not those of data sets: every `fit` makes some, and they go.
    traced = [trace for trace in seen.traces if trace.model is not None or _is_users(trace)]
    for traces in _grouped(traced, lambda trace: trace.place):
        if _again_and_again(traces, seen) and len(traces) >= 3:
            return [_remade_finding(seen, traces)]
    return []


def _retraced_finding(seen: Evidence, traces: list[Any]) -> Finding:
    changing = {
        name: list(dict.fromkeys(trace.arguments.get(name, "") for trace in traces))
        for name in traces[-1].arguments
    }
    changing = {name: kinds for name, kinds in changing.items() if len(kinds) > 1}
    what = "; ".join(
        f"`{name}` was {', '.join(kinds[:3])}{', …' if len(kinds) > 3 else ''}"
        for name, kinds in list(changing.items())[:3]
    )
    last = traces[-1]
    who = f"{last.name} ({short_place(last.place)})"
    if last.model is not None:
        who = f"a step of the model {last.model[0]}"
    text = (
        f"{who} was traced {len(traces)} times in {seen.iterations:.0f} {seen.unit}s, and every "
        f"trace is kept{', with what XLA compiled for it' if last.compiled else ''}. "
        f"{'What changes: ' + what + '.' if what else ''}"
    )
    kinds = [kind for kinds in changing.values() for kind in kinds]
    fix = (
        "Pad to a few fixed shapes, or give the function an input_signature with None for what "
        "changes (reduce_retracing=True does it too)."
    )
    if last.compiled:
        fix = "Pad to a few fixed shapes: XLA compiles for each one."
    if any("Literal" in kind for kind in kinds):
        fix = "Pass numbers as tensors (tf.constant(x)), not as Python values."
    elif any(" at 0x" in kind for kind in kinds):
        fix = "Pass the same Python object each time: make it once, before the loop."
    return finding(
        "LR103", text.strip(), place=last.place, bytes=round(seen.slope), per=seen.unit, fix=fix,
        data={"loop": seen.place, "function": last.name, "traces": len(traces),
              "arguments": {name: kinds[:10] for name, kinds in changing.items()}},
    )  # fmt: skip


def _remade_finding(seen: Evidence, traces: list[Any]) -> Finding:
    last = traces[-1]
    who = f"{last.name} ({short_place(last.place)})"
    fix = "Make the tf.function (or the data set that maps it) once, before the loop."
    if last.model is not None and not _is_users(last):
        who = f"A function of the model {last.model[0]}"
        fix = "Make the model once, before the loop; or call legroom.release() in it."
    text = (
        f"{who} is created again and traced {len(traces)} times in {seen.iterations:.0f} "
        f"{seen.unit}s, and what was made before stays."
    )
    return finding(
        "LR104", text, place=last.place, bytes=round(seen.slope), per=seen.unit, fix=fix,
        data={"loop": seen.place, "function": last.name, "traces": len(traces)},
    )  # fmt: skip


def _generators(seen: Evidence) -> list[Finding]:
    if seen.generators < _EACH:
        return []
    if not seen.datasets and seen.slope < _WORTH:
        return []  # `fit` makes one of a generator that it is given: a few kilobytes
    places = collections.Counter(made.place for made in seen.datasets)
    place = places.most_common(1)[0][0] if places else seen.place
    generator = any("FlatMap" in made.kind for made in seen.datasets if made.place == place)
    what = "data set over a Python generator" if generator else "Python function for TensorFlow"
    text = (
        f"A {what} is created again each {seen.unit} ({short_place(place)}): TensorFlow keeps the "
        "Python function of each one, and all that it uses, for ever."
    )
    if not round(seen.slope):
        text += " Here these are few bytes, which can't be told from noise."
    fix = (
        "Make the data set once, before the loop: each iteration over it calls the generator again."
        if generator
        else "Make what calls tf.py_function or tf.numpy_function once, before the loop."
    )
    return [
        finding("LR106", text, place=place, bytes=round(seen.slope), per=seen.unit, fix=fix,
                data={"loop": seen.place})
    ]  # fmt: skip


def _grouped(items: Sequence[Any], key: Any) -> list[list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.values(), key=len, reverse=True)


def _is_users(trace: Any) -> bool:
    return bool(trace.place) and is_users_file(trace.place.rpartition(":")[0])
