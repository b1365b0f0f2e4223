"""What the input costs: rules over the stages of a pipeline, or over arrays. Pure but for reading.

Bytes are predicted from elements and their size, before the pipeline has run.
"""

from __future__ import annotations

import collections.abc
from typing import Any

from legroom.backends.base import imported, used_name
from legroom.core.findings import Finding, ranked
from legroom.core.stages import Stage
from legroom.core.units import format_bytes
from legroom.doctor.catalog import finding

__all__ = ["check_arrays", "check_input", "check_stages", "is_input"]

# A few megabytes are no concern of anyone's.
_WORTH = 16_000_000
_COPIES = 2  # of an array, while TensorFlow takes it over: its own, and one on the way
_JOINED = 3  # times a batch of batches: in use, made ahead, and what that is joined of
_LARGE = 1_000_000_000
_SAMPLE = 4096
_NO_COPY = "fit(legroom.stream((x, y), batch_size={})): batches are cut out of your own arrays."


def is_input(data: Any) -> bool:
    """Whether it is something that `fit` takes as data."""
    if any(one.input.is_dataset(data) or one.input.is_sequence(data) for one in imported()):
        return True
    return isinstance(data, collections.abc.Iterator) or bool(_arrays(data))


def check_input(data: Any, *, batch_size: int | None = None, place: str = "") -> list[Finding]:
    """Look at anything that `fit` takes as data.

    Args:
        data: A `tf.data` pipeline, a `PyDataset`, arrays in any structure, or a generator.
        batch_size: As for `fit`: for arrays.
        place: The line that the findings are about.

    Raises:
        ValueError: If a batch size is given for data that comes in batches.
    """
    arrays = bool(_arrays(data)) and not isinstance(data, collections.abc.Iterator)
    if batch_size is not None and not arrays:
        raise ValueError(
            "batch_size is for arrays and models: this data comes in batches of its own, as for "
            "`fit`. Leave it out."
        )
    for backend in imported():
        if backend.input.is_dataset(data):
            return check_stages(backend.input.read_pipeline(data), place)
        if backend.input.is_sequence(data):
            return check_stages(backend.input.read_sequence(data), place, keras_queue=True)
    if isinstance(data, collections.abc.Iterator):
        return []  # it hands on one batch at a time, and what it holds is its own
    return check_arrays(data, place, batch_size=batch_size)


def check_stages(
    stages: list[Stage], place: str = "", *, keras_queue: bool = False
) -> list[Finding]:
    """The findings about a pipeline.

    Args:
        stages: Its stages, the source first.
        place: The line they are about.
        keras_queue: Whether it is Keras that makes and queues the batches.
    """
    found: list[Finding] = []
    for number, stage in enumerate(stages):
        found += _buffers(stages, number, place)
        if stage.kind == "cache":
            found += _cache_side(stages, number, place)
    found += _types(stages, place)
    found += _batches(stages, place)
    if not keras_queue and stages and stages[-1].kind != "prefetch":
        found.append(
            finding(
                "LR210", "The pipeline does not end with a prefetch: the next batch is made only "
                "when the step before it is done.", place=_at(place, "end"), severity="note",
                fix="End it with .prefetch(tf.data.AUTOTUNE): one or two batches more in memory.",
            )
        )  # fmt: skip
    return ranked(found)


def check_arrays(data: Any, place: str = "", *, batch_size: int | None = None) -> list[Finding]:
    """The findings about arrays that are given to `fit` as they are.

    Args:
        data: The arrays, in any structure.
        place: The line they are about.
        batch_size: As for `fit`.
    """
    arrays = [array for array in _arrays(data) if array.nbytes > 0]
    total = sum(array.nbytes for array in arrays)
    found = []
    if total >= _WORTH and used_name() == "tensorflow":  # PyTorch uses the arrays as they are
        text = (
            f"fit copies {format_bytes(total)} of arrays: TensorFlow's own copy and a temporary "
            f"one, beside yours. That is {format_bytes(_COPIES * total)} more at its peak."
        )
        fix = _NO_COPY.format(batch_size or "…")
        found.append(_warn("LR201", text, _COPIES * total, _at(place, "arrays"), fix))
    found += _loaded(total, _at(place, "arrays"))
    for array in arrays:
        if array.nbytes < _WORTH:
            continue
        shape = "x".join(map(str, array.shape))
        if str(array.dtype) == "float64":
            text = f"An array of {shape} is float64; Keras computes in float32."
            fix = 'array.astype("float32"), best where it is made.'
            found.append(_warn("LR208", text, array.nbytes // 2, _at(place, f"array {shape}"), fix))
        if str(array.dtype) in ("float32", "float64") and _holds_small_integers(array):
            saved = array.nbytes - array.size
            text = (
                f"An array of {shape} is {array.dtype}, and holds whole numbers from 0 to 255 "
                f"only: uint8 would be {format_bytes(array.size)}."
            )
            fix = "Keep uint8, and put keras.layers.Rescaling(1/255) first in the model."
            found.append(_warn("LR209", text, saved, _at(place, f"array {shape}"), fix))
    return ranked(found)


def _loaded(size: int, where: str) -> list[Finding]:
    """A data set that is held as a whole, where files could be read."""
    if size < _LARGE:
        return []
    text = f"{format_bytes(size)} of data are held in memory as a whole."
    fix = (
        'Save it once with np.save; legroom.stream(("x.npy", "y.npy"), batch_size=…) reads '
        "what is needed when it is needed."
    )
    return [_warn("LR212", text, size, where, fix)]


def _buffers(stages: list[Stage], number: int, place: str) -> list[Finding]:
    stage = stages[number]
    size, count = stage.bytes, stage.elements or 0
    each = f"{count:,} elements of {format_bytes(stage.element_bytes)}"
    where = _at(place, f"stage {number + 1}, {stage.kind}")
    if stage.kind == "arrays" and size:
        text = (
            f"{format_bytes(size)} of arrays are copied into the pipeline, and another copy stays "
            "where they came through; a third is there for a moment when reading begins."
        )
        return [
            *_if_worth("LR201", text, _COPIES * size, where, _NO_COPY),
            *_loaded(size, where),
        ]
    if stage.kind == "shuffle":
        text = f"The shuffle buffer holds {each}."
        fix = "Shuffle what is small (file names, indices) before it is read, or a smaller buffer."
        return [*_if_worth("LR202", text, size, where, fix), *_decoded(stages, number, place)]
    if stage.kind == "cache" and not stage.to_file:
        if stage.elements is None:
            text = "The cache keeps every element in memory; how many there are is not known."
            fix = 'Cache to a file: .cache("/tmp/cache").'
            return [finding("LR203", text, place=where, severity="note", fix=fix)]
        text = f"The cache holds {each} once the first epoch is over."
        fix = 'Cache to a file, .cache("/tmp/cache"), or before what makes elements larger.'
        return _if_worth("LR203", text, size, where, fix)
    if stage.kind in ("prefetch", "queue"):
        text = f"Up to {each} wait to be used."
        fix = "One or two are enough: .prefetch(tf.data.AUTOTUNE)."
        if stage.kind == "queue":
            fix = "A smaller max_queue_size."
        return _if_worth("LR204", text, size, where, fix)
    if stage.kind == "map" and size:
        text = f"Up to {each} are made at once, by parallel calls."
        fix = "Fewer num_parallel_calls; as many as there are cores are enough."
        return _if_worth("LR205", text, size, where, fix)
    if stage.kind == "interleave":
        text = f"Up to {each} wait, of all inputs that are open at once or come next."
        fix = "A smaller cycle_length, or block_length; or interleave before what makes them large."
        return _if_worth("LR205", text, size, where, fix)
    return []


def _decoded(stages: list[Stage], number: int, place: str) -> list[Finding]:
    """A shuffle behind something that makes elements much larger."""
    stage = stages[number]
    small = min((s.element_bytes for s in stages[:number] if s.element_bytes), default=0)
    first = stages[0]
    already_whole = first.kind == "arrays" and first.bytes > _WORTH
    if not small or small * 8 > stage.element_bytes or already_whole:
        return []
    if any(s.kind == "batch" for s in stages[:number]):
        return []
    saved = stage.bytes - (stage.elements or 0) * small
    text = (
        f"Elements are shuffled at {format_bytes(stage.element_bytes)} each; before they are read "
        f"or decoded they are {format_bytes(small)}."
    )
    fix = "Move .shuffle(…) before the .map(…) that reads or decodes."
    return _if_worth("LR211", text, saved, _at(place, f"stage {number + 1}, shuffle"), fix)


def _cache_side(stages: list[Stage], number: int, place: str) -> list[Finding]:
    where = _at(place, f"stage {number + 1}, cache")
    if any(stage.random for stage in stages[:number]):
        text = (
            "The cache comes after a random step: every epoch gets the same 'random' elements as "
            "the first, and the cache holds them all."
        )
        fix = "Move .cache() before the .map(…) that augments."
        return [finding("LR207", text, place=where, bytes=stages[number].bytes, fix=fix)]
    return []


def _types(stages: list[Stage], place: str) -> list[Finding]:
    found = []
    if stages and "float64" in stages[-1].dtypes:
        text = "The pipeline hands on float64; Keras computes in float32."
        held = sum(s.bytes for s in stages if "float64" in s.dtypes) // 2
        fix = 'tf.cast(x, "float32"), or float32 arrays at its source.'
        found.append(finding("LR208", text, place=_at(place, "end"), bytes=held, fix=fix))
    first = next((s for s in stages if "uint8" in s.dtypes), None)
    if first is not None:
        behind = stages[stages.index(first) + 1 :]
        held = sum(s.bytes for s in behind if "uint8" not in s.dtypes and "float32" in s.dtypes)
        if held >= _WORTH:
            text = "Images are uint8 at the source, and are buffered as float32 behind it."
            fix = "Buffer uint8, and turn it into floats last, or in the model (Rescaling)."
            found.append(_warn("LR209", text, held * 3 // 4, _at(place, "buffers"), fix))
    return found


def _batches(stages: list[Stage], place: str) -> list[Finding]:
    open_batches = 0
    for number, stage in enumerate(stages):
        if stage.kind == "unbatch":
            open_batches = 0
        elif stage.kind == "batch":
            open_batches += 1
            if open_batches > 1:
                size = stage.element_bytes
                text = (
                    f"The pipeline is batched a second time: an element is {format_bytes(size)}, a "
                    "batch of batches. tf.data also holds the next one, and the batches that it "
                    "is made of."
                )
                fix = "One .batch(…) only; fit does not batch a data set itself."
                where = _at(place, f"stage {number + 1}, batch")
                return [finding("LR206", text, place=where, bytes=_JOINED * size, fix=fix)]
    return []


def _if_worth(id: str, text: str, size: int, place: str, fix: str) -> list[Finding]:
    return [_warn(id, text, size, place, fix)] if size >= _WORTH else []


def _warn(id: str, text: str, size: int, place: str, fix: str) -> Finding:
    return finding(id, text, bytes=int(size), place=place, fix=fix)


def _at(place: str, what: str) -> str:
    return place or what


def _arrays(data: Any) -> list[Any]:
    if hasattr(data, "nbytes") and hasattr(data, "dtype") and hasattr(data, "shape"):
        return [data]
    if isinstance(data, dict):
        return [array for value in data.values() for array in _arrays(value)]
    if isinstance(data, (list, tuple)):
        return [array for value in data for array in _arrays(value)]
    return []


def _holds_small_integers(array: Any) -> bool:
    """Whether an array has whole numbers from 0 to 255 only, judged by some of them."""
    import numpy as np

    flat = np.asarray(array).reshape(-1)
    some = flat[:: max(1, flat.size // _SAMPLE)]
    whole = bool(np.all(some == np.floor(some))) and float(some.min()) >= 0
    # Ones and zeros may be anything: masks, one-hot rows.
    return whole and 1 < float(some.max()) <= 255
