"""What a training step of a model needs, and what each way to make it leaner would save.

The figures are predicted by tracing the step and its leaner versions, each on the shapes it would
really have; no step is run and no weight is allocated.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from legroom.backends.base import Backend, named, running
from legroom.core.units import format_bytes
from legroom.messages.diagnosis import Remedy
from legroom.messages.layers import LayerFacts
from legroom.messages.model import Advice
from legroom.messages.remedies import by_guarding

__all__ = ["LeanerModel", "read_model_file"]

_SECONDS = 30.0  # spent on predictions; the figures of those that come later are left out
_WORTH = 0.01  # of what is needed: less than this is no remedy


class LeanerModel:
    """A Keras model as a diagnosis asks for it (`legroom.messages.model.ModelAtHand`).

    Args:
        model: The model; its weights need no values.
        title: How it is called in sentences.
        batch_size: The batch it is trained with, where the user said so.
        optimizer: Its optimizer, where it is known.
        loss: Its loss, as it was named in ``compile``.
        live: Whether it is a model of this process: its own code may be run.
        running: Whether this is ``legroom run`` already, which is no remedy then.
    """

    def __init__(
        self,
        model: Any,
        *,
        title: str,
        batch_size: int | None = None,
        optimizer: Any = None,
        loss: Any = None,
        live: bool = True,
        running: bool = False,
    ) -> None:
        self._model = model
        self._models, self._leaner_models = _backend().models, _backend().leaner_models
        self._optimizer = optimizer
        self._loss = loss
        self._live = live
        self._running = running
        self._deadline = float("inf")
        self.title = title
        self.batch_size = batch_size
        self.layers: list[LayerFacts] = self._models.layer_facts(model)

    @classmethod
    def of(cls, model: Any, *, batch_size: int | None = None, running: bool = False) -> LeanerModel:
        """A model of this process."""
        return cls(
            model,
            title=f"the model {model.name}",
            batch_size=batch_size,
            optimizer=getattr(model, "optimizer", None),
            loss=getattr(model, "loss", None),
            running=running,
        )

    def advise(self, batch: int | None, limit_bytes: int | None, device: str | None) -> Advice:
        """Predict what a step needs, and what would save how much."""
        if batch is None and self._running:
            return Advice()
        if batch is None:
            return Advice(
                "How large the batch was is not said; with --batch-size N (batch_size=N in Python) "
                "legroom predicts what each remedy saves."
            )
        if self._models.open_axes(self._model):
            return Advice(
                f"{_capital(self.title)} leaves the length of its input open, so what a step needs "
                "can't be predicted."
            )
        self._deadline = time.monotonic() + _SECONDS
        try:
            whole = self._total(self._model, batch)
        except Exception:  # a model's own code, or Keras on another backend
            return Advice()
        held = self._held(self._model)
        least = "at least " if self._models.is_recurrent(self._model) else "about "
        sentence = (
            f"A training step of {self.title} on {_samples(batch)} is predicted to need {least}"
            f"{format_bytes(whole)}: {format_bytes(held)} for weights and optimizer, "
            f"{format_bytes(whole - held)} for the step itself."
        )
        found: list[Remedy] = []
        # A remedy that can't be predicted, or takes too long to be, is left out.
        for remedies in (
            self._smaller_batch(batch, whole, limit_bytes),
            self._half_precision(batch, whole, device),
            self._smaller_input(batch, whole),
            self._averaged(batch, whole),
            self._lighter_optimizer(whole),
        ):
            with contextlib.suppress(Exception):
                if time.monotonic() < self._deadline:
                    found += remedies
        return Advice(sentence, tuple(found))

    def _held(self, model: Any) -> int:
        """What stays from step to step."""
        slots = 0
        if self._optimizer is not None:
            built_for_it = model is self._model
            optimizer = self._optimizer
            if not built_for_it and optimizer.built:
                optimizer = type(optimizer).from_config(optimizer.get_config())
            slots = self._models.slot_bytes(optimizer, model)
        return self._models.weight_bytes(model) + slots

    def _total(self, model: Any, samples: int) -> int:
        return self._held(model) + self._models.step_bytes(model, samples, self._loss)

    def _smaller_batch(self, batch: int, whole: int, limit: int | None) -> Iterator[Remedy]:
        if batch < 2:
            return
        size = batch // 2
        needed = self._total(self._model, size)
        while limit is not None and needed > limit and size > 1 and self._in_time():
            size //= 2
            needed = self._total(self._model, size)
        # Slices add their gradients up, in another copy of them.
        sums = self._models.gradient_bytes(self._model)
        fits = f", which fits in {format_bytes(limit)}" if limit and needed + sums <= limit else ""
        if not self._running and needed + sums < whole:
            words = (
                f"Run it in slices of {size} instead of {batch}{fits}: the same training, less at "
                "a time."
            )
            yield by_guarding(Remedy(words, bytes_saved=whole - needed - sums, predicted=True))
        if needed < whole:
            yield Remedy(
                f"A batch of {size} instead of {batch}: more steps, noisier gradients.",
                code=f"model.fit(x, y, batch_size={size})",
                bytes_saved=whole - needed,
                exact=False,
                predicted=True,
            )

    def _half_precision(self, batch: int, whole: int, device: str | None) -> Iterator[Remedy]:
        # float16 is what GPUs are fast at; CPUs and TPUs know bfloat16.
        on_gpu = device is None or device.startswith("GPU")
        half = "float16" if on_gpu else "bfloat16"
        leaner = self._changed(half)
        if leaner is None:
            return
        saved = whole - self._total(leaner, batch)
        if saved > _WORTH * whole:
            # Seen on CPUs: products of half precision are computed on copies in full precision.
            doubt = "" if on_gpu else " Products on a CPU make copies again, so it may be less."
            yield Remedy(
                f"Compute in half precision, set before the model is made.{doubt}",
                code=f'keras.config.set_dtype_policy("mixed_{half}")',
                bytes_saved=saved,
                exact=False,
                predicted=True,
            )

    def _smaller_input(self, batch: int, whole: int) -> Iterator[Remedy]:
        leaner = self._changed("smaller_input")
        if leaner is None:
            return
        saved = whole - self._total(leaner, batch)
        if saved > _WORTH * whole:
            yield Remedy(
                f"A smaller input: {self._leaner_models.halved_input(self._model)}.",
                bytes_saved=saved,
                exact=False,
                predicted=True,
            )

    def _averaged(self, batch: int, whole: int) -> Iterator[Remedy]:
        """An average over places instead of one weight for each, where those weights are much."""
        leaner = self._changed("average_pooling")
        if leaner is None:
            return
        saved = whole - self._total(leaner, batch)
        now = {layer.name: layer for layer in self._models.layer_facts(leaner)}
        shrunk = {
            layer.name: _size(layer) - _size(now[layer.name])
            for layer in self.layers
            if layer.name in now and layer.kind == "Dense"
        }
        largest = max(shrunk, key=lambda name: shrunk[name], default=None)
        if largest is None or not shrunk[largest] or saved <= _WORTH * whole:
            return
        flat = next(layer.name for layer in self.layers if layer.kind == "Flatten")
        kind = next(one.kind for one in now.values() if one.name == flat)
        yield Remedy(
            f"An average over all places instead of {flat}: most of this is the kernel of "
            f"{largest}, its gradient and what the optimizer keeps of it.",
            code=f"keras.layers.{kind}()  # instead of Flatten()",
            bytes_saved=saved,
            exact=False,
            predicted=True,
        )

    def _lighter_optimizer(self, whole: int) -> Iterator[Remedy]:
        if self._optimizer is None:
            return
        saved = self._models.slot_bytes(self._optimizer, self._model)
        if saved > _WORTH * whole:
            kind = type(self._optimizer).__name__
            yield Remedy(
                f"An optimizer with less state: {kind} keeps {format_bytes(saved)} beside the "
                "weights, plain SGD nothing.",
                code='model.compile(optimizer="sgd", …)',
                bytes_saved=saved,
                exact=False,
                predicted=True,
            )

    def _changed(self, change: str) -> Any:
        """The model after a change; None where that changes nothing, or time is over."""
        if not self._in_time():
            return None
        return self._leaner_models.valueless_model(self._model, change, safe=not self._live)

    def _in_time(self) -> bool:
        return time.monotonic() < self._deadline


def read_model_file(path: Path, batch_size: int | None = None) -> LeanerModel:
    """A saved model. Its weights are not loaded and no code in it is run.

    Raises:
        UnsupportedModelError: If it is none, is damaged, or holds classes that are not Keras's.
        OSError: If it can't be read.
    """
    files = _backend().model_files
    config = files.read_config(path)
    model = files.build_config(config, safe=True, custom={})
    optimizer, loss = files.read_compiled(config)
    return LeanerModel(
        model,
        title=path.name,
        batch_size=batch_size,
        optimizer=optimizer,
        loss=loss,
        live=False,
    )


def _backend() -> Backend:
    """Keras's own; where legroom does not know that yet, layers are read all the same."""
    return running() or named("tensorflow")


def _size(layer: LayerFacts) -> int:
    return sum(math.prod(shape) for _, shape in layer.weights)


def _samples(batch: int) -> str:
    return "one sample" if batch == 1 else f"a batch of {batch}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
