from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.core.events import Event, Unknown
from legroom.core.records import Record, register_renderer
from legroom.report.run import RunReport


@dataclasses.dataclass(frozen=True)
class Leaf(Record):
    name: str
    size: int | None = None


@dataclasses.dataclass(frozen=True)
class Tree(Record):
    VERSION: ClassVar[int] = 3
    leaves: tuple[Leaf, ...]
    best: Leaf | None = None
    notes: list[str] = dataclasses.field(default_factory=list)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
leaves = st.builds(Leaf, name=st.text(), size=st.none() | st.integers())
events = st.builds(
    Unknown,
    text=st.text(),
    at=st.floats(0, 2**40),
    told_name=st.text().map("later {}".format),  # none that this version knows
    told_data=st.dictionaries(st.text(), plain, max_size=4),
)


@given(st.builds(Tree, leaves=st.lists(leaves).map(tuple), best=st.none() | leaves))
def test_nested_records_come_back(tree: Tree) -> None:
    assert Tree.from_json(tree.to_json()) == tree


@given(events)
def test_events_come_back(event: Event) -> None:
    assert Event.from_json(event.to_json()) == event
    assert "\n" not in event.to_json()  # the journal has one line an event


@given(st.lists(events, max_size=3), st.integers(0, 10**9), st.none() | st.integers(1, 10**12))
def test_reports_come_back(kept: list[Event], seen: int, peak: int | None) -> None:
    report = RunReport(events=tuple(kept), samples_seen=seen, peak_bytes=peak)
    assert RunReport.from_json(report.to_json(indent=2)) == report


def test_kind_and_version_stand_in_front() -> None:
    document = json.loads(Tree(leaves=()).to_json())
    assert list(document)[:2] == ["kind", "version"]
    assert (document["kind"], document["version"]) == ("Tree", 3)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "Leaf", "version": 2, "name": "a"}, "version=2"),
        ({"kind": "Tree", "version": 1, "name": "a"}, "kind='Tree'"),
        ({"name": "a"}, "kind=None"),
        ({"kind": "Leaf", "version": 1}, "without its field 'name'"),
        ([], "Expected a JSON object"),
    ],
)
def test_what_is_not_known_is_refused(document: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Leaf.from_json(json.dumps(document))


def test_fields_of_a_later_writer_are_passed_over() -> None:
    assert Leaf.from_dict({"kind": "Leaf", "version": 1, "name": "a", "new": 1}) == Leaf("a")


def test_what_json_can_not_say_becomes_null() -> None:
    event = Unknown(told_name="x", told_data={"losses": [math.nan, math.inf, -math.inf, 1.0]})
    assert json.loads(event.to_json())["data"] == {"losses": [None, None, None, 1.0]}


def test_a_renderer_serves_subclasses_too() -> None:
    @dataclasses.dataclass(frozen=True)
    class Shown(Record):
        pass

    @dataclasses.dataclass(frozen=True)
    class ShownToo(Shown):
        pass

    assert ShownToo().__rich__() == repr(ShownToo())
    assert ShownToo()._repr_html_() is None
    register_renderer(Shown, "rich", lambda record: f"<{type(record).__name__}>")
    assert ShownToo().__rich__() == str(ShownToo()) == "<ShownToo>"
