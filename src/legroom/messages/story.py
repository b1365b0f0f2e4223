"""The story: a case in plain sentences, for someone who has never seen an allocator's dump.

Pure functions from a case to text. Each returns one sentence or None; together they say what ran
out, where, who asked, how large and why so large, what the rest held, whether it was one step too
many or growth or fragmentation, what began it and what ended it.
"""

from __future__ import annotations

from legroom.core.units import format_bytes
from legroom.messages.arithmetic import axes, product
from legroom.messages.case import Case
from legroom.messages.meanings import MEANINGS
from legroom.messages.model import Advice, Tie
from legroom.messages.reading.facts import Facts, clean
from legroom.messages.reading.incident import Incident
from legroom.messages.reading.ops import role_of_op
from legroom.messages.reading.sizes import tensor_bytes

__all__ = ["tell"]

_LONGEST = 1000  # characters of one sentence
_NAMES = {
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "torch": "PyTorch",
    "numpy": "NumPy",
    "system": "The system",
}
_ROLES = {
    "gradient": "the backward pass",
    "optimizer": "the optimizer's update",
    "loss": "the loss",
    "input": "the input pipeline",
}


def tell(case: Case, bond: Tie | None = None, advice: Advice | None = None) -> str:
    """The whole story, one sentence a line.

    Args:
        case: The case.
        bond: How it hangs together with the model, where that is at hand.
        advice: What was predicted of the model.
    """
    if case.cause is None:
        return "Nothing in this text says that memory ran out."
    parts = (
        _what(case),
        _why_so_large(case, bond),
        _which_model(bond),
        _what_was_there(case),
        advice.sentence if advice else None,
        _what_held_it(case),
        _cut_up(case),
        _growing(case),
        *_order(case),
    )
    # Names of layers and files are data as well: a sentence stays on its line.
    return "\n".join(clean(part, _LONGEST) for part in parts if part)


def _name(facts: Facts) -> str:
    return _NAMES.get(facts.framework or "", "The program")


def _place(facts: Facts) -> str:
    if facts.memory_space and facts.memory_space != "hbm":
        return f"the TPU's {facts.memory_space}"
    if facts.memory_space:
        return "the TPU's memory (HBM)"
    if facts.where == "host":
        return "host memory (RAM)"
    if facts.device and facts.where == "device":
        return f"the memory of {facts.device}"
    return "device memory" if facts.where == "device" else "memory"


def _what(case: Case) -> str:
    assert case.cause is not None
    cause, facts = case.cause, case.facts
    meaning = MEANINGS.get(cause.finding)
    if cause.pattern.kind == "death":
        return _death(cause, facts)
    if not case.is_oom:
        return meaning or "This is no failure of memory."
    if not case.fatal:
        size = f" of {format_bytes(facts.requested_bytes)}" if facts.requested_bytes else ""
        if cause.harmless:
            return (
                f"Not a failure: {_name(facts)} tried an allocation{size} that did not fit in "
                f"{_place(facts)} and used a slower method that needs less."
            )
        return (
            f"Not a failure yet: {_name(facts)} asked the driver for a pool{size}, was "
            "refused, and tried smaller ones."
        )
    asked = ""
    if facts.requested_bytes:
        asked = f" when {_asker(facts)} asked for {format_bytes(facts.requested_bytes)}"
    elif facts.op or facts.layer:
        asked = f" at {_asker(facts)}"
    if facts.memory_space and facts.limit_bytes and facts.requested_bytes:
        return (
            f"A compiled program needs {format_bytes(facts.requested_bytes)} and {_place(facts)} "
            f"has {format_bytes(facts.limit_bytes)}: it was refused before it ran."
        )
    sentence = f"{_name(facts)} ran out of {_strip_the(_place(facts))}{asked}."
    if cause.finding in ("dst-tensor-is-not-initialized", "shared-memory") or (
        cause.finding == "cudnn-failed-to-initialize"
    ):
        sentence += f" {meaning}"
    return sentence


def _strip_the(place: str) -> str:
    return place.removeprefix("the memory of ") + " memory" if "memory of" in place else place


def _death(cause: Incident, facts: Facts) -> str:
    meaning = MEANINGS[cause.finding]
    if cause.pattern.name.startswith("kernel") or cause.pattern.name.startswith("container"):
        who = f" ({facts.process})" if facts.process else ""
        held = f" while it held {format_bytes(facts.in_use_bytes)}" if facts.in_use_bytes else ""
        return f"Host memory (RAM) ran out and the kernel killed the process{who}{held}."
    if cause.is_oom is None:
        return meaning
    if cause.finding == "notebook-crashed":
        return f"The notebook used all its host memory (RAM). {meaning}"
    if cause.pattern.name.startswith("slurm"):
        return "The job used more host memory (RAM) than it had asked for, and was killed."
    if cause.pattern.name.startswith("ray"):
        return "Ray killed the task because the node was running out of host memory (RAM)."
    return (
        f"{meaning} On a machine that trains, that is nearly always the kernel, because host "
        "memory (RAM) ran out; `dmesg` has its line."
    )


def _asker(facts: Facts) -> str:
    op = facts.op
    if not op:
        return f"layer {facts.layer}" if facts.layer else "it"
    kind = op.rsplit("/", 1)[-1]
    if facts.layer:
        kind = f"{kind} of layer {facts.layer}"
    role = _ROLES.get(role_of_op(op))
    return f"{kind} in {role}" if role else kind


def _which_model(bond: Tie | None) -> str | None:
    if bond is None:
        return None
    if bond.missing is not None:
        sentence = f"{bond.title} has no layer {bond.missing}, so nothing is predicted from it"
        if bond.alike is None:
            return f"{sentence}: is it the model that was trained?"
        return f"{sentence}; its layer {bond.alike.name} has a tensor of this shape."
    return None


def _why_so_large(case: Case, bond: Tie | None) -> str | None:
    facts, cause = case.facts, case.cause
    if not case.is_oom or cause is None:
        return None
    shape, dtype, whose = facts.shape, facts.dtype, ""
    if shape is None:
        # Keras prints what the layer was called with: an input of just this size explains it.
        asked = facts.requested_bytes
        for one, kind in cause.arguments:
            size = tensor_bytes(one, kind)
            if asked and size and abs(size - asked) <= 0.01 * asked:
                shape, dtype, whose = one, kind, ", the size of its input"
                break
    if shape is None or dtype is None:
        if shape:
            return f"The tensor's shape is {' × '.join(map(str, shape))}."
        return None
    sum_ = product(shape, dtype)
    if sum_ is None:
        return None
    sentence = f"That is {sum_}{whose}"
    if bond is not None and bond.tensor is not None:
        tensor = bond.tensor
        pairs = ", ".join(f"{name} {n}" for name, n in zip(tensor.axes, shape, strict=True))
        layer = tensor.layer
        return f"{sentence}: {pairs}, the {tensor.what} of {layer.name} ({layer.kind})."
    names = axes(shape, facts.data_format)
    if names:
        pairs = ", ".join(f"{name} {length}" for name, length in zip(names, shape, strict=True))
        sentence += f": {pairs}, it seems"
    return sentence + "."


def _what_was_there(case: Case) -> str | None:
    facts = case.facts
    limit, used, asked = facts.limit_bytes, facts.in_use_bytes, facts.requested_bytes
    if not case.is_oom or not case.fatal or facts.memory_space or case.cause is None:
        return None
    if case.cause.pattern.kind == "death":
        return f"The limit was {format_bytes(limit)}." if limit else None
    if limit is not None and asked is not None and asked > limit:
        return f"All of the memory is {format_bytes(limit)}: this one request could never fit."
    if case.contradicted:
        return (
            f"The message calls {format_bytes(facts.free_bytes or 0)} free, more than was asked "
            "for: something else held it at that moment, another process or the driver."
        )
    free = facts.free_bytes
    if limit is not None and used is not None and free is not None and free <= limit - used:
        reserve = facts.unallocated_bytes
        kept = f", kept {format_bytes(reserve)} in reserve" if reserve else ""
        return (
            f"Of {format_bytes(limit)} it used {format_bytes(used)}{kept}, and "
            f"{format_bytes(free)} was free."
        )
    if limit is not None and used is not None:
        sentence = f"{format_bytes(used)} of {format_bytes(limit)} was in use"
        room = limit - used
        if asked is not None and room < asked:
            return f"{sentence}: {format_bytes(asked - max(room, 0))} too little was left."
        return sentence + "."
    if used is not None:
        return f"{format_bytes(used)} was in use."
    if limit is not None and facts.free_bytes is not None:
        return f"Of {format_bytes(limit)}, {format_bytes(facts.free_bytes)} was free."
    if limit is not None:
        return f"All of the memory is {format_bytes(limit)}."
    return f"{format_bytes(facts.free_bytes)} was free." if facts.free_bytes is not None else None


def _what_held_it(case: Case) -> str | None:
    cause = case.cause
    if cause is None or not case.is_oom or not case.fatal:
        return None
    if cause.program.buffers:
        buffers = sorted(cause.program.buffers, key=lambda one: one.bytes, reverse=True)[:2]
        told = [
            format_bytes(one.bytes) + (f" for {'/'.join(one.op.split('/')[-2:])}" if one.op else "")
            for one in buffers
        ]
        return f"Its largest buffers at the peak: {' and '.join(told)}."
    if cause.program.parts:
        parts = sorted(cause.program.parts.items(), key=lambda one: one[1], reverse=True)[:3]
        told = [f"{format_bytes(size)} {name}" for name, size in parts]
        total = cause.program.total_bytes
        whole = f" of {format_bytes(total)} in all" if total else ""
        return f"The program's buffers{whole}: {', '.join(told)}."
    if cause.dump is None:
        return None
    if cause.dump.holders:
        told = [
            f"{op.rsplit('/', 1)[-1]} {format_bytes(size)}"
            for op, size in cause.dump.largest_holders()
        ]
        return f"Most was held by the ops {', '.join(told)}."
    largest = cause.dump.largest()
    if not largest:
        return None
    asked = case.facts.requested_bytes
    told = [f"{one.count} × {format_bytes(one.bytes)}" for one in largest]
    sentence = f"The largest tensors in use were {', '.join(told)}"
    same = [one for one in largest if asked and abs(one.bytes - asked) <= 0.01 * asked]
    if same:
        sentence += f"; {same[0].count} of them as large as the one asked for"
    return sentence + "."


def _cut_up(case: Case) -> str | None:
    facts = case.facts
    if case.fragmented and facts.unallocated_bytes is not None:
        return (
            f"PyTorch held {format_bytes(facts.unallocated_bytes)} that nothing used, in pieces "
            "too small: the memory is fragmented."
        )
    if case.fragmented:
        room, largest = facts.room_bytes, facts.largest_free_bytes
        piece = f", but the largest piece was {format_bytes(largest)}" if largest else ""
        free = f"{format_bytes(room)} was free" if room else "There was room"
        return f"{free}{piece}: the memory is fragmented."
    return None


def _growing(case: Case) -> str | None:
    if case.growth:
        return (
            "More was in use at each failure though no more was asked for: something is not given "
            "back."
        )
    return None


def _order(case: Case) -> list[str]:
    cause, blow = case.cause, case.blow
    told: list[str] = []
    if cause is None:
        return told
    if case.together > 1:
        others = case.together - 1
        told.append(f"{others} more allocation{'s' if others > 1 else ''} failed beside it.")
    if case.failures > 1:
        places = f" on {', '.join(case.devices)}" if len(case.devices) > 1 else ""
        told.append(f"Memory ran out {case.failures} times here{places}; this was the first.")
    if blow is not None:
        told.append(f"The last blow: {_short(blow)}.")
    for aside in case.asides:
        meaning = MEANINGS.get(aside.finding)
        if meaning and aside is not blow and aside.pattern.kind == "failure":
            told.append(f"Also in this text: {meaning}")
    return told


def _short(incident: Incident) -> str:
    facts = incident.facts
    if incident.finding == "killed":
        return "the process was killed (SIGKILL)"
    if incident.finding == "segmentation-fault-or-abort":
        return "the process crashed (segmentation fault or abort)"
    if incident.finding == "notebook-crashed":
        return "the notebook's process ended"
    if incident.is_oom is False:
        return f"“{incident.text[:100]}”"
    where = f" on {facts.device}" if facts.device else ""
    size = f", {format_bytes(facts.requested_bytes)} asked for" if facts.requested_bytes else ""
    return f"memory ran out again{where}{size}"
