"""What a model's step will need: run on tensors without memory, and replayed through the allocator.

PyTorch runs a step op by op, in the order of its code, and frees a tensor with its last reference.
So a step on fake tensors allocates and frees what the real one does, in the same order. What is not
seen is what kernels take for themselves: on a CPU that does not come from PyTorch's allocator; on a
GPU the error bar stands for it.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import torch

from legroom.backends.torch.device.pool import default_device
from legroom.backends.torch.forecast.allocator import (
    Allocator,
    CachingAllocator,
    PlainAllocator,
)
from legroom.backends.torch.forecast.function_step import is_step, record_function
from legroom.backends.torch.forecast.replay import Peaks, look_closer, play, smallest_pool
from legroom.backends.torch.forecast.script import Piece, Script
from legroom.core.errors import LegroomError
from legroom.core.figures import BREAKDOWN, StepFigures
from legroom.core.series import thinned

__all__ = ["StepForecast", "compiles", "conditions", "forecast_step", "orders_ops", "probes",
           "tries_here"]  # fmt: skip

# How far the figures may be off, below and above, as shares of what is not held all the time: from
# benchmarks/torch_accuracy.py. On a GPU cuDNN's workspaces are not seen.
_MARGINS = {"cpu": (0.03, 0.05), "cuda": (0.05, 0.08)}
# A step that chooses its way by values may choose another one.
_MARGIN_OF_A_GUESS = 0.25
# What `torch.compile` makes of a step keeps less: it computes some of it again.
_COMPILED_BELOW = 0.40
_SLACK = 2**20
_MOST_TIMELINE = 4000


def conditions() -> dict[str, Any]:
    """What an answer depends on in this process, beside the model and the environment."""
    device = default_device()
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return {"device": device.type, "card": card}


def compiles(model: Any) -> bool:
    """Whether a compiler makes one program of a model's step."""
    return bool(getattr(model, "jit_compile", False))


def probes() -> bool:
    """Whether a probe tells more than the traced step: fake tensors tell all that it would."""
    return False


def orders_ops() -> bool:
    """Whether a step's ops can be put in another order: they run in that of the code."""
    return False


def tries_here() -> bool:
    """Whether sizes are tried in this process."""
    return True


def forecast_step(
    model: Any,
    *,
    method: str,
    data: Any,
    length: int | None,
    order: int | None,
    slice_of: int | None,
) -> StepForecast:
    """A step to be asked about; nothing is run before it is.

    Args:
        model: A compiled Keras model, or a training step in plain PyTorch.
        method: As for `record_model`.
        data: As for `record_model`.
        length: As for `record_model`.
        order: Of no meaning here.
        slice_of: The size of a batch that is run in slices, where those are asked about.
    """
    del order
    return StepForecast(
        model, {"method": method, "data": data, "length": length}, sliced=slice_of is not None
    )


class StepForecast:
    """A step, recorded once, and asked for any number of batch sizes.

    Args:
        model: The model.
        asked: What `record_model` is asked for.
        sliced: Whether the step is that of slices.
    """

    def __init__(self, model: Any, asked: dict[str, Any], *, sliced: bool) -> None:
        self._model = model
        self._asked = asked
        self._sliced = sliced
        self._on_card = default_device().type == "cuda"
        self._recorded: Script | None = None
        self._peaks: dict[int, Peaks] = {}

    def is_made(self, source: str) -> bool:
        """Whether a source was asked before, and so answers quickly."""
        return source == "traced" and self._recorded is not None

    def figures(self, source: str, samples: int) -> StepFigures:
        """What a source says of a batch size.

        Raises:
            LegroomError: If this source can't tell.
            UnsupportedModelError: If none can.
        """
        script = self._script(source)
        peaks = self._played(samples)
        below, above = self._margins(script)
        doubt = max(0, peaks.steady - self._held(script))
        live, line = look_closer(script, samples, self._allocator(None))
        shown = thinned([[moment.in_use for moment in line]], _MOST_TIMELINE)
        high = int(peaks.steady + above * doubt) + _SLACK
        if self._on_card:
            high = max(high, self.pool_bytes(source, samples))
        return StepFigures(
            peak_bytes=peaks.steady,
            low_bytes=max(0, int(peaks.steady - below * doubt) - _SLACK),
            high_bytes=high,
            first_step_bytes=peaks.first,
            breakdown=dict(zip(BREAKDOWN, _parts(peaks.steady, _kinds(live)), strict=True)),
            layers=_by_layer(live),
            timeline=tuple((line[place].op, line[place].in_use) for place in shown),
            parts=tuple(_parts(line[place].in_use, line[place].kinds) for place in shown),
        )

    def pool_bytes(self, source: str, samples: int) -> int:
        """The pool that a batch size needs, error bar included; quicker than all its figures."""
        script = self._script(source)
        peaks = self._played(samples)
        need = max(peaks.first, peaks.steady)
        if self._on_card:
            need = smallest_pool(script, samples, CachingAllocator)
        _, above = self._margins(script)
        return int(need + above * max(0, need - self._held(script))) + _SLACK

    def middle_peak(self, source: str, samples: int) -> int:
        """The peak by a source, without its error bar; quicker than all its figures."""
        self._script(source)
        peaks = self._played(samples)
        return max(peaks.first, peaks.steady)

    def traced_peak(self, samples: int) -> int:
        """The steady peak, without an error bar: for comparing two steps."""
        self._script("traced")
        return self._played(samples).steady

    def seen_by_probe(self, samples: int) -> int:
        """What only a probe has seen: none is made."""
        return 0

    def least_pool(self, samples: int) -> int:
        """The pool that a step goes through in."""
        return smallest_pool(self._script("traced"), samples, self._allocator)

    def try_size(self, samples: int, limit: int, card: int | None) -> bool:
        """Whether steps of this size run in so much memory: they are run, here, and undone."""
        from legroom.backends.torch.forecast.trying import runs_within

        return runs_within(self._model, samples, limit, on_card=card is not None, **self._asked)

    def _script(self, source: str) -> Script:
        if source != "traced":
            raise LegroomError(
                f"source={source!r} is for TensorFlow: on PyTorch the step is run on tensors "
                "without memory, which counts the same allocations"
            )
        if self._recorded is None:
            self._recorded = self._record()
        return self._recorded

    def _record(self) -> Script:
        if is_step(self._model):
            return record_function(self._model, self._asked["data"], card=self._on_card)
        # Not at the top: a loop in plain PyTorch goes without Keras.
        from legroom.backends.torch.forecast.keras_step import record_model

        return record_model(self._model, sliced=self._sliced, card=self._on_card, **self._asked)

    def _played(self, samples: int) -> Peaks:
        if samples not in self._peaks:
            self._peaks[samples] = play(self._script("traced"), samples, self._allocator)
        return self._peaks[samples]

    def _allocator(self, limit: int | None) -> Allocator:
        return CachingAllocator(limit) if self._on_card else PlainAllocator(limit)

    def _margins(self, script: Script) -> tuple[float, float]:
        below, above = _MARGINS["cuda" if self._on_card else "cpu"]
        if compiles(self._model):
            below = _COMPILED_BELOW
        if script.guessed:
            below, above = max(below, _MARGIN_OF_A_GUESS), max(above, _MARGIN_OF_A_GUESS)
        return below, above

    @staticmethod
    def _held(script: Script) -> int:
        return sum(script.held_bytes(kind) for kind in ("weights", "optimizer", "other"))


def _kinds(live: Sequence[Piece]) -> dict[str, int]:
    kinds: collections.Counter[str] = collections.Counter()
    for piece in live:
        kinds[piece.kind] += piece.nbytes
    return kinds


def _parts(total: int, kinds: dict[str, int]) -> tuple[int, ...]:
    """The bytes in use by what they are for, in the order of the breakdown.

    The last takes what is left: the allocator rounds up.
    """
    sizes = [kinds.get(name, 0) for name in BREAKDOWN[:-1]]
    return (*sizes, max(0, total - sum(sizes)))


def _by_layer(live: Sequence[Piece]) -> tuple[tuple[str, int], ...]:
    totals: collections.Counter[str] = collections.Counter()
    for piece in live:
        if piece.layer:
            totals[piece.layer] += piece.nbytes
    return tuple((name, size) for name, size in totals.most_common() if size)
