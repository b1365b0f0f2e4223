"""A model's layers, as far as a message needs them: names, kinds, shapes, and what axes are called.

Pure: a backend reads a model into these; no framework is needed to tie a tensor to its layer.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

__all__ = ["LayerFacts", "NamedTensor", "Shape", "named_tensor", "named_weight"]

# As a framework gives it: None is an axis whose length the model leaves open.
Shape = tuple[int | None, ...]

_SPACE = {1: ("time steps",), 2: ("height", "width"), 3: ("depth", "height", "width")}
# The letters of a kind that say how many axes of space it works on.
_RANKS = (("1D", 1), ("2D", 2), ("3D", 3))
_RECURRENT = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1, "ConvLSTM2D": 4, "LSTMCell": 4, "GRUCell": 3}
_ATTENTION = ("MultiHeadAttention", "GroupQueryAttention", "GroupedQueryAttention")
# Layers that may turn axes into anything: only the batch is sure.
_REARRANGING = ("Reshape", "Permute", "Lambda", "RepeatVector")


@dataclasses.dataclass(frozen=True)
class LayerFacts:
    """One layer of a model.

    Attributes:
        name: Its name in the model.
        kind: Its class: ``Conv2D``.
        inputs: The shapes it is called with, where they are known.
        outputs: The shapes it makes, where they are known.
        weights: Its weights by name, with their shapes.
        channels_first: Whether channels stand before height and width.
        heads: The heads of an attention layer.
    """

    name: str
    kind: str
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ()
    channels_first: bool = False
    heads: int | None = None


@dataclasses.dataclass(frozen=True)
class NamedTensor:
    """A tensor of a layer, recognised by its shape.

    Attributes:
        layer: The layer.
        what: Which of its tensors: ``"output"``, ``"input"``, ``"kernel"``.
        axes: What each axis is.
        batch: The number of samples, where an axis shows it.
    """

    layer: LayerFacts
    what: str
    axes: tuple[str, ...]
    batch: int | None = None


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A tensor that a layer has. In ``lengths`` None fits anything, ``"batch"`` is the batch."""

    what: str
    lengths: tuple[int | str | None, ...]
    axes: tuple[str, ...]


def named_tensor(
    layer: LayerFacts, shape: tuple[int, ...], batch: int | None = None
) -> NamedTensor | None:
    """Which tensor of a layer has this shape, or None where none has.

    Args:
        layer: The layer.
        shape: The shape that a message names.
        batch: The number of samples, where it is known.
    """
    # A weight fits in every axis, where a batch would have to be as long by chance.
    weight = named_weight(layer, shape)
    if weight is not None and (batch is None or shape[:1] != (batch,)):
        return weight
    for candidate in _candidates(layer):
        fits, found = _unify(candidate.lengths, shape, batch)
        if fits:
            return NamedTensor(layer, candidate.what, candidate.axes, found)
    # A dense layer takes all positions of all samples as the rows of one matrix.
    if len(shape) == 2:
        for what, known in (("output", layer.outputs), ("input", layer.inputs)):
            for one in known:
                inner = one[1:-1]
                if len(one) < 3 or one[-1] != shape[1] or None in inner:
                    continue
                positions = math.prod(length for length in inner if length is not None)
                samples, rest = divmod(shape[0], max(positions, 1))
                if samples and not rest and batch in (None, samples):
                    names = _activation(layer, len(one), what)
                    rows = " × ".join(names[:-1])
                    return NamedTensor(layer, what, (rows, names[-1]), samples)
    return None


def named_weight(layer: LayerFacts, shape: tuple[int, ...]) -> NamedTensor | None:
    """Which weight of a layer has this shape, or None where none has."""
    for name, own in layer.weights:
        if own == shape:
            return NamedTensor(layer, name, _weight_axes(layer, name, len(shape)))
    return None


def _unify(
    lengths: tuple[int | str | None, ...], shape: tuple[int, ...], batch: int | None
) -> tuple[bool, int | None]:
    """Whether a shape fits, and the batch that it shows."""
    if len(lengths) != len(shape):
        return False, None
    for wanted, length in zip(lengths, shape, strict=True):
        if wanted == "batch":
            if batch not in (None, length):
                return False, None
            batch = length
        elif wanted not in (None, length):
            return False, None
    return True, batch if "batch" in lengths else None


def _candidates(layer: LayerFacts) -> Iterator[_Candidate]:
    """The tensors of a layer, those that are told of most often first."""
    for what, shapes in (("output", layer.outputs), ("input", layer.inputs)):
        for shape in shapes:
            if not shape:
                continue
            names = _activation(layer, len(shape), what)
            lengths = _lengths(shape)
            yield _Candidate(what, lengths, names)
            if len(shape) >= 4:
                # TensorFlow turns channels to the front, or back, where the device likes it.
                yield _Candidate(what, *_turned(lengths, names, layer.channels_first))
    if layer.heads is not None:
        yield from _attention(layer)
    if layer.kind in _RECURRENT:
        yield from _recurrent(layer)


def _lengths(shape: Shape) -> tuple[int | str | None, ...]:
    return ("batch", *shape[1:]) if shape[0] is None else shape


def _turned(
    lengths: tuple[int | str | None, ...], names: tuple[str, ...], channels_first: bool
) -> tuple[tuple[int | str | None, ...], tuple[str, ...]]:
    if channels_first:
        return (lengths[0], *lengths[2:], lengths[1]), (names[0], *names[2:], names[1])
    return (lengths[0], lengths[-1], *lengths[1:-1]), (names[0], names[-1], *names[1:-1])


def _activation(layer: LayerFacts, rank: int, what: str) -> tuple[str, ...]:
    """What the axes of a layer's input or output are."""
    last = _last_axis(layer.kind, what)
    if rank == 2 and layer.kind == "Embedding":
        return ("batch", "time steps")
    if rank <= 2:
        return ("batch", last if last != "channels" else "features")[:rank]
    if layer.kind in _REARRANGING or rank > 5:
        return ("batch", *(f"axis {number}" for number in range(1, rank)))
    space = _SPACE[rank - 2]
    if layer.channels_first:
        return ("batch", last, *space)
    if rank == 3 and last == "channels":
        last = "channels" if "1D" in layer.kind else "features"
    return ("batch", *space, last)


def _last_axis(kind: str, what: str) -> str:
    if what == "output":
        if "Conv" in kind and "Depthwise" not in kind:
            return "filters"
        if kind in ("Dense", "EinsumDense", "Embedding", "Bidirectional") or kind in _RECURRENT:
            return "units"
    return "channels"


def _weight_axes(layer: LayerFacts, name: str, rank: int) -> tuple[str, ...]:
    """What the axes of a weight are."""
    kind = layer.kind
    space = next((number for letters, number in _RANKS if letters in kind), 0)
    if "Conv" in kind and space and rank == space + 2:
        window = ("kernel",) if space == 1 else tuple(f"kernel {axis}" for axis in _SPACE[space])
        if "Depthwise" in kind or name.startswith("depthwise"):
            return (*window, "channels", "multiplier")
        ends = ("filters", "channels") if "Transpose" in kind else ("channels", "filters")
        return (*window, *ends)
    if rank == 2 and kind == "Embedding":
        return ("entries", "units")
    if rank == 2 and kind in _RECURRENT:
        gates = _RECURRENT[kind]
        last = f"{gates} gates × units" if gates > 1 else "units"
        return ("units" if "recurrent" in name else "inputs", last)
    if rank == 2 and layer.kind == "Dense":
        return ("inputs", "units")
    if rank == 3 and layer.kind in _ATTENTION:
        return ("heads", "head size", "channels") if "output" in name else (
            "channels", "heads", "head size"
        )  # fmt: skip
    if rank == 1:
        return ("units",) if _last_axis(kind, "output") == "units" else ("channels",)
    return tuple(f"axis {number}" for number in range(rank))


def _attention(layer: LayerFacts) -> Iterator[_Candidate]:
    """What an attention layer makes between its input and its output."""
    steps = layer.inputs[0][1] if layer.inputs and len(layer.inputs[0]) == 3 else None
    yield _Candidate(
        "attention scores",
        ("batch", layer.heads, steps, None),
        ("batch", "heads", "query steps", "key steps"),
    )
    yield _Candidate(
        "projection",
        ("batch", steps, layer.heads, None),
        ("batch", "time steps", "heads", "head size"),
    )
    yield _Candidate(
        "projection",
        ("batch", layer.heads, steps, None),
        ("batch", "heads", "time steps", "head size"),
    )


def _recurrent(layer: LayerFacts) -> Iterator[_Candidate]:
    """What a recurrent layer keeps of each step, and the steps it keeps one after the other."""
    units = next((shape[-1] for shape in layer.outputs if shape), None)
    gates = _RECURRENT[layer.kind]
    steps = layer.inputs[0][1] if layer.inputs and len(layer.inputs[0]) == 3 else None
    if units is None or layer.kind == "ConvLSTM2D":
        return
    inner = [("units", units)]
    if gates > 1:
        inner.append((f"{gates} gates × units", gates * units))
    if layer.inputs and layer.inputs[0]:
        inner.append(("features", layer.inputs[0][-1] or 0))
    for name, length in inner:
        yield _Candidate("state", ("batch", length), ("batch", name))
        yield _Candidate("steps", (steps, "batch", length), ("time steps", "batch", name))
        yield _Candidate("steps", ("batch", steps, length), ("batch", "time steps", name))
