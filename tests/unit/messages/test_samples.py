"""Real messages: what a reader of each can know is what the diagnosis says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legroom.messages import Diagnosis, diagnose_text
from legroom.messages.patterns import PATTERNS
from legroom.messages.reading.reader import Block
from legroom.messages.reading.scan import Scanner, Sighting

OOM = Path(__file__).parents[2] / "fixtures" / "oom"
SAMPLES: dict[str, dict[str, Any]] = json.loads((OOM / "samples" / "expected.json").read_text())
WORDINGS: list[dict[str, Any]] = json.loads((OOM / "wordings.json").read_text())
WILD: list[dict[str, Any]] = json.loads((OOM / "wild.json").read_text())
GIB = 2**30
Compare = Callable[[Diagnosis, dict[str, Any]], dict[str, tuple[Any, Any]]]

LOGS: dict[str, dict[str, Any]] = {
    "tf221_bfc_dump.txt": {
        "is_oom": True, "fatal": True, "framework": "tensorflow", "where": "host",
        "device": "CPU:0", "requested_bytes": 62980096, "shape": [32, 124, 124, 32],
        "dtype": "float32", "op": "StatefulPartitionedCall/sequential_1/conv2d_1_2/BiasAdd",
        "layer": "conv2d_1_2", "limit_bytes": 300 * 2**20, "in_use_bytes": 230833521,
        "largest_free_bytes": 54525952, "fragmented": True, "growth": None, "failures": 1,
    },
    "jax_alloc.txt": {
        "is_oom": True, "fatal": True, "framework": "jax", "where": "device", "device": "GPU:0",
        "requested_bytes": 400 * GIB, "op": None, "failures": 1,
    },
    "jax_async.txt": {
        "is_oom": True, "fatal": True, "framework": "jax", "where": "device", "device": None,
        "requested_bytes": 400 * GIB, "failures": 1,
    },
    # A dozen notes that are no failures stand before the one that is.
    "jax_jit.txt": {
        "is_oom": True, "fatal": True, "framework": "jax", "where": "device", "device": "GPU:0",
        "requested_bytes": int(13.43 * GIB), "failures": 1,
    },
    "torch_cpu.txt": {
        "is_oom": True, "fatal": True, "framework": "torch", "where": "host", "device": "CPU:0",
        "requested_bytes": 2**47,
    },
    # A cap of its own is the limit, not the card.
    "torch_gpu.txt": {
        "is_oom": True, "fatal": True, "framework": "torch", "where": "device", "device": "GPU:0",
        "requested_bytes": int(1.3 * GIB), "limit_bytes": int(6.99 * GIB),
        "in_use_bytes": int(6.5 * GIB), "fragmented": False,
    },
    "torch_gpu2.txt": {
        "is_oom": True, "framework": "torch", "requested_bytes": 400 * GIB, "in_use_bytes": 0,
        "limit_bytes": int(139.8 * GIB),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_sample(name: str, differences: Compare) -> None:
    expected = {key: value for key, value in SAMPLES[name].items() if key != "source"}
    text = (OOM / "samples" / name).read_bytes()
    assert not differences(diagnose_text(text), expected)


@pytest.mark.parametrize("name", LOGS)
def test_log(name: str, differences: Compare) -> None:
    assert not differences(diagnose_text((OOM / "logs" / name).read_bytes()), LOGS[name])


@pytest.mark.parametrize(
    "wording", WORDINGS, ids=lambda one: f"{one['pattern']}-{one['source']}".replace("/", ".")
)
def test_wording(wording: dict[str, Any], differences: Compare) -> None:
    found = Scanner().feed(Block(wording["text"].encode(), last=True))
    names = {one.pattern.name for one in found if isinstance(one, Sighting)}
    assert wording["pattern"] in names
    assert not differences(diagnose_text(wording["text"]), wording["expect"])


@pytest.mark.parametrize("one", WILD, ids=lambda one: one["name"])
def test_wild(one: dict[str, Any], differences: Compare) -> None:
    """What other libraries and systems say, and what only looks like it."""
    assert not differences(diagnose_text(one["text"]), one["expect"])


def test_every_pattern_has_a_fixture() -> None:
    assert {pattern.name for pattern in PATTERNS} == {one["pattern"] for one in WORDINGS}


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_says_something(name: str) -> None:
    diagnosis = diagnose_text((OOM / "samples" / name).read_bytes())
    assert diagnosis.story
    assert diagnosis.first_error
    assert Diagnosis.from_json(diagnosis.to_json()) == diagnosis
