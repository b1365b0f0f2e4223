"""``legroom demo`` and ``legroom selftest``: both hold here, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .side_by_side import Done, Running, busy, legroom
from .test_run_signals import eventually, gone

# What a plain run dies of, by the framework that Keras runs on.
DEATHS = {
    "tensorflow": "ResourceExhaustedError: OOM when allocating",
    "torch": "RuntimeError: [enforce fail at alloc_cpu.cpp",
    "jax": "JaxRuntimeError: ",
}


@pytest.fixture(scope="module", params=DEATHS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Running]]:
    """Both at once, each in a temporary folder of its own."""
    folder = tmp_path_factory.mktemp("commands")
    started = {}
    for name in ("demo", "selftest"):
        temporary = folder / f"{name}-tmp"
        temporary.mkdir()
        environment = {"TMPDIR": str(temporary), "KERAS_BACKEND": request.param}
        started[name] = legroom(folder / name, name, "--json", **environment)
    yield started
    for name, running in started.items():
        running.process.kill()
        assert not list((folder / f"{name}-tmp").iterdir())


def document(done: Done) -> dict[str, object]:
    assert done.code == 0, done.errors
    assert max(map(len, done.errors.splitlines())) <= 80
    return dict(json.loads(done.output))


def test_demo_shows_what_it_promises(
    both: dict[str, Running], request: pytest.FixtureRequest
) -> None:
    done = both["demo"].wait()
    found = document(done)
    assert (found["kind"], found["version"], found["failures"]) == ("DemoResult", 1, [])
    assert found["plain_died"]
    assert found["finished"]
    death = DEATHS[request.node.callspec.params["both"]]
    assert str(found["plain_error"]).startswith(death)
    assert found["full_peak_bytes"] > found["cap_bytes"] >= found["peak_bytes"]  # type: ignore[operator]
    assert found["largest_difference"] <= 1e-4  # type: ignore[operator]
    assert found["losses"] == pytest.approx(found["full_losses"], rel=1e-4)
    assert found["slice_size"] < found["batch_size"]  # type: ignore[operator]
    assert "It finishes, and it is the same training." in done.errors
    assert death.partition(":")[0] in done.errors


def test_selftest_passes_here(both: dict[str, Running]) -> None:
    done = both["selftest"].wait()
    found = document(done)
    assert (found["kind"], found["version"], found["device"]) == ("SelfTest", 1, "CPU:0")
    checks = {check["name"]: check for check in found["checks"]}  # type: ignore[attr-defined]
    assert list(checks) == ["limit", "cap", "survive", "slices", "mixed", "refuse", "run"]
    assert all(check["passed"] for check in checks.values())
    assert found["memory"]["cap_bytes"] == found["cap_bytes"]  # type: ignore[index]
    assert "CPU:0 is capped at 268 MB" in checks["limit"]["figures"]
    # Two commands at once here, beside whatever else runs.
    assert sum(check["seconds"] for check in checks.values()) < 240 * busy()
    assert done.errors.count("pass ") == len(checks)


def test_selftest_tells_what_fails(tmp_path: Path) -> None:
    """With a TensorFlow that can't be imported every check fails, and each says why."""
    broken = tmp_path / "path/tensorflow"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no such library')")
    path = os.pathsep.join([str(broken.parent), os.environ.get("PYTHONPATH", "")]).rstrip(":")
    started = legroom(tmp_path / "run", "selftest", PYTHONPATH=path)
    done = started.wait()
    assert done.code == 1
    assert done.output.count("FAIL") == 7
    assert "ImportError: no such library" in done.output
    assert "7 of 7 failed" in done.output


@pytest.mark.parametrize("command", ["demo", "selftest"])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, command: str) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    started = legroom(tmp_path / "run", command, TMPDIR=str(temporary))
    children = Path(f"/proc/{started.process.pid}/task/{started.process.pid}/children")
    assert eventually(lambda: bool(children.read_text().split()))
    pids = [int(pid) for pid in children.read_text().split()]
    os.killpg(started.process.pid, signal.SIGINT)
    assert started.wait(timeout=20).code == 130
    # What was killed is there until the kernel is through with it.
    assert eventually(lambda: all(gone(pid) for pid in pids))
    assert not list(temporary.iterdir())
