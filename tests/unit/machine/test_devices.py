"""Machines that are not here."""

from __future__ import annotations

import pytest

from legroom.core.errors import BadBudgetError
from legroom.machine.devices import DEVICES, find_device


@pytest.mark.parametrize(
    "name",
    [
        "t4",
        "p100",
        "v100",
        "l4",
        "a100-40",
        "a100-80",
        "h100",
        "h200",
        "colab-t4",
        "colab-cpu",
        "kaggle-p100",
        "kaggle-cpu",
    ],
)
def test_known_by_name(name):
    device = find_device(name.upper())
    assert device.name == name
    assert device.source


def test_what_can_be_used_is_less_than_the_label_says():
    for device in DEVICES.values():
        assert 0.8 * device.label_bytes < device.usable_bytes < device.label_bytes


def test_logged_figures():
    assert 13.6e9 <= find_device("t4").usable_bytes <= 14.6e9
    assert find_device("kaggle-t4x2").usable_bytes == find_device("t4").usable_bytes


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(BadBudgetError, match=r"Did you mean 'a100-40'.*h200"):
        find_device("a100-4")
