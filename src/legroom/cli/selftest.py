"""``legroom selftest``: does what legroom promises hold on this machine?"""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from legroom.cli.command import Command, json_flag
from legroom.core.records import Record
from legroom.machine.budget import DeviceReading

if TYPE_CHECKING:
    from rich.table import Table

    from legroom.cli.workers.children import Workplace

__all__ = ["SelfTest", "SelfTestCheck", "selftest"]

_MIB = 2**20
# Enough for a framework itself and a small net; a GPU's libraries want workspaces of their own.
_CAP_CPU, _CAP_GPU = 256 * _MIB, 1024 * _MIB
# The C library reserves 64 MiB for each thread, and falls back on that where nothing else is left:
# a step would find room that is not counted as free.
_TIGHT = {"MALLOC_ARENA_MAX": "1"}
_WORKER = Path(__file__).with_name("workers") / "selftest_worker.py"
_CHECKS = {
    "limit": "the device's limit is known",
    "cap": "a cap is a cap: no more can be had",
    "survive": "running out of memory is survived, and changes nothing",
    "slices": "slices make the update of the whole batch (float32)",
    "mixed": "slices in half precision stay finite (mixed_float16)",
    "refuse": "what can't fit says so, and leaves the weights alone",
    "run": "legroom run caps a script and passes its exit code on",
}
_SCRIPT = """
import sys
import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(keras.ops.ones((8, 4)), keras.ops.ones((8, 1)), verbose=0)
sys.exit(7)
"""


@dataclasses.dataclass(frozen=True)
class SelfTestCheck(Record):
    """What became of one check.

    Attributes:
        name: Its short name.
        about: What it checks.
        passed: Whether that holds here.
        figures: What was measured, or the error.
        seconds: How long it took.
    """

    name: str
    about: str
    passed: bool
    figures: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class SelfTest(Record):
    """All checks on this machine.

    Attributes:
        device: The device that was trained on.
        cap_bytes: The cap under which the checks ran.
        versions: Of Python, the framework, Keras and legroom, and the system.
        checks: What became of each check.
        memory: What was read of the device's memory: the framework's own word, and the driver's.
            On a GPU without the cap, and without taking more than a little of it.
    """

    device: str
    cap_bytes: int
    versions: dict[str, str]
    checks: tuple[SelfTestCheck, ...]
    memory: DeviceReading | None = None

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        return all(check.passed for check in self.checks)


@click.command(
    cls=Command,
    examples=("legroom selftest", "legroom selftest --json > selftest.json"),
    exit_codes="0 if all checks passed, 1 if not.",
)
@json_flag("Print the results as one JSON document. Everything else goes to stderr.")
def selftest(as_json: bool) -> None:
    """Check on this machine that caps, recovery and sameness hold.

    Small trainings in processes of their own, under a cap of 256 MiB (1 GiB on a GPU), whatever
    the machine has, on the framework that Keras uses here. On TensorFlow they take one to two
    minutes, most of it TensorFlow's own waits for memory.
    """
    from legroom.backends.base import SPELLED, named
    from legroom.cli.terminal.stages import Stages
    from legroom.cli.workers.children import framework, workplace
    from legroom.core.units import format_bytes

    backend = framework()
    stages = Stages(to_stderr=as_json)
    cap = _CAP_GPU if named(backend).caps.uses_gpu() else _CAP_CPU
    stages.line(
        f"Seven checks, each in a process of its own that uses at most {format_bytes(cap)}.",
        indent="",
    )
    checks: list[SelfTestCheck] = []
    facts: dict[str, Any] = {}
    with workplace(backend) as place:
        for number, name in enumerate(_CHECKS, 1):
            with stages.waiting(f"{number} of {len(_CHECKS)}: {_CHECKS[name]}"):
                check, found = _run(place, name, cap)
            checks.append(check)
            facts |= found
    memory = facts.get("memory")
    result = SelfTest(
        facts.get("device", "unknown"),
        cap,
        _versions(backend, facts),
        tuple(checks),
        None if memory is None else DeviceReading.from_dict(memory),
    )
    stages.heading(f"legroom selftest on {result.device}, {SPELLED[backend]}")
    stages.console.print(_table(result))
    if result.device.startswith("GPU") and backend == "tensorflow":
        stages.line(
            "TensorFlow on a GPU is not yet verified by us. Please tell us what this says: "
            "the output of legroom selftest --json is all we need.",
            indent="",
        )
    if as_json:
        click.echo(result.to_json(indent=2))
    sys.exit(0 if result.passed else 1)


def _run(place: Workplace, name: str, cap: int) -> tuple[SelfTestCheck, dict[str, Any]]:
    """Run one check."""
    from legroom.cli.workers.children import error_lines

    if name == "run":
        return _run_script(place, cap), {}
    path = place.folder / f"{name}.json"
    ended = place.run([_WORKER, name, str(cap), path], environment=_TIGHT)
    if path.exists():
        found = json.loads(path.read_text())
    else:
        found = {"passed": False, "figures": _short(error_lines(ended.output))}
    passed, figures = bool(found.pop("passed")), str(found.pop("figures"))
    return SelfTestCheck(name, _CHECKS[name], passed, figures, ended.seconds), found


def _run_script(place: Workplace, cap: int) -> SelfTestCheck:
    script, written = place.folder / "exits_7.py", place.folder / "run.json"
    script.write_text(_SCRIPT)
    memory = f"{cap // _MIB}MiB"
    ended = place.run(["-m", "legroom", "run", "--memory", memory, "--json", written, script])
    report = json.loads(written.read_text()) if written.exists() else {}
    seen, budget = report.get("samples_seen"), report.get("budget_bytes")
    return SelfTestCheck(
        "run",
        _CHECKS["run"],
        ended.code == 7 and seen == 8 and budget == cap,
        f"exit code {ended.code} of 7, {seen} of 8 samples, budget {(budget or 0) // _MIB} MiB",
        ended.seconds,
    )


def _table(result: SelfTest) -> Table:
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), box=None)
    for column in ("check", "", "time"):
        table.add_column(column, justify="right" if column == "time" else "left")
    for check in result.checks:
        figures = Text(check.figures, style="dim" if check.passed else "")
        about = Group(Text(check.about), Padding(figures, (0, 0, 0, 2)))
        word = Text("pass", style="green") if check.passed else Text("FAIL", style="bold red")
        table.add_row(about, word, f"{check.seconds:.0f} s")
    failed = sum(not check.passed for check in result.checks)
    said = Text(f"{failed} of {len(result.checks)} failed" if failed else "all passed")
    seconds = sum(check.seconds for check in result.checks)
    table.add_row(said, "", f"{seconds:.0f} s", style="bold red" if failed else "bold")
    return table


def _versions(backend: str, facts: dict[str, Any]) -> dict[str, str]:
    import legroom

    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        backend: str(facts.get(backend, "unknown")),
        "keras": str(facts.get("keras", "unknown")),
        "legroom": legroom.__version__,
    }


def _short(text: str, most: int = 300) -> str:
    from legroom.report.text import clean_line

    line = clean_line(text)
    return line if len(line) <= most else f"{line[:most]}…"
