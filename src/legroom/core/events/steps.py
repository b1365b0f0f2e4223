"""What happens to trainings, and to their steps."""

from __future__ import annotations

import dataclasses

from legroom.core.events.event import Event, OfBatch, WithBudget, WithPeak

__all__ = [
    "AttemptPassed",
    "Attempted",
    "DidNotFit",
    "EpochStarted",
    "Measured",
    "OfAttempt",
    "Planned",
    "Progress",
    "RanOut",
    "TrainingFinished",
    "TrainingStarted",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingStarted(Event, name="training_started"):
    """A method of Keras was called: ``"fit"``, ``"evaluate"``."""

    method: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingFinished(Event, name="training_finished"):
    """The method has returned, or raised."""

    method: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochStarted(Event, name="epoch"):
    """An epoch began: its number, how many there are, and their steps, where Keras knows.

    Attributes:
        steps_done: The steps that this process had run by then.
    """

    epoch: int
    epochs: int | None = None
    steps: int | None = None
    steps_done: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfAttempt(OfBatch):
    """What tells of a step that runs for the first time at its size.

    Attributes:
        training: The number of the training; None outside of trainings.
        subject: What it is a step on: "batch", "evaluation batch", "prediction batch".
        slice_size: The size of its slices.
    """

    training: int | None = None
    subject: str = "batch"
    slice_size: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempted(OfAttempt, name="attempt"):
    """A step is about to run for the first time, which may end the process.

    Attributes:
        need_bytes: What it should need.
        free_bytes: What was free.
    """

    need_bytes: int | None = None
    free_bytes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptPassed(OfAttempt, name="attempt_passed"):
    """A step that was attempted has ended well."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured(Event, name="measured"):
    """A step was measured.

    Attributes:
        subject: What it was a step on.
        samples: The samples of its batch; not batch_size, because it may be an evaluation's.
        slice_size: The size of its slices.
        before_bytes: What was in use before it.
        need_bytes: The most it took beyond that.
        predicted_bytes: What had been predicted for that; None where nothing was.
    """

    slice_size: int
    subject: str = "batch"
    samples: int | None = None
    before_bytes: int | None = None
    need_bytes: int | None = None
    predicted_bytes: int | None = None

    @property
    def error(self) -> float | None:
        """How far the prediction was off, as a share of what was measured."""
        if self.predicted_bytes is None or not self.need_bytes:
            return None
        return self.predicted_bytes / self.need_bytes - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned(OfBatch, WithBudget, name="plan"):
    """How batches of a size run from now on.

    Attributes:
        subject: What is run: "batch", "evaluation batch", "prediction batch".
        slice_size: The size of the slices.
        slices: Their number.
        reason: ``"planned"``, ``"oom"``, ``"shrink"``, ``"grow"``, ``"fixed"``, ``"kept"``, ….
        recompute: The blocks of layers that are computed again.
        order: Whether the ops of whole batches run one after the other.
        need_bytes: What the whole batch is reckoned to need, with all that was in use before it.
    """

    batch_size: int = dataclasses.field()  # always known here
    slice_size: int
    slices: int
    subject: str = "batch"
    reason: str = ""
    recompute: tuple[tuple[str, ...], ...] | None = None
    order: bool = False
    need_bytes: int | None = None

    @property
    def of_training(self) -> bool:
        """Whether it is for training, and not for evaluation or prediction."""
        return self.subject == "batch"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RanOut(OfBatch, name="oom"):
    """Memory ran out in a step.

    Attributes:
        place: Where, as far as the error tells.
        needed_bytes: What was asked for there.
        slice_size: The size of the slices.
        seconds: What it cost.
        broken: Whether the process can't go on after it.
    """

    place: str | None = None
    needed_bytes: int | None = None
    slice_size: int | None = None
    seconds: float = 0.0
    broken: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class DidNotFit(WithBudget, name="cannot_fit"):
    """There is no smaller plan: why, and the slices that were too much, if it could be sliced."""

    data_text: str = ""
    slice_size: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress(OfBatch, WithBudget, WithPeak, name="progress"):
    """How far a training is, since this was last told.

    Attributes:
        samples_seen: Samples whose update is in the weights.
        samples_lost: Samples that were read and are in no update.
        predicted_bytes: What was predicted for the peak.
    """

    samples_seen: int = 0
    samples_lost: int = 0
    predicted_bytes: int | None = None
