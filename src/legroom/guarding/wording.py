"""What the guard says, in one place: what happened, to which layer, how many bytes, what to do."""

from __future__ import annotations

import time
from collections.abc import Sequence

from legroom.core.units import format_bytes

__all__ = [
    "another_training",
    "broken",
    "cannot_fit",
    "cannot_slice",
    "draws_anew",
    "exact_refuses",
    "grown",
    "in_order",
    "lean",
    "not_kept",
    "other_data",
    "plan_for_others",
    "plan_too_large",
    "planned",
    "planned_below",
    "ran_out",
    "recomputing",
    "repeated",
    "repeated_lean",
    "repeated_leaner",
    "replayed",
    "resumed",
    "resumed_loop",
    "shrunk",
    "slices_change",
    "slices_of",
    "starts_from_top",
    "status",
    "stopped",
    "summaries_of_slices",
    "unlike_whole",
    "unverified",
    "whole_because",
]


def slices_of(samples: int, size: int) -> str:
    """How slices are spoken of: `4 slices of 64`."""
    return f"{-(-samples // size)} slices of {size}"


def ran_out(place: str | None, needed: int | None) -> str:
    """What happened: `out of memory at conv2d_1 (848 MB more needed)`."""
    at = f" at {place}" if place else ""
    more = f" ({format_bytes(needed)} more needed)" if needed else ""
    return f"out of memory{at}{more}"


def repeated(subject: str, place: str | None, needed: int | None, samples: int, size: int) -> str:
    """The line after a survived failure."""
    return (
        f"{ran_out(place, needed)}: {subject} {samples} now runs as {slices_of(samples, size)}; "
        "the step was repeated, nothing lost"
    )


def planned(subject: str, samples: int, size: int, need: int | None, free: int | None) -> str:
    """The line when slices are chosen before anything ran."""
    why = ""
    if need is not None and free is not None:
        why = f": whole it may need up to {format_bytes(need)}, and {format_bytes(free)} are free"
    return f"{subject} {samples} starts as {slices_of(samples, size)}{why}"


def planned_below(subject: str, samples: int, size: int, barred: int) -> str:
    """The line before the first batch, where an earlier process of the run died."""
    return (
        f"{subject} {samples} starts as {slices_of(samples, size)}: slices of {barred} or more are "
        "not tried, because the process ran out of memory with them"
    )


def grown(subject: str, samples: int, size: int) -> str:
    """The line when larger slices fit."""
    how = "whole" if size >= samples else f"as {slices_of(samples, size)}"
    return f"there is room for more: {subject} {samples} now runs {how}"


def shrunk(subject: str, samples: int, size: int, free: int | None) -> str:
    """The line when there is less room than before."""
    left = "" if free is None else f" ({format_bytes(free)})"
    return f"less memory is free{left}: {subject} {samples} now runs as {slices_of(samples, size)}"


def status(peak: int, budget: int, slices: int) -> str:
    """A word for a progress bar."""
    cut = f", {slices} slices" if slices > 1 else ""
    return f"{format_bytes(peak)}/{format_bytes(budget)}{cut}"


def unlike_whole(coupled: Sequence[str], redrawn: Sequence[str], calls: Sequence[str] = ()) -> str:
    """Why slices are not the whole batch: what couples its samples, or draws or acts for all."""
    reasons = []
    if coupled:
        s = "es" if len(coupled) == 1 else ""
        reasons.append(f"{_listed(coupled)} mix{s} the samples of a batch")
    if redrawn:
        s = "s" if len(redrawn) == 1 else ""
        reasons.append(f"{_listed(redrawn)} draw{s} random numbers that slices can't draw alike")
    if calls:
        reasons.append(f"the step calls Python functions ({_listed(calls)}) once for each slice")
    return ", and ".join(reasons)


def slices_change(why: str, *, surely: bool = True) -> str:
    """The warning when slices change the result, or may."""
    is_not = "is not" if surely else "may not be"
    return (
        f"{why}, so in slices the training {is_not} exactly the same. To never slice this model, "
        "use exact=True (legroom run --exact)"
    )


def summaries_of_slices() -> str:
    """The note when slices write summaries."""
    return (
        "the step writes summaries (tf.summary): in slices they show the last slice of a batch, "
        "not the whole batch. The training itself is the same"
    )


def exact_refuses(subject: str, why: str) -> str:
    """Why an exact run stays whole."""
    return f"{why}: with exact=True the {subject} runs whole"


def recomputing(subject: str, samples: int, size: int, blocks: Sequence[Sequence[str]]) -> str:
    """How a step is made to fit by recomputing."""
    count = sum(len(block) for block in blocks)
    layers = "1 layer is" if count == 1 else f"{count} layers are"
    how = "whole" if size >= samples else f"as {slices_of(samples, size)}"
    return (
        f"{subject} {samples} runs {how}, and {layers} recomputed in the backward pass: the same "
        "result, less memory, slower"
    )


def in_order(subject: str, samples: int) -> str:
    """How a step is made to fit by the order of its ops."""
    return (
        f"{subject} {samples} runs whole, with its ops in an order that needs less memory: the "
        "same result"
    )


def plan_too_large(peak: int, budget: int) -> str:
    """When a plan was made for more memory than there is."""
    return (
        f"the plan needs up to {format_bytes(peak)}, but there are only {format_bytes(budget)}: it "
        "is not used, and legroom finds a size that fits"
    )


def plan_for_others(planned: int, samples: int) -> str:
    """When batches are not those of the plan."""
    return f"the plan is for batches of {planned}, but the first one has {samples}"


def repeated_leaner(subject: str, place: str | None, needed: int | None, samples: int) -> str:
    """After a failure that is answered by recomputing."""
    where = ran_out(place, needed)
    return f"{where}: {subject} {samples} is repeated with fewer activations kept, nothing lost"


def lean(subject: str, samples: int) -> str:
    """The line when the old state is kept in the host's memory before anything ran."""
    return (
        f"{subject} {samples} runs whole, with a copy of the weights in main memory during each "
        "step (slower): the device has no room for all gradients beside them"
    )


def repeated_lean(subject: str, place: str | None, needed: int | None, samples: int) -> str:
    """After a failure that is answered by keeping the old state in the host's memory."""
    return (
        f"{ran_out(place, needed)}: {subject} {samples} is repeated with a copy of the weights in "
        "main memory (slower), nothing lost"
    )


def whole_because(subject: str, reason: str) -> str:
    """Why a step runs whole although it may not fit."""
    return f"the {subject} runs whole, because the step can't be sliced: {reason}"


def unverified(subject: str, reason: str) -> str:
    """The note when slices could not be compared with the whole."""
    return f"whether slices of the {subject} give the same result could not be checked: {reason}"


def cannot_slice(
    samples: int | None, reason: str, place: str | None, needed: int | None, *, exact: bool
) -> str:
    """The explanation when a step ran out of memory and can't be sliced."""
    batch = "" if samples is None else f" on a batch of {samples}"
    lines = [f"{ran_out(place, needed)}{batch}, and the step can't be run in slices: {reason}."]
    if exact:
        lines.append(
            "What to do: allow slices that are not exactly the same (without exact=True or "
            "--exact), use a smaller batch_size, or provide more memory."
        )
    else:
        lines.append(
            "What to do: write the step so that it depends only on its batch, put @legroom.step "
            "above it, use a smaller batch, or provide more memory."
        )
    lines.append("The weights are as they were before this step.")
    return "\n".join(lines)


def cannot_fit(
    *,
    size: int,
    fixed: bool,
    need: int | None,
    in_use: int | None,
    budget: int | None,
    tensors: Sequence[tuple[str, int]],
) -> str:
    """The explanation when even one sample at a time is too much."""
    what = f"slices of {size} (slice_size={size})" if fixed else "one sample at a time"
    lines = [f"This training does not fit, even with {what}."]
    if fixed:
        lines[0] = f"This training does not fit with {what}."
    parts = []
    if need is not None:
        parts.append(f"{'A slice' if fixed else 'One sample'} needs about {format_bytes(need)}")
    if in_use is not None:
        held = f"{format_bytes(in_use)} are in use already (weights, optimizer, data)"
        parts.append(held if not parts else f"on top, {held}")
    if budget is not None:
        parts.append(f"the budget is {format_bytes(budget)}")
    if parts:
        lines.append("; ".join(parts) + ".")
    if tensors:
        lines.append("The largest tensors of a step:")
        lines += [f"  {format_bytes(size):>8}  {name}" for name, size in _largest(tensors)]
    largest = _largest(tensors)
    first = f", first of all {largest[0][0]}" if largest else ""
    lines.append("What to change:")
    if fixed:
        lines.append("  - leave slice_size out, so that a size that fits is found")
    lines += [
        "  - provide more memory, or free what else holds it",
        "  - make the input smaller (image size, sequence length)",
        f"  - make the largest layers smaller{first}",
        '  - keras.mixed_precision.set_global_policy("mixed_bfloat16"): half the activations',
        "The weights are as they were before this step.",
    ]
    return "\n".join(lines)


def broken(size: int) -> str:
    """The explanation when running out has broken the process."""
    return (
        f"Memory ran out in a step that XLA compiled (jit_compile=True), with {size} samples. On a "
        "CPU that leaves TensorFlow's memory broken: nothing more can be computed in this process."
        "\nWhat to change:"
        "\n  - legroom run script.py: restarts the script for you, with smaller slices"
        f"\n  - slice_size={max(1, size // 2)} in legroom.fit, in a new process"
        "\n  - compile without jit_compile=True: then running out costs only a retry"
        "\nThe weights are as they were before this step."
    )


def resumed(training: int, epoch: int, step: int, at: float) -> str:
    """The line when an interrupted training goes on."""
    when = time.strftime("%H:%M:%S", time.localtime(at))
    where = f"epoch {epoch}, after batch {step}" if step else f"the start of epoch {epoch}"
    return f"training {training} resumes at {where}, from the snapshot of {when}"


def resumed_loop(number: int, batches: int, at: float) -> str:
    """The line when a loop written by hand goes on."""
    when = time.strftime("%H:%M:%S", time.localtime(at))
    return f"pass {number} of the loop resumes after batch {batches}, from the snapshot of {when}"


def starts_from_top() -> str:
    """What is said at the start of a loop written by hand that can't be resumed."""
    return (
        "this is a hand-written loop: if the script is killed, it starts from the beginning. To "
        "make it resume, take its batches from "
        "legroom.resumable(dataset, state={'model': model, 'optimizer': optimizer})"
    )


def replayed(training: int) -> str:
    """The line when a training had finished before."""
    return f"training {training} was finished already: its weights and history are restored"


def another_training(training: int, told: Sequence[str]) -> str:
    """The line when what is kept belongs to another training."""
    return (
        f"training {training} is not the one that was interrupted ({'; '.join(told[:4])}): it "
        "starts from the beginning"
    )


def not_kept() -> str:
    """The line where a training can't be kept in snapshots."""
    return "if the process is killed, its trainings can't resume and start from the beginning"


def other_data() -> str:
    """The line when the data did not come as before."""
    return (
        "the data came in another order than before the interruption, so in this epoch some "
        "samples may be seen twice and others not at all. If the source draws random numbers, seed "
        "them (keras.utils.set_random_seed)"
    )


def draws_anew(ops: Sequence[str]) -> str:
    """The line when random numbers can't be put back."""
    return (
        f"the training step uses {_listed(ops)} of TensorFlow, whose random state can't be "
        "restored: these numbers differ from those of an uninterrupted run. Keras's own (layers, "
        "keras.random) continue as before"
    )


def stopped(epoch: int, step: int) -> str:
    """The line when a training stops because it was asked to."""
    where = f"in epoch {epoch} after batch {step}" if step else f"before epoch {epoch}"
    return f"asked to stop: everything is saved, {where}; run the same command to resume"


def _largest(tensors: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The few tensors that matter: by layer and size, the largest first."""
    most = max((size for _, size in tensors), default=0)
    return [(name, size) for name, size in tensors if size * 50 >= most > 0][:5]


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = list(names[:most])
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
