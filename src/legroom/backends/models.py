"""What a framework must do with models that are looked at, not trained: the protocols."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from legroom.core.figures import StepFigures

if TYPE_CHECKING:
    from legroom.messages.layers import LayerFacts  # brings all patterns of messages along

__all__ = [
    "AfterTraining",
    "LeanerModels",
    "ModelFiles",
    "Models",
    "Predictions",
    "StepForecast",
]


class ModelFiles(Protocol):
    """Saved models. Importing it must not import Keras."""

    def read_config(self, path: Path) -> dict[str, Any]:
        """The architecture in a file, without Keras; raises `UnsupportedModelError`, `OSError`."""
        ...

    def imagined_model(self, config: dict[str, Any], optimizer: Any = "adam") -> Any:
        """A model of an architecture, compiled, whose weights have no memory.

        Raises `UnsupportedModelError`. The optimizer is for one that was saved without.
        """
        ...


class Models(Protocol):
    """Models read, not run, and without allocating anything."""

    def check_model(self, model: Any, method: str) -> None:
        """Raises `UnsupportedModelError` for one that can't be asked about."""
        ...

    def compile_by_default(self, model: Any, optimizer: Any) -> None:
        """Compile a model whose training is not known, so that it can be asked about."""
        ...

    def architecture(self, model: Any) -> dict[str, Any] | None:
        """A model's architecture as data; None where only its own code knows it."""
        ...

    def identity(self, model: Any) -> str | None:
        """What makes two models the same to ask about; None where the user's code decides too."""
        ...

    def data_identity(self, data: Any) -> str | None:
        """The same of data that is given to ask with; None where its shapes are not known."""
        ...

    def layer_facts(self, model: Any) -> list[LayerFacts]:
        """The layers of a model, those of models inside it included."""
        ...

    def coupling_layers(self, model: Any) -> list[str]:
        """The layers that look across the batch while training."""
        ...

    def open_axes(self, model: Any) -> bool:
        """Whether inputs have axes beside the batch whose length the model leaves open."""
        ...

    def parameters(self, model: Any) -> int:
        """How many numbers a model's weights are."""
        ...

    def weight_bytes(self, model: Any) -> int:
        """The bytes of all weights."""
        ...

    def slot_bytes(self, optimizer: Any, model: Any) -> int:
        """The bytes of what an optimizer keeps for a model's weights."""
        ...


class LeanerModels(Protocol):
    """Models changed to be leaner: a change by its name, as `legroom.slim` takes it."""

    def changed_model(self, model: Any, change: str) -> tuple[Any, list[str]] | None:
        """A changed copy, and the layers whose weights begin anew; None without a change."""
        ...

    def imagined(self, model: Any, change: str) -> AbstractContextManager[Any]:
        """The same for being asked about: without memory, and without a trace of it afterwards."""
        ...

    def askable(self, model: Any) -> AbstractContextManager[Any]:
        """A model that is compiled: this one, or a copy of it without memory."""
        ...

    def layer_of_change(self, change: str, layers: Sequence[LayerFacts]) -> str:
        """The layer that a change is about; empty where it is about the whole model."""
        ...

    def halved_input(self, model: Any) -> str:
        """What a smaller input is, in words; empty where there is none."""
        ...


class AfterTraining(Protocol):
    """What a trained model can be made into, for use; with sizes measured."""

    def int8_model(self, model: Any) -> tuple[Any, list[str]]:
        """A copy that holds int8 where it can, and the layers that can."""
        ...

    def pruned_model(self, model: Any, share: float) -> Any:
        """A copy with zeros for this share of its weights."""
        ...

    def int8_bytes(self, model: Any) -> tuple[int, list[str]]:
        """The weights of the first, and the layers."""
        ...

    def pruned_bytes(self, model: Any, share: float) -> tuple[int, int]:
        """The weights in a compressed file, as they are and pruned."""
        ...

    def tflite_bytes(self, model: Any) -> int:
        """The size of a TFLite file of it."""
        ...


class StepForecast(Protocol):
    """What a step will need, before it has run; made once, and asked for any batch size.

    By its sources: "compiled" (the compiler's own figures), "probed" (a child ran it at small
    sizes) and "traced" (its ops alone: a graph, or a step without memory), the best first.
    An error bar is the backend's to know.
    """

    def is_made(self, source: str) -> bool:
        """Whether a source was asked before, and so answers quickly."""
        ...

    def figures(self, source: str, samples: int) -> StepFigures:
        """What a source says; raises `LegroomError` where it can't tell."""
        ...

    def pool_bytes(self, source: str, samples: int) -> int:
        """The pool that a batch size needs, error bar included; quicker than all its figures."""
        ...

    def middle_peak(self, source: str, samples: int) -> int:
        """The peak by a source, without its error bar; quicker than all its figures."""
        ...

    def traced_peak(self, samples: int) -> int:
        """The steady peak by the graph alone: for comparing two graphs."""
        ...

    def seen_by_probe(self, samples: int) -> int:
        """What only a probe has seen; nothing where none was made."""
        ...

    def least_pool(self, samples: int) -> int:
        """The pool that is enough if ops run one after the other."""
        ...

    def try_size(self, samples: int, limit: int, card: int | None) -> bool:
        """Whether steps of this size run in a pool of this size: they are run."""
        ...


class Predictions(Protocol):
    """What steps will need."""

    def conditions(self) -> dict[str, Any]:
        """What an answer depends on in this process, beside the model and the environment."""
        ...

    def compiles(self, model: Any) -> bool:
        """Whether a compiler makes one program of a model's step."""
        ...

    def probes(self) -> bool:
        """Whether a probe tells more than the traced step."""
        ...

    def orders_ops(self) -> bool:
        """Whether a step's ops can be put into another order."""
        ...

    def tries_here(self) -> bool:
        """Whether sizes are tried in this process, and not in another beside it."""
        ...

    def forecast_step(
        self,
        model: Any,
        *,
        method: str,
        data: Any,
        length: int | None,
        order: int | None,
        slice_of: int | None,
    ) -> StepForecast:
        """A step to be asked about: as Keras runs it, with its ops in order, or a slice's."""
        ...
