from __future__ import annotations

import threading

import pytest

from legroom.core.events import Event, emit, listening


def test_listeners_hear_what_is_emitted_while_they_listen() -> None:
    heard: list[Event] = []
    emit("before")
    with listening(heard.append):
        event = emit("oom", "out of memory", place="conv2d_1", seconds=1.5)
    emit("after")
    assert heard == [event]
    assert event.name == "oom"
    assert event.text == "out of memory"
    assert event.data == {"place": "conv2d_1", "seconds": 1.5}


def test_a_listener_goes_also_when_the_work_fails() -> None:
    heard: list[Event] = []
    with pytest.raises(RuntimeError), listening(heard.append):
        raise RuntimeError
    emit("after")
    assert heard == []


def test_several_listeners_and_threads() -> None:
    first: list[Event] = []
    second: list[Event] = []
    with listening(first.append), listening(second.append):
        threads = [threading.Thread(target=emit, args=(f"n{i}",)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {event.name for event in first} == {f"n{i}" for i in range(20)}
    assert len(second) == 20
