"""Events: what happened in a run, one class for each kind, and the sink that they are told to.

They are kept in the journal and read by their type. The report of a run is made from its events
alone, so a process that died still has one.
"""

from legroom.core.events.event import Event, OfBatch, Unknown, WithBudget, WithPeak
from legroom.core.events.facts import (
    Found,
    InputRead,
    MachineDescribed,
    MemorySampled,
    NotPredicted,
    Predicted,
)
from legroom.core.events.runs import (
    IsolatedFinished,
    IsolatedProgress,
    Note,
    OfSnapshot,
    Restarted,
    Resumed,
    RunEnded,
    RunStarted,
    SnapshotTaken,
    SnapshotWritten,
)
from legroom.core.events.sink import Listener, emit, has_listener, is_heard, listening
from legroom.core.events.steps import (
    Attempted,
    AttemptPassed,
    DidNotFit,
    EpochStarted,
    Measured,
    OfAttempt,
    Planned,
    Progress,
    RanOut,
    TrainingFinished,
    TrainingStarted,
)
from legroom.core.events.sweeps import (
    OfTrial,
    SweepEnded,
    SweepStarted,
    TrialAgain,
    TrialEnded,
    TrialStarted,
)

__all__ = [
    "AttemptPassed",
    "Attempted",
    "DidNotFit",
    "EpochStarted",
    "Event",
    "Found",
    "InputRead",
    "IsolatedFinished",
    "IsolatedProgress",
    "Listener",
    "MachineDescribed",
    "Measured",
    "MemorySampled",
    "NotPredicted",
    "Note",
    "OfAttempt",
    "OfBatch",
    "OfSnapshot",
    "OfTrial",
    "Planned",
    "Predicted",
    "Progress",
    "RanOut",
    "Restarted",
    "Resumed",
    "RunEnded",
    "RunStarted",
    "SnapshotTaken",
    "SnapshotWritten",
    "SweepEnded",
    "SweepStarted",
    "TrainingFinished",
    "TrainingStarted",
    "TrialAgain",
    "TrialEnded",
    "TrialStarted",
    "Unknown",
    "WithBudget",
    "WithPeak",
    "emit",
    "has_listener",
    "is_heard",
    "listening",
]
