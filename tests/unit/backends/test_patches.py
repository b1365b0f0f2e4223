"""What is replaced comes off again: in any order, under other people's wrappers, by identity."""

from __future__ import annotations

import functools
import types

import pytest

from legroom.backends import patches


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


@pytest.fixture(autouse=True)
def _clean():
    yield
    patches.take_off_all()
    patches.switch_on()
    assert patches.places() == []


def test_the_last_one_is_called_first_and_the_original_last():
    patches.put("a", Thing, "method", saying("a"))
    patches.put("b", Thing, "method", saying("b"))
    assert Thing().method(word="x") == ["b", "a", "original x"]
    assert Thing.method.__doc__ == "Its own words."
    assert patches.has("a")
    assert patches.has("b")


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_taken_off_in_any_order_the_attribute_is_the_original(order):
    original = vars(Thing)["method"]
    for group in "ab":
        patches.put(group, Thing, "method", saying(group))
    patches.take_off(order[0])
    assert Thing().method("x") == [order[1], "original x"]
    patches.take_off(order[1])
    assert vars(Thing)["method"] is original
    assert not patches.has("a")


def test_an_inherited_method_is_inherited_again():
    patches.put("a", Thing, "inherited", saying("a"))
    assert Thing().inherited() == ["a", "inherited"]
    assert Base().inherited() == ["inherited"]
    patches.take_off_all()
    assert "inherited" not in vars(Thing)


def test_a_class_in_a_module_can_be_replaced():
    module = types.ModuleType("a_module")
    module.Thing = Thing
    patches.put("a", module, "Thing", lambda original: lambda: ("instead of", original()))
    word, made = module.Thing()
    assert word == "instead of"
    assert type(made) is Thing
    patches.take_off_all()
    assert module.Thing is Thing


def test_under_somebody_elses_wrapper_nothing_is_left_but_the_original(monkeypatch):
    patches.put("a", Thing, "method", saying("a"))
    ours = Thing.method

    @functools.wraps(ours)
    def theirs(self, word="?"):
        return ["theirs", *ours(self, word)]

    monkeypatch.setattr(Thing, "method", theirs)
    patches.take_off_all()
    assert Thing.method is theirs, "theirs to take off"
    assert Thing().method("x") == ["theirs", "original x"]
    patches.put("b", Thing, "method", saying("b"))
    assert Thing().method("x") == ["theirs", "b", "original x"], "not twice around it"


def test_a_missing_place_is_an_error_and_leaves_nothing():
    with pytest.raises(AttributeError):
        patches.put("a", Thing, "nothing_of_this_name", saying("a"))
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
