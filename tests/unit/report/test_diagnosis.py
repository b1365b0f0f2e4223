"""A diagnosis shown: short, within 80 columns, and with nothing of the log acting on its own."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import legroom
from legroom.messages import Diagnosis, Remedy, diagnose_text
from legroom.report.diagnosis import diagnosis_html, print_diagnosis

SAMPLES = sorted((Path(__file__).parents[2] / "fixtures" / "oom" / "samples").glob("*.txt"))
JOB = "/job:localhost/replica:0/task:0/device:GPU:0"


def shown(diagnosis: Diagnosis, width: int = 80) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    legroom.explain("")  # registers how a diagnosis is shown
    console.print(diagnosis)
    return stream.getvalue()


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_fit_80_columns_and_a_screen(path: Path) -> None:
    lines = shown(diagnose_text(path.read_bytes())).splitlines()
    assert 2 <= len(lines) <= 18
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [20, 40, 79, 200])
def test_any_width(width: int) -> None:
    assert "Out of memory on GPU:0" in shown(diagnose_text(SAMPLES[0].read_bytes()), max(width, 36))


def test_headlines() -> None:
    def first(text: str) -> str:
        return shown(diagnose_text(text)).splitlines()[0]

    assert first("") == "Nothing found"
    assert first("Killed") == "Out of host memory"
    assert first("CUDA error: out of memory") == "Out of device memory (PyTorch)"
    assert first("Segmentation fault") == "Perhaps out of memory"
    assert first("No space left on device") == "A failure, but not of memory"
    assert first("Allocation of 12 exceeds 10% of free system memory.") == "No failure"
    assert first("tensorflow ResourceExhaustedError") == "Out of memory (TensorFlow)"


def test_no_colours_where_none_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    print_diagnosis(diagnose_text(SAMPLES[0].read_bytes()), stream)
    assert "\x1b" not in stream.getvalue()
    assert "legroom run train.py" in stream.getvalue()


def test_nothing_of_a_log_is_obeyed_by_a_terminal() -> None:
    nasty = "\x1b[2J\x1b]0;title\x07\x9b31m\u202egpj\u200b\x00\x08[red]x[/red]:smile:"
    text = (
        f"OOM when allocating tensor with shape[8,32,32,16] and type float on {JOB} by allocator "
        f"GPU_0_bfc\n [[node model/{nasty}/Conv2D (defined at x)]]\n"
        f"Exception encountered when calling layer '{nasty}' (type Conv2D).\n"
    )
    out = shown(diagnose_text(text))
    assert all(char.isprintable() or char == "\n" for char in out)
    diagnosis = diagnose_text(text)
    document = diagnosis.to_json()
    assert "\\u001b" not in document
    assert "\\u202e" not in document


def test_markup_of_rich_is_only_text() -> None:
    diagnosis = Diagnosis(
        is_oom=True, fatal=True, device="[bold]GPU:0[/bold]", where="device",
        story="[red]layer [/] :smile:", finding="killed",
        remedies=(Remedy("[link=x]y[/link]", command="[blink]z"),),
    )  # fmt: skip
    out = shown(diagnosis)
    for piece in ("[bold]GPU:0[/bold]", "[red]layer [/] :smile:", "[link=x]y[/link]", "[blink]z"):
        assert piece in out


def test_markup_never_reaches_a_page() -> None:
    evil = "<script>alert(1)</script><img src=x onerror='alert(1)'>\"&"
    diagnosis = Diagnosis(
        is_oom=True, fatal=True, device=evil, where="device", story=evil, finding=evil,
        remedies=(Remedy(evil, code=evil), Remedy(evil, command=evil, exact=False)),
    )  # fmt: skip
    page = diagnosis_html(diagnosis)
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    page = diagnose_text(
        f"OOM when allocating tensor with shape[8,3] and type float on {JOB} by allocator x\n"
        "Exception encountered when calling layer '<b onclick=x>' (type Conv2D).\n"
        " [[{{node <script>alert(1)</script>/a/Conv2D}}]]"
    )._repr_html_()
    assert page is not None
    assert "<script" not in page
    assert "<b onclick" not in page


def test_a_reader_that_left_is_no_error() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    print_diagnosis(diagnose_text("Killed"), Gone())
