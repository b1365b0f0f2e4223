"""What is replaced comes off again: in any order, under other people's wrappers, by identity."""

from __future__ import annotations

import functools
import threading
import types
from pathlib import Path

import pytest

from legroom.backends import parts, patches
from legroom.backends.parts import BRIEFLY, ON_OBJECT, REPLACED, Part

CONTRIBUTING = Path(__file__).parents[3] / "CONTRIBUTING.md"


class Base:
    def inherited(self):
        return ["inherited"]


class Thing(Base):
    def method(self, word="?"):
        """Its own words."""
        return [f"original {word}"]


def saying(word):
    """What puts a word before all that was said so far."""

    def make(original):
        return lambda *args, **kwargs: [word, *original(*args, **kwargs)]

    return make


def put(group, owner, name, make):
    patches.put(group, "the tests", name, make, on=owner)


def replaced(owner, name, make):
    return patches.replaced("the tests", name, make, on=owner)


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    ours = [Part("test", how, "the tests", ("*",), "") for how in (REPLACED, BRIEFLY, ON_OBJECT)]
    ours.append(Part("test", REPLACED, "no_module_of_this_name", ("*",), "", optional=True))
    monkeypatch.setattr(patches, "PARTS", ours)
    yield
    patches.take_off_all()
    patches.switch_on()
    assert patches.places() == []


def test_the_last_one_is_called_first_and_the_original_last():
    put("a", Thing, "method", saying("a"))
    put("b", Thing, "method", saying("b"))
    assert Thing().method(word="x") == ["b", "a", "original x"]
    assert Thing.method.__doc__ == "Its own words."
    assert patches.has("a")
    assert patches.has("b")


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_taken_off_in_any_order_the_attribute_is_the_original(order):
    original = vars(Thing)["method"]
    for group in "ab":
        put(group, Thing, "method", saying(group))
    patches.take_off(order[0])
    assert Thing().method("x") == [order[1], "original x"]
    patches.take_off(order[1])
    assert vars(Thing)["method"] is original
    assert not patches.has("a")


def test_an_inherited_method_is_inherited_again():
    put("a", Thing, "inherited", saying("a"))
    assert Thing().inherited() == ["a", "inherited"]
    assert Base().inherited() == ["inherited"]
    patches.take_off_all()
    assert "inherited" not in vars(Thing)


def test_a_class_in_a_module_can_be_replaced():
    module = types.ModuleType("a_module")
    module.Thing = Thing
    put("a", module, "Thing", lambda original: lambda: ("instead of", original()))
    word, made = module.Thing()
    assert word == "instead of"
    assert type(made) is Thing
    patches.take_off_all()
    assert module.Thing is Thing


def test_under_somebody_elses_wrapper_nothing_is_left_but_the_original(monkeypatch):
    put("a", Thing, "method", saying("a"))
    ours = Thing.method

    @functools.wraps(ours)
    def theirs(self, word="?"):
        return ["theirs", *ours(self, word)]

    monkeypatch.setattr(Thing, "method", theirs)
    patches.take_off_all()
    assert Thing.method is theirs, "theirs to take off"
    assert Thing().method("x") == ["theirs", "original x"]
    put("b", Thing, "method", saying("b"))
    assert Thing().method("x") == ["theirs", "b", "original x"], "not twice around it"


def test_a_missing_place_is_an_error_and_leaves_nothing():
    with pytest.raises(AttributeError):
        put("a", Thing, "nothing_of_this_name", saying("a"))
    assert not patches.has("a")
    assert not patches.places()


def test_what_is_no_replacement_is_undone_in_reverse():
    undone = []
    patches.at_removal(lambda: undone.append(1))
    patches.at_removal(lambda: undone.append(2))
    assert not patches.is_off()
    patches.take_off_all()
    patches.take_off_all()
    assert undone == [2, 1]
    assert patches.is_off()
    patches.switch_on()
    assert not patches.is_off()


def test_for_a_while_and_in_one_thread():
    class Here(Thing):
        """Another test has left somebody's wrapper on the other one."""

    put("a", Here, "method", saying("a"))
    seen = []

    def look():
        seen.append(Here().method("x"))

    with replaced(Here, "method", saying("b")), replaced(Here, "method", saying("c")):
        assert Here().method("x") == ["c", "b", "a", "original x"]
        put("d", Here, "method", saying("d"))
        assert Here().method("x") == ["d", "c", "b", "a", "original x"]
        other = threading.Thread(target=look)
        other.start()
        other.join()
        patches.take_off_all()  # which does not end what will end by itself
        assert Here().method("x") == ["c", "b", "original x"]
    assert seen == [["d", "a", "original x"]], "another thread is none of our business"
    assert "method" not in vars(Here)


def test_for_a_while_it_is_not_called_by_itself():
    class Counting:
        def count(self, down):
            return [down, *(self.count(down - 1) if down else ())]

    with replaced(Counting, "count", saying("outer")), replaced(Counting, "count", saying("inner")):
        assert Counting().count(2) == ["inner", "outer", 2, 1, 0]


def test_what_fails_while_it_is_put_on_leaves_nothing():
    def make(original):
        raise ValueError("in making it")

    with pytest.raises(ValueError, match="in making it"), replaced(Thing, "inherited", make):
        pass
    with pytest.raises(ValueError, match="in making it"):
        put("a", Thing, "inherited", make)
    assert "inherited" not in vars(Thing)
    assert not patches.has("a")


def test_on_an_object_what_was_there_comes_back():
    thing, other = Thing(), Thing()
    with patches.shadowed(thing, "the tests", "method", lambda: "for a while"):
        assert thing.method() == "for a while"
        assert other.method() == ["original ?"]
    assert not vars(thing)
    patches.set_on(thing, "the tests", "method", lambda: "its own")
    with patches.shadowed(thing, "the tests", "method", lambda: "for a while"):
        pass
    assert thing.method() == "its own"


def test_only_what_is_in_the_registry_is_replaced():
    with pytest.raises(LookupError, match="another_owner"):
        patches.put("a", "another_owner", "method", saying("a"), on=Thing)
    with pytest.raises(LookupError), patches.shadowed(Thing(), "another_owner", "method", None):
        pass
    assert not patches.places()


def test_what_may_be_missing_is_left_alone():
    patches.put("a", "no_module_of_this_name", "thing", saying("a"))
    assert not patches.has("a")


def test_the_table_for_contributors_is_that_of_the_registry():
    """Else: `python -m legroom.backends.parts`, and put what it prints there."""
    assert f"\n{parts.as_table()}\n" in CONTRIBUTING.read_text()


def test_the_registry_says_why():
    for part in parts.PARTS:
        assert part.why
        assert len(part.why) < 90
