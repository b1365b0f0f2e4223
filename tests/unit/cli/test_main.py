"""The one place where errors become messages and exit codes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from legroom.cli.command import Command
from legroom.cli.main import _legroom


def command(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    """``legroom demo`` with a body of our own, in a process of its own."""
    (tmp_path / "demo.py").write_text(
        f"import click\n@click.command()\ndef demo() -> None:\n    '''A demo.'''\n    {body}\n"
    )
    code = (
        "import sys, legroom.cli\n"
        f"legroom.cli.__path__.insert(0, {str(tmp_path)!r})\n"
        "from legroom.cli.main import main\n"
        "sys.argv = ['legroom', 'demo']\n"
        "main()\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("body", "status", "errors"),
    [
        ("print('fine')", 0, ""),
        ("import legroom; raise legroom.LegroomError('no.\\nnext')", 1,
         "legroom: no.\n         next\n"),
        ("import legroom; raise legroom.UnsupportedModelError('odd')", 1,
         "legroom: odd\n         More: legroom explain UnsupportedModelError\n"),
        ("import legroom; raise legroom.BadBudgetError('too much')", 2,
         "legroom: too much\n         More: legroom explain BadBudgetError\n"),
        ("import legroom; raise legroom.CannotFitError('too big')", 3,
         "legroom: too big\n         More: legroom explain CannotFitError\n"),
        ("raise KeyboardInterrupt", 130, ""),
        ("raise SystemExit(9)", 9, ""),
        ("import click; raise click.exceptions.Exit(4)", 4, ""),
    ],
)  # fmt: skip
def test_errors_become_messages(tmp_path: Path, body: str, status: int, errors: str) -> None:
    done = command(tmp_path, body)
    assert (done.returncode, done.stderr) == (status, errors)


def test_other_errors_are_ours_and_shown_whole(tmp_path: Path) -> None:
    done = command(tmp_path, "raise ZeroDivisionError('a bug')")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ZeroDivisionError: a bug\n")


def test_commands_are_found_by_their_file(tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(
        "import click\n@click.command()\ndef sweep() -> None:\n    '''Many at once.'''\n"
    )
    code = (
        "import sys, legroom.cli\n"
        f"legroom.cli.__path__.insert(0, {str(tmp_path)!r})\n"
        "from legroom.cli.main import main\n"
        "sys.argv = ['legroom', '--help']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Many at once." in done.stdout
    assert "Run a script" in done.stdout


@pytest.mark.parametrize("name", [None, *_legroom.list_commands(click.Context(_legroom))])
def test_help_fits_one_screen_and_its_examples_can_be_read(name: str | None) -> None:
    arguments = [] if name is None else [name]
    said = CliRunner().invoke(_legroom, [*arguments, "--help"], terminal_width=80).output
    assert len(said.splitlines()) <= 32
    assert max(map(len, said.splitlines())) <= 80
    command = None if name is None else _legroom.get_command(click.Context(_legroom), name)
    if command is None:
        return
    assert isinstance(command, Command)
    for example in command.examples:
        _, _, line = example.partition(f"legroom {name}")
        words = shlex.split(line.split("  ")[0].split(" > ")[0])
        command.make_context(name, words)


def test_help_is_quick_and_needs_no_framework() -> None:
    code = (
        "import atexit, sys, time\n"
        "sys.argv = ['legroom', '--help']\n"
        "heavy = ('keras', 'tensorflow', 'numpy', 'jax', 'torch')\n"
        "found = lambda: [name for name in heavy if name in sys.modules]\n"
        "atexit.register(lambda: print(time.process_time(), found()))\n"
        "from legroom.cli.main import main\n"
        "main()\n"
    )
    seconds = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        spent, found = done.stdout.splitlines()[-1].split(maxsplit=1)
        seconds.append(float(spent))  # its own, whatever else runs here
        assert found == "[]"
    assert min(seconds) < 0.3
