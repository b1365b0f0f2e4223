"""``legroom demo``: the same script in the same little memory, plain and under legroom."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from legroom.cli.command import Command, json_flag
from legroom.core.records import Record

if TYPE_CHECKING:
    from legroom.cli.terminal.stages import Stages
    from legroom.cli.workers.children import Ended, Workplace

__all__ = ["DemoResult", "demo"]

# Of the peak that the script has with all the memory it wants: so little that it surely dies.
_SHARE = 0.5
# Where nobody counts the step by itself: the address space that a compiler took is in it.
_SHARE_BY_ADDRESSES = 0.4
_MB = 10**6
_PROMISED = 1e-4
_WORKERS = Path(__file__).with_name("workers")
# How frameworks say that memory ran out, PyTorch and JAX on a GPU and on a CPU.
_RAN_OUT = ("ResourceExhausted", "RESOURCE_EXHAUSTED", "OutOfMemory", "can't allocate memory",
            "Out of memory allocating")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DemoResult(Record):
    """What the three runs of the demo gave.

    Attributes:
        device: What was trained on.
        full_peak_bytes: The peak of the run with all the memory it wants.
        cap_bytes: What the two other runs were given.
        plain_died: Whether the plain run died for want of memory under the cap.
        plain_error: What it died of.
        finished: Whether the run under legroom finished.
        peak_bytes: The peak of that run.
        ooms: How often memory ran out in it, and was survived.
        slice_size: The slices it ended with.
        batch_size: The batches that the script asked for.
        samples_lost: Samples in no update.
        largest_difference: Of any weight to the run with all memory, by the largest in its tensor.
        full_losses: The loss of every epoch with all the memory.
        losses: The loss of every epoch under legroom.
        seconds: How long each of the three took.
        failures: What was not as promised; empty if all was.
    """

    device: str = ""
    full_peak_bytes: int | None = None
    cap_bytes: int | None = None
    plain_died: bool = False
    plain_error: str = ""
    finished: bool = False
    peak_bytes: int | None = None
    ooms: int = 0
    slice_size: int | None = None
    batch_size: int | None = None
    samples_lost: int = 0
    largest_difference: float | None = None
    full_losses: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    failures: tuple[str, ...] = ()


@click.command(
    cls=Command,
    examples=("legroom demo", "legroom demo --json > figures.json"),
    exit_codes="0 if all was as promised, 1 if not.",
)
@json_flag("Print the figures as one JSON document. Everything else goes to stderr.")
def demo(as_json: bool) -> None:
    """Show what legroom does: one training script, run three times.

    With all the memory it wants; with half of that or less, plain, where it dies; with as little
    under `legroom run`, where it finishes. Then the weights of the first and the last are
    compared. Takes about a minute.
    """
    from legroom.cli.terminal.stages import Stages
    from legroom.cli.workers.children import framework, workplace

    backend = framework()
    stages = Stages(to_stderr=as_json)
    with workplace(backend) as place:
        result = _Demo(place, stages).run()
    if as_json:
        click.echo(result.to_json(indent=2))
    sys.exit(1 if result.failures else 0)


class _Demo:
    """The three runs, one after the other."""

    def __init__(self, place: Workplace, stages: Stages) -> None:
        self._place = place
        self._stages = stages
        self._found: dict[str, Any] = {"seconds": ()}
        self._share = _SHARE_BY_ADDRESSES if place.backend == "jax" else _SHARE
        self._script = place.folder / "train.py"
        self._script.write_text((_WORKERS / "demo_script.py").read_text())

    def run(self) -> DemoResult:
        """Run all three as far as they make sense, and say what came out."""
        from legroom.core.units import format_bytes

        stages = self._stages
        stages.line("One training script, run three times: a small image classifier, batches of "
                    "64 images, five epochs, Adam.", indent="")  # fmt: skip
        stages.line(str(_WORKERS / "demo_script.py"), style="dim", indent="")

        stages.heading("1  python train.py, with all the memory it wants")
        if not self._run_full():
            return self._result("The script failed even with all the memory there is.")
        cap = self._found["cap_bytes"]
        stages.line(f"From here on it gets {self._share:.0%} of that: {format_bytes(cap)}.")

        stages.heading(f"2  python train.py, with {format_bytes(cap)}")
        self._run_plain(cap)

        stages.heading(f"3  legroom run --memory {cap // _MB}MB train.py")
        if not self._run_guarded(cap):
            return self._result("Under legroom the script did not finish.")

        stages.heading("Is it the same training?")
        self._compare()
        return self._result()

    def _run_full(self) -> bool:
        from legroom.core.units import format_bytes

        # TensorFlow's own allocator on a CPU too: only that one counts.
        ended, facts = self._run_measured("full", 0, {"TF_CPU_ALLOCATOR_USE_BFC": "1"})
        peak = facts.get("peak_bytes")
        if ended.code != 0 or not peak:
            self._show_error(ended)
            return False
        losses = _load(self._place.folder / "full.npz")["losses"]
        self._found.update(
            device=facts["device"],
            full_peak_bytes=peak,
            cap_bytes=int(peak * self._share) // _MB * _MB,
            full_losses=tuple(map(float, losses)),
        )
        self._tell_end(ended, f"peak {format_bytes(peak)} on {facts['device']}", losses)
        return True

    def _run_plain(self, cap: int) -> None:
        from legroom.cli.workers.children import error_lines

        ended, _ = self._run_measured("plain", cap, {})
        error = error_lines(ended.output)
        died = ended.code != 0 and any(name in ended.output for name in _RAN_OUT)
        self._found.update(plain_died=died, plain_error=error if ended.code else "")
        if died:
            wait = " (TensorFlow waits for memory a while before it gives up)"
            wait = wait if self._place.backend == "tensorflow" else ""
            self._stages.line(f"died after {ended.seconds:.0f} s{wait}:")
            self._stages.line(error, style="red", indent="     ")
        else:
            self._show_error(ended)

    def _run_guarded(self, cap: int) -> bool:
        from legroom.core.units import format_bytes
        from legroom.report.run import RunReport

        saved, written = self._place.folder / "guarded.npz", self._place.folder / "report.json"
        command: list[str | Path] = [
            "-m",
            "legroom",
            "run",
            "--memory",
            f"{cap // _MB}MB",
            "--json",
            written,
        ]
        with self._stages.waiting("training"):
            ended = self._place.run([*command, self._script, saved], on_line=self._tell_legroom)
        self._found["seconds"] += (ended.seconds,)
        if ended.code != 0 or not saved.exists():
            self._show_error(ended)
            return False
        report = RunReport.from_json(written.read_text())
        losses = _load(saved)["losses"]
        self._found.update(
            finished=True,
            peak_bytes=report.peak_bytes,
            ooms=report.ooms,
            slice_size=report.slice_size,
            batch_size=report.batch_size,
            samples_lost=report.samples_lost,
            losses=tuple(map(float, losses)),
        )
        peak = "" if report.peak_bytes is None else f"peak {format_bytes(report.peak_bytes)}, "
        self._tell_end(
            ended, f"{peak}batches of {report.batch_size} in slices of {report.slice_size}", losses
        )
        return True

    def _run_measured(
        self, name: str, cap: int, environment: dict[str, str]
    ) -> tuple[Ended, dict[str, Any]]:
        note = self._place.folder / f"{name}.json"
        saved = self._place.folder / f"{name}.npz"
        command: list[str | Path] = [_WORKERS / "measured.py", note, str(cap), self._script, saved]
        with self._stages.waiting("training"):
            ended = self._place.run(command, environment=environment)
        self._found["seconds"] += (ended.seconds,)
        return ended, json.loads(note.read_text()) if note.exists() else {}

    def _compare(self) -> None:
        full, guarded = (_load(self._place.folder / f"{name}.npz") for name in ("full", "guarded"))
        differences = {name: _difference(full[name], guarded[name]) for name in full}
        differences.pop("losses")
        worst = max(differences, key=lambda name: differences[name])
        self._found["largest_difference"] = differences[worst]
        count = sum(full[name].size for name in differences)
        self._stages.line(
            f"{count:,} weights after {len(full['losses'])} epochs, run 3 against run 1: the "
            f"largest difference is {differences[worst]:.1e} of the largest weight in its tensor "
            f"({worst}); we promise at most {_PROMISED:.0e}.".replace(",", " ", 1)
        )

    def _result(self, *failures: str) -> DemoResult:
        found = DemoResult(**self._found)
        if not failures:
            failures = tuple(_failures(found))
        self._stages.heading("" if failures else "It finishes, and it is the same training.")
        for failure in failures:
            self._stages.line(f"Not as promised: {failure}", style="red", indent="")
        return dataclasses.replace(found, failures=failures)

    def _tell_end(self, ended: Ended, what: str, losses: Any) -> None:
        self._stages.line(f"finished in {ended.seconds:.0f} s, {what}")
        self._stages.line(f"loss {losses[0]:.4f} in the first epoch, {losses[-1]:.4f} in the last")

    def _tell_legroom(self, line: str) -> None:
        if line.startswith("legroom: "):
            self._stages.line(line, style="green", indent="     ")

    def _show_error(self, ended: Ended) -> None:
        self._stages.line(f"ended with {ended.code} after {ended.seconds:.0f} s:")
        for line in ended.output.strip().splitlines()[-12:]:
            self._stages.line(line, style="red", indent="     ")


def _failures(found: DemoResult) -> list[str]:
    """What was not as promised."""
    failures = []
    if not found.plain_died:
        failures.append("the plain run was meant to run out of memory, but did not.")
    if found.samples_lost:
        failures.append(f"{found.samples_lost} samples were lost.")
    if found.peak_bytes and found.cap_bytes and found.peak_bytes > found.cap_bytes:
        failures.append("the run under legroom took more memory than it was given.")
    if found.largest_difference is None or not found.largest_difference <= _PROMISED:
        failures.append(f"weights differ by {found.largest_difference}.")
    return failures


def _difference(one: Any, other: Any) -> float:
    """The largest difference between two tensors, by the largest value in the first."""
    import numpy as np

    if one.shape != other.shape or not np.isfinite(other).all():
        return float("inf")
    return float(np.abs(one - other).max() / max(np.abs(one).max(), sys.float_info.min))


def _load(path: Path) -> dict[str, Any]:
    import numpy as np

    with np.load(path) as file:
        return {name: file[name] for name in file.files}
