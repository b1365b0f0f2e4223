"""What a framework must do with models that are looked at, not trained: the protocols."""

from __future__ import annotations

from typing import Any, Protocol

from legroom.core.figures import StepFigures

__all__ = ["Predictions", "StepForecast"]


class StepForecast(Protocol):
    """What a step will need, before it has run; made once, and asked for any batch size.

    By its sources: "compiled" (the compiler's own figures), "probed" (a child ran it at small
    sizes) and "traced" (its graph alone), the best first. An error bar is the backend's to know.
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
        """Whether steps of this size run in a pool of this size: a child runs them."""
        ...


class Predictions(Protocol):
    """What steps will need."""

    def compiles(self, model: Any) -> bool:
        """Whether a compiler makes one program of a model's step."""
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
