from __future__ import annotations

import dataclasses
import json
import threading
import types
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.core import events as module
from legroom.core.events import (
    AttemptPassed,
    DidNotFit,
    Event,
    Found,
    InputRead,
    Note,
    Planned,
    Progress,
    RanOut,
    Resumed,
    TrainingStarted,
    Unknown,
    emit,
    listening,
)
from legroom.core.findings import Finding
from legroom.core.stages import Stage

KINDS = [
    kind
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind.NAME
]


def test_listeners_hear_what_is_emitted_while_they_listen() -> None:
    heard: list[Event] = []
    emit(Note("before"))
    with listening(heard.append):
        event = Note("stopped", signal=15)
        emit(event)
    emit(Note("after"))
    assert heard == [event]
    assert event.name == "note"
    assert event.text == "stopped"
    assert event.data == {"layers": [], "left_out": False, "signal": 15}


def test_a_listener_goes_also_when_the_work_fails() -> None:
    heard: list[Event] = []
    with pytest.raises(RuntimeError), listening(heard.append):
        raise RuntimeError
    emit(Note("after"))
    assert heard == []


def test_several_listeners_and_threads() -> None:
    first: list[Event] = []
    second: list[Event] = []
    with listening(first.append), listening(second.append):
        threads = [threading.Thread(target=emit, args=(Note(f"n{i}"),)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {event.text for event in first} == {f"n{i}" for i in range(20)}
    assert len(second) == 20


def told(name: str, text: str = "", **data: Any) -> dict[str, Any]:
    """A line of a journal."""
    return {"kind": "Event", "version": 1, "name": name, "text": text, "at": 5.0, "data": data}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Anything that a field of a type may hold, if JSON can say it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(arg) for arg in args])
    if origin is tuple:
        return st.lists(values(args[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=3), values(args[1]), max_size=2)
    if dataclasses.is_dataclass(hint):
        return made(hint)
    simple = {float: st.floats(0, 2**40), Any: st.integers() | st.text(max_size=3)}
    return simple[hint] if hint in simple else st.from_type(hint)


def made(kind: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    return st.builds(kind, **{field.name: values(hints[field.name]) for field in fields})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.NAME)
@given(data=st.data())
def test_every_event_comes_back_as_its_class(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(made(kind))
    text = event.to_json()
    assert Event.from_json(text) == event
    document = json.loads(text)
    assert list(document) == ["kind", "version", "name", "text", "at", "data"]
    assert (document["kind"], document["name"]) == ("Event", kind.NAME)
    assert document["data"] == event.data


def test_names_are_told_apart() -> None:
    assert len({kind.NAME for kind in KINDS}) == len(KINDS) == 30


# As the journals of earlier versions have them: with the fields that were told then.
@pytest.mark.parametrize(
    ("line", "event"),
    [
        (told("note", "hello"), Note("hello", 5.0)),
        (told("training_started", method="fit"), TrainingStarted("", 5.0, method="fit")),
        (told("oom", "out", seconds=2.0), RanOut("out", 5.0, seconds=2.0)),
        (told("plan", batch_size=64, slice_size=16, slices=4, recompute=[["a", "b"]]),
         Planned("", 5.0, batch_size=64, slice_size=16, slices=4, recompute=(("a", "b"),))),
        (told("progress", samples_seen=5, peak_bytes=None),
         Progress("", 5.0, samples_seen=5)),
        (told("cannot_fit", data_text="no"), DidNotFit("", 5.0, data_text="no")),
        (told("attempt_passed", subject="batch", batch_size=8, slice_size=4, training=None),
         AttemptPassed("", 5.0, batch_size=8, slice_size=4)),
        (told("resumed", training=0, finished=True, file="a"),
         Resumed("", 5.0, training=0, finished=True, file="a")),
        (told("input", stages=[{"kind": "map", "elements": None, "dtypes": ["float32"]}]),
         InputRead("", 5.0, stages=(Stage("map", elements=None, dtypes=("float32",)),))),
        (told("finding", finding=Finding("LR1", "a", "b", data={"c": 1}).to_dict()),
         Found("", 5.0, finding=Finding("LR1", "a", "b", data={"c": 1}))),
    ],
)  # fmt: skip
def test_an_old_line_is_read_as_its_class(line: dict[str, Any], event: Event) -> None:
    read = Event.from_dict(line)
    assert read == event
    assert type(read) is type(event)
    assert line["data"].keys() <= read.data.keys()


def test_keys_of_a_later_version_are_passed_over() -> None:
    line = told("oom", "out", slice_size=4, colour="red", told_name="x")
    assert Event.from_dict(line) == RanOut("out", 5.0, slice_size=4)


@pytest.mark.parametrize(
    "line",
    [
        told("of_a_later_version", "new", size=4),
        told("plan", "without its sizes", reason="oom"),
        told("finding", finding={"kind": "Finding", "version": 99}),
        told("finding", finding="lost"),
        told("input", stages=[{"no": "stage"}]),
        told("plan", batch_size=64, slice_size=16, slices=4, recompute=7),
    ],
)
def test_what_is_not_known_is_kept_as_it_is(line: dict[str, Any]) -> None:
    event = Event.from_dict(line)
    assert isinstance(event, Unknown)
    assert event.to_dict() == line


@pytest.mark.parametrize(
    "line",
    [{}, {**told("note"), "version": 2}, {**told("note"), "name": 3}, {**told("note"), "data": []}],
)
def test_what_is_no_event_is_refused(line: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Expected a"):
        Event.from_dict(line)
