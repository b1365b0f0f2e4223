"""What all tests share."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import signal
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

# Two shared cores make timing unreliable, so a slow example is no failure here.
settings.register_profile(
    "legroom", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("legroom")

# Tracing makes many small objects, and a tenth of the time went into looking for garbage.
gc.set_threshold(50_000, 20, 20)

# As many workers as cores run at once, and PyTorch's threads would wait for each other.
if os.environ.get("KERAS_BACKEND") == "torch":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell runs in the background ignores Ctrl-C, and so do its children: tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each test finds its answers itself, and so do its children.
os.environ["LEGROOM_CACHE"] = "off"


# How much TensorFlow logs is part of what some tests read, and JAX changes it when it is imported.
_LOGS = os.environ.get("TF_CPP_MIN_LOG_LEVEL")


@pytest.fixture(autouse=True, scope="module")
def _logs_as_they_were() -> None:
    """Importing JAX, for which collecting its tests is enough, quiets the children of all tests."""
    if _LOGS is None:
        os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
    else:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = _LOGS


@pytest.fixture(autouse=True)
def _default_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with sizes in MB and GB: the family that a size is written in stays."""
    monkeypatch.setenv("LEGROOM_UNITS", "GB")


@pytest.fixture(autouse=True)
def _no_samples_of_another_test() -> Iterator[None]:
    """A test's training is over with it: its memory is not told to the next one's listeners."""
    yield
    if (sampling := sys.modules.get("legroom.guarding.showing.sampling")) is not None:
        sampling.sampler.end()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the installed Keras can't do: `@pytest.mark.since_keras("3.7", "why")`.

    And what is for another backend than Keras runs on: `@pytest.mark.on_tensorflow("why")`, or
    for any but that one: `@pytest.mark.not_on_torch("why")`.
    """
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    for name in ("tensorflow", "torch", "jax"):
        for mark in item.iter_markers(f"on_{name}"):
            if name != backend:
                pytest.skip(f"only on {name}: {mark.args[0]}")
    for mark in item.iter_markers(f"not_on_{backend}"):
        pytest.skip(f"not on {backend}: {mark.args[0]}")
    installed = importlib.metadata.version("keras")
    for mark in item.iter_markers("since_keras"):
        since, reason = mark.args
        if _numbers(installed) < _numbers(since):
            pytest.skip(f"Keras {installed} {reason}; since {since}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, which can do everything, a test that can't run *here* has failed.

    A kernel that really kills, a disk that is really full: such tests skip themselves on machines
    without the rights for it, with a reason that says "here".
    """
    report = yield
    skipped = call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception)
    if skipped and " here" in str(call.excinfo.value) and os.environ.get("LEGROOM_RUN_ALL_TESTS"):
        report.outcome = "failed"
        report.longrepr = f"LEGROOM_RUN_ALL_TESTS is set, but: {call.excinfo.value}"
    return report


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
