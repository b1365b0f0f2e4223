"""Remedies: what to do about a case, the most useful first.

Pure functions. Savings are those that the text itself allows to work out: halving a batch halves
the tensor that failed, so at least that much. With the model at hand they are predicted instead.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from legroom.core.places import notebook
from legroom.core.units import format_bytes
from legroom.messages.arithmetic import axes
from legroom.messages.case import Case
from legroom.messages.diagnosis import Remedy
from legroom.messages.model import Advice
from legroom.messages.reading.facts import Facts, clean
from legroom.messages.reading.ops import role_of_op
from legroom.messages.reading.sizes import dtype_bytes

__all__ = ["by_guarding", "propose"]

_MOST = 12
_ABSURD = 10**12  # bytes: no single device has as much
_LARGEST_BATCH = 65536  # a first axis longer than this is none
_FLOATS = ("float32", "float64")
# Where loops by hand are cut, by framework.
_STEPS = {"torch": "the function that calls backward()", "jax": "@jax.jit"}
# Ops that draw, without a layer's name before them.
_DRAWS = re.compile(r"(?:Stateless|Stateful)?(?:Random|TruncatedNormal)\w*$")


def propose(case: Case, advice: Advice | None = None) -> tuple[Remedy, ...]:
    """What to do, ranked: the cause itself first, then by what it saves.

    Args:
        case: The case.
        advice: What was predicted with the model at hand. It takes the place of what the text
            alone allows to say.
    """
    if case.cause is None:
        return ()
    first = list(_for_the_cause(case))
    then: list[Remedy] = []
    if case.is_oom and case.fatal:
        if case.facts.where == "host":
            then = list(_on_the_host(case))
        elif case.facts.where != "disk":
            then = list(_on_a_device(case))
    # Where two save about the same, the one that keeps the training as it is comes first.
    then.sort(key=lambda one: (-(one.bytes_saved or 0) * (1.1 if one.exact else 1), not one.exact))
    if then and advice is not None and advice.remedies:
        # A process that was killed may have held the model's memory or something else's.
        then = [
            *map(_cleaned, advice.remedies),
            *(then if case.cause.pattern.kind == "death" else ()),
        ]
    unique = {(one.text, one.command, one.code): one for one in (*first, *then)}
    return tuple(unique.values())[:_MOST]


def by_guarding(remedy: Remedy) -> Remedy:
    """The remedy with how a training is guarded from where the user is."""
    if notebook() is not None:
        return dataclasses.replace(remedy, code="%load_ext legroom")
    return dataclasses.replace(remedy, command="legroom run train.py")


def _cleaned(remedy: Remedy) -> Remedy:
    """A remedy whose words may hold names from a file."""
    return dataclasses.replace(remedy, text=clean(remedy.text, 1000))


def _for_the_cause(case: Case) -> Iterator[Remedy]:
    """What mends this very thing, whatever it saves."""
    assert case.cause is not None
    facts, finding = case.facts, case.cause.finding
    yield from _LOOKALIKES.get(finding, ())
    if not case.is_oom:
        if finding == "segmentation-fault-or-abort":
            yield Remedy(
                "Run it supervised: legroom reads how the process died, says whether memory was "
                "the cause, and resumes from the last snapshot if it was.",
                command="legroom run train.py",
            )
        return
    if not case.fatal:
        return
    if _absurd(case):
        yield Remedy(
            "Look at the shape first: a slip in a reshape, a broadcast or a layer's width is "
            "likelier here than too little memory.",
            exact=False,
        )
    if case.fragmented and facts.where == "device":
        yield _defragment(case)
    if case.growth:
        yield Remedy(
            "Free what earlier trainings in this process still hold, and watch what grows.",
            code="legroom.release()",
        )
    if facts.op == "_EagerConst" or finding == "dst-tensor-is-not-initialized":
        yield Remedy(
            "Don't put the whole data set on the device: hand it over batch by batch.",
            code="model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(32))",
            bytes_saved=facts.requested_bytes,
        )
    if finding in ("cuda-error-out-of-memory", "cudnn-failed-to-initialize") or (
        case.contradicted or _others(case)
    ):
        held = _others(case)
        yield Remedy(
            "See who else holds the GPU (an old notebook, a process that did not end) and end it.",
            command="nvidia-smi",
            bytes_saved=held,
        )
    if finding == "cudnn-failed-to-initialize" and facts.framework == "tensorflow":
        yield Remedy(
            "Let TensorFlow's pool grow as needed, so that the GPU's own libraries find room.",
            command="TF_FORCE_GPU_ALLOW_GROWTH=true python train.py",
        )


def _absurd(case: Case) -> bool:
    """Whether more was asked for than any setting could make fit."""
    asked, limit = case.facts.requested_bytes, case.facts.limit_bytes
    if asked is None or case.facts.memory_space:
        return False
    return asked > _ABSURD or (limit is not None and asked > 16 * limit > 0)


def _defragment(case: Case) -> Remedy:
    facts = case.facts
    if facts.framework == "torch":
        return Remedy(
            "Let PyTorch join the free pieces.",
            command="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
            bytes_saved=facts.unallocated_bytes,
        )
    return Remedy(
        "Use CUDA's own allocator, which joins free pieces.",
        command="TF_GPU_ALLOCATOR=cuda_malloc_async python train.py",
        bytes_saved=facts.room_bytes,
    )


def _others(case: Case) -> int | None:
    """What processes other than this one hold of the device, where the text tells."""
    facts = case.facts
    if facts.limit_bytes is None or facts.free_bytes is None or facts.process_bytes is None:
        return None
    held = facts.limit_bytes - facts.free_bytes - facts.process_bytes
    return held if held > 0.05 * facts.limit_bytes else None


def _on_a_device(case: Case) -> Iterator[Remedy]:
    facts = case.facts
    asked = facts.requested_bytes
    batch = _batch(case)
    half = asked // 2 if asked and batch and batch > 1 else None
    weights = _is_weights(case)
    on_chips = facts.memory_space or (facts.device or "").startswith("TPU")
    if on_chips:
        over = asked - facts.limit_bytes if asked and facts.limit_bytes else None
        yield Remedy(
            "Spread the program over more chips, or make the batch of each chip smaller.",
            bytes_saved=over if over and over > 0 else None,
            exact=False,
        )
        yield Remedy(
            "Compute in bfloat16, the TPU's own type.",
            code='keras.config.set_dtype_policy("mixed_bfloat16")',
            exact=False,
        )
    elif not weights and facts.framework != "numpy":
        slices = f" in slices of {max(batch // 2, 1)} instead of {batch}" if half and batch else ""
        yield _in_slices(facts, slices or " in slices", half)
    if not (weights or on_chips or batch == 1):
        size = f"batch_size={batch // 2}" if half and batch else "batch_size=…"
        yield Remedy(
            "Halve the batch: more steps, noisier gradients.",
            code=f"DataLoader(…, {size})" if _is_plain_torch(facts) else f"model.fit(x, y, {size})",
            bytes_saved=half,
            exact=False,
        )
    # Variables stay float32 under a mixed policy.
    if facts.dtype in _FLOATS and asked and not (weights or facts.memory_space):
        wide = dtype_bytes(facts.dtype) or 4
        yield Remedy(
            f"Compute in half precision: {format_bytes(asked * 2 // wide)} instead of "
            f"{format_bytes(asked)} for this tensor.",
            code='keras.config.set_dtype_policy("mixed_float16")',
            bytes_saved=asked - asked * 2 // wide,
            exact=False,
        )
    if weights:
        fewer = "A smaller vocabulary, or fewer dimensions" if _is_table(case) else None
        yield Remedy(
            f"{fewer or 'Fewer filters or units'}: what failed has the shape of weights, and a "
            "smaller batch does not change it.",
            exact=False,
        )
    if facts.op and role_of_op(facts.op) == "optimizer":
        yield Remedy(
            "An optimizer with less state per weight: Adam keeps two copies, SGD none.",
            code='model.compile(optimizer="sgd", …)',
            exact=False,
        )
    if facts.framework == "jax" and not facts.memory_space:
        yield Remedy(
            "JAX takes three quarters of a GPU by default; let it have more.",
            command="XLA_PYTHON_CLIENT_MEM_FRACTION=.95 python train.py",
        )


def _in_slices(facts: Facts, slices: str, saved: int | None) -> Remedy:
    """The training that failed, in slices."""
    how = f"{slices}: the same training, less at a time."
    if facts.framework in _STEPS and facts.layer is None:  # only Keras tells the layer
        return Remedy(
            f"Put one step into a function and run it{how} For a Keras model, legroom run train.py "
            "does it without a change.",
            code=f"@legroom.step  # above {_STEPS[facts.framework]}",
            bytes_saved=saved,
        )
    sure = facts.framework == "tensorflow" or facts.layer is not None
    return by_guarding(
        Remedy(f"{'Run it' if sure else 'If it is Keras, run it'}{how}", bytes_saved=saved)
    )


def _is_plain_torch(facts: Facts) -> bool:
    """Whether it may be a loop by hand."""
    return facts.framework == "torch" and facts.layer is None


def _on_the_host(case: Case) -> Iterator[Remedy]:
    facts = case.facts
    asked = facts.requested_bytes
    if facts.dtype in ("float64", "int64", "complex128") and asked:
        small = {"float64": "float32", "int64": "int32", "complex128": "complex64"}[facts.dtype]
        yield Remedy(
            f"Keep the array as {small}: half of it, and what a network computes in anyway.",
            code=f"x = x.astype({small!r})  # or dtype={small!r} where it is made",
            bytes_saved=asked // 2,
            exact=False,
        )
    if (
        facts.framework in ("numpy", "system", None)
        or case.cause is None
        or (case.cause.pattern.kind == "death")
    ):
        yield Remedy(
            "Stream the data instead of holding all of it, with a memory map for example.",
            code='x = np.load("x.npy", mmap_mode="r")',
            bytes_saved=asked,
        )
        yield Remedy(
            "See what the input keeps: caches, shuffle buffers, copies of arrays.",
            command="legroom check train.py",
        )
        yield Remedy(
            "Run it supervised: if it is killed again, legroom resumes it with less.",
            command="legroom run train.py",
        )
    else:
        yield from _on_a_device(case)


def _batch(case: Case) -> int | None:
    """The batch, where the failing tensor's first axis can be one."""
    shape, op = case.facts.shape, case.facts.op
    if not shape or len(shape) < 2 or shape[0] > _LARGEST_BATCH or _is_weights(case):
        return None
    if op is not None and (op == "_EagerConst" or role_of_op(op) == "optimizer"):
        return None
    if op is not None and _DRAWS.match(op):
        return None  # first values of weights, as likely as noise for a batch
    return shape[0]


def _is_weights(case: Case) -> bool:
    shape = case.facts.shape
    names = axes(shape, case.facts.data_format) if shape else None
    return bool(names and names[0] == "kernel") or _is_table(case)


def _is_table(case: Case) -> bool:
    """Whether it has the shape of an embedding's table: its outputs have three axes or more."""
    shape, where = case.facts.shape, f"{case.facts.layer or ''}/{case.facts.op or ''}"
    return bool(shape and len(shape) == 2 and "embedding" in where.lower())


_LOOKALIKES: dict[str, tuple[Remedy, ...]] = {
    "no-space-left-on-device": (
        Remedy("See which disk is full, and free some of it.", command="df -h"),
        Remedy(
            "Cache the data in memory or on a larger disk, not in the working folder.",
            code='ds = ds.cache("/path/with/room/train_cache")',
        ),
    ),
    "grpc-message-larger-than-max": (
        Remedy(
            "Raise the limit on both sides, or send smaller messages.",
            code='options=[("grpc.max_receive_message_length", -1), '
            '("grpc.max_send_message_length", -1)]',
        ),
    ),
    "cudnn-version-mismatch": (
        Remedy(
            "Install the cuDNN that this TensorFlow was built for; its package brings it along.",
            command="pip install 'tensorflow[and-cuda]'",
        ),
    ),
    "no-gpu-found": (
        Remedy("See whether the driver finds the GPU.", command="nvidia-smi"),
        Remedy(
            "Install TensorFlow with the CUDA libraries it needs.",
            command="pip install 'tensorflow[and-cuda]'",
        ),
    ),
    "shared-memory": (
        Remedy("Give the container more shared memory.", command="docker run --shm-size=8g …"),
        Remedy("Use fewer loader workers.", code="DataLoader(…, num_workers=2)"),
    ),
    "allocation-exceeds-10-percent": (
        Remedy(
            "Nothing needs to be done. If host memory is short, see what the input holds.",
            command="legroom check train.py",
        ),
    ),
}
