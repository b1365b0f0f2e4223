"""Machines that are not here: how much memory a training really gets on them.

A card's label is not what a program can have. TensorFlow leaves some of it to the driver and to
its libraries (225 MiB to 1.8 GiB, by the card's generation), and the CUDA context takes its part.
"""

from __future__ import annotations

import dataclasses
import difflib

from legroom.core.errors import BadBudgetError
from legroom.core.records import Record
from legroom.machine.budget import would_reserve

__all__ = ["DEVICES", "Device", "find_device"]

_MIB = 2**20

_LOGGED = "TensorFlow's own line 'Created device … with … MB memory' in public logs"
_COMPUTED = "the driver's total, less a CUDA context and what TensorFlow leaves free"
_HOST = "free memory of the host as its notebooks show it"


@dataclasses.dataclass(frozen=True)
class Device(Record):
    """A machine to plan for.

    Attributes:
        name: What it is asked for by.
        title: What it is called.
        label_bytes: What it says on the box.
        usable_bytes: What a training can have.
        source: Where the figure is from.
        gpu: Whether the memory is a GPU's.
    """

    name: str
    title: str
    label_bytes: int
    usable_bytes: int
    source: str
    gpu: bool = True


def _card(name: str, title: str, label: int, total_mib: int, capability: int) -> Device:
    usable = would_reserve(total_mib * _MIB, capability)
    return Device(name, title, label * 2**30, usable, _COMPUTED)


_CARDS = (
    Device("t4", "NVIDIA T4", 16 * 2**30, 13_600 * _MIB, _LOGGED),
    Device("p100", "NVIDIA P100", 16 * 2**30, 15_400 * _MIB, _LOGGED),
    _card("v100", "NVIDIA V100 16 GB", 16, 16_160, 7),
    _card("v100-32", "NVIDIA V100 32 GB", 32, 32_510, 7),
    _card("l4", "NVIDIA L4", 24, 23_034, 8),
    _card("a10", "NVIDIA A10", 24, 23_028, 8),
    _card("rtx3060", "NVIDIA RTX 3060", 12, 12_288, 8),
    _card("rtx3090", "NVIDIA RTX 3090", 24, 24_576, 8),
    _card("rtx4090", "NVIDIA RTX 4090", 24, 24_564, 8),
    _card("a100-40", "NVIDIA A100 40 GB", 40, 40_536, 8),
    _card("a100-80", "NVIDIA A100 80 GB", 80, 81_251, 8),
    _card("h100", "NVIDIA H100 80 GB", 80, 81_559, 9),
    _card("h200", "NVIDIA H200", 141, 143_771, 9),
)
_BY_NAME = {device.name: device for device in _CARDS}


def _place(name: str, title: str, card: str) -> Device:
    same = _BY_NAME[card]
    return dataclasses.replace(same, name=name, title=f"{title} ({same.title})")


_PLACES = (
    _place("colab-t4", "Colab", "t4"),
    _place("colab-l4", "Colab", "l4"),
    _place("colab-a100", "Colab", "a100-40"),
    _place("kaggle-p100", "Kaggle", "p100"),
    _place("kaggle-t4x2", "Kaggle, one of its two cards", "t4"),
    Device("colab-cpu", "Colab without a GPU", 12_700_000_000, 11_500_000_000, _HOST, gpu=False),
    Device("kaggle-cpu", "Kaggle without a GPU", 31_400 * _MIB, 29_500 * _MIB, _HOST, gpu=False),
)
DEVICES: dict[str, Device] = {device.name: device for device in (*_CARDS, *_PLACES)}


def find_device(name: str) -> Device:
    """The device of a name.

    Raises:
        BadBudgetError: If there is none, with those that there are.
    """
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    if key in DEVICES:
        return DEVICES[key]
    near = difflib.get_close_matches(key, DEVICES, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise BadBudgetError(
        f"No device is called {name!r}.{hint} Known: {', '.join(DEVICES)}. For others give the "
        "memory itself, as in --memory 10GiB."
    )
