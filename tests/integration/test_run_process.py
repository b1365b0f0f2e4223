"""``legroom run`` is plain Python to the script: real processes, scripts without a framework."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path

import pytest

from legroom.report.run import RunReport

from .conftest import Place

LIKE_PLAIN_PYTHON = {
    "ends": ("print('done')", 0),
    "exits 7": ("import sys; sys.exit(7)", 7),
    "exits with a message": ("import sys; sys.exit('no data')", 1),
    "exits 3 by itself": ("raise SystemExit(3)", 3),
    "os._exit": ("import os; print('x', flush=True); os._exit(9)", 9),
    "raises": ("def f():\n    return {}['missing']\n\nf()\n", 1),
    "raises while handling": (
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('later')\n", 1,
    ),
    "raises a cause": (
        "def f():\n    try:\n        1 / 0\n    except Exception as e:\n"
        "        raise OSError(2, 'x') from e\nf()\n", 1,
    ),
    "does not parse": ("x = 1\nif x\n    pass\n", 1),
    "is no utf-8": ("# coding: latin-1\nprint(len('ä'))\n", 0),
    "interrupts itself": ("raise KeyboardInterrupt", -signal.SIGINT),
    "aborts": ("import os; os.abort()", -signal.SIGABRT),
    "is killed": ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    "crashes": ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
    "is terminated": ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
    "has its own excepthook": (
        "import sys, traceback\n"
        "def hook(kind, error, tb):\n"
        "    print('mine', kind, error, error.__traceback__ is tb, traceback.extract_tb(tb))\n"
        "sys.excepthook = hook\n"
        "raise ValueError(1)\n", 1,
    ),
    "fails in a thread": (
        "import threading\n"
        "t = threading.Thread(target=lambda: 1 / 0, name='worker'); t.start(); t.join()\n", 0,
    ),
    "goes on in a thread, then atexit": (
        "import atexit, threading, time\n"
        "atexit.register(print, 'atexit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "print('last line')\n", 0,
    ),
    "warns": ("import warnings\nwarnings.warn('careful')\n", 0),
    "prints to both": (
        "import sys\nfor i in range(3): print(i); print(-i, file=sys.stderr)\n", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "status"), LIKE_PLAIN_PYTHON.values(), ids=LIKE_PLAIN_PYTHON.keys()
)
def test_output_and_end_are_those_of_plain_python(same_as_plain, code: str, status: int) -> None:
    assert same_as_plain(code).returncode == status


def test_the_script_finds_itself_as_main(same_as_plain) -> None:
    done = same_as_plain(
        """
        import os, sys
        for name in sorted(globals()):
            value = globals()[name]
            print(name, type(value).__name__ if name == "__loader__" else value)
        print(__loader__.path, __loader__.name)
        print(sys.argv, sys.path, os.getcwd(), __name__)
        print(sys.modules["__main__"].__dict__ is globals())
        import inspect
        def f(): pass
        print(inspect.getsource(f), f.__module__)
        """,
        "--memory", "1", "-h", "--", "--version", "", "ä b",
    )  # fmt: skip
    assert "'script.py', '--memory', '1', '-h', '--', '--version', '', 'ä b'" in done.stdout


def test_a_script_elsewhere_by_link_imports_its_neighbours(place: Place) -> None:
    """As Python has it: neighbours of the real file, not of the link, not of the current folder."""
    place.write("print('the right one')", "far/neighbour.py")
    place.write("import neighbour, sys; print(sys.path, __file__)", "far/train.py")
    place.write("raise SystemExit('the wrong one')", "neighbour.py")
    (place.folder / "link.py").symlink_to(place.folder / "far/train.py")
    for script in ("far/train.py", "link.py", str(place.folder / "far/train.py")):
        plain, guarded = place.plain(script), place.legroom("run", script)
        assert guarded.stdout == plain.stdout
        assert guarded.stdout.startswith("the right one")
        assert guarded.returncode == 0


def test_modules_in_the_current_folder_are_not_imported(place: Place) -> None:
    """A `signal.py` beside the data must not end up in legroom or in the script."""
    for name in ("signal", "types", "json", "dataclasses", "psutil", "rich", "legroom", "typing"):
        place.write("raise SystemExit('imported from the current folder')", f"{name}.py")
    place.write("import json, dataclasses, signal; print('fine')", "far/train.py")
    done = place.legroom("run", "--json", "r.json", "far/train.py")
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)


def test_stdin_is_the_scripts(same_as_plain) -> None:
    done = same_as_plain("print(sum(int(input()) for _ in range(3)))", stdin="1\n2\n39\n")
    assert done.stdout == "42\n"


def test_spawned_workers_find_main(same_as_plain) -> None:
    done = same_as_plain(
        """
        import multiprocessing

        class Item:
            def __init__(self, value): self.value = value

        def double(item): return Item(item.value * 2)

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                print([item.value for item in pool.map(double, [Item(1), Item(2)])])
        """
    )
    assert done.stdout == "[2, 4]\n"


def test_pickles_of_main_are_read_by_plain_python_and_back(place: Place) -> None:
    place.write(
        """
        import pickle, sys
        class Item:
            value = 5
        if sys.argv[1] == "write":
            pickle.dump(Item(), open("item.pkl", "wb"))
        else:
            print(pickle.load(open("item.pkl", "rb")).value)
        """
    )
    assert place.legroom("run", "script.py", "write").returncode == 0
    assert place.plain("script.py", "read").stdout == "5\n"
    assert place.plain("script.py", "write").returncode == 0
    assert place.legroom("run", "script.py", "read").stdout == "5\n"


def test_neither_parent_nor_child_loads_a_framework(place: Place) -> None:
    place.write(
        """
        import os, sys
        heavy = ("keras", "tensorflow", "numpy", "jax", "torch", "rich", "click", "psutil")
        print("child", [name for name in heavy if name in sys.modules])
        maps = open(f"/proc/{os.getppid()}/maps").read()
        print("parent", [name for name in heavy[:5] if f"/{name}" in maps], "libc" in maps)
        """
    )
    done = place.legroom("run", "script.py")
    assert done.stdout == "child []\nparent [] True\n"


# What a guard would emit, so that the way to the table and the JSON can be seen without TensorFlow.
TRAINS = """
    from legroom.core.events import Planned, Progress, RanOut, TrainingStarted, emit
    emit(TrainingStarted(method="fit"))
    emit(RanOut("out of memory at dense: batch 256 now runs as 2 slices of 128", seconds=2.0))
    emit(Planned(batch_size=256, slice_size=128, slices=2, reason="oom", budget_bytes=10**9))
    emit(Progress(samples_seen=512, peak_bytes=9 * 10**8, batch_size=256))
"""


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("", 0),
        ("raise SystemExit(5)", 5),
        ("raise ValueError('user error')", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os._exit(4)", 4),
    ],
)
def test_the_report_comes_however_the_script_ends(place: Place, ending: str, status: int) -> None:
    place.write(TRAINS + "    " + ending)
    done = place.legroom("run", "--json", "report.json", "script.py", TMPDIR=str(place.folder))
    assert done.returncode == status
    assert done.stdout == ""
    assert "legroom: out of memory at dense: batch 256 now runs as 2 slices of 128" in done.stderr
    assert "256 as 2 slices of 128" in done.stderr.splitlines()[-4]
    report = RunReport.from_json((place.folder / "report.json").read_text())
    assert (report.ooms, report.slice_size, report.samples_seen) == (1, 128, 512)
    assert [path.name for path in place.folder.iterdir() if "legroom" in path.name] == []


def test_training_that_goes_on_in_a_thread_is_reported(place: Place) -> None:
    place.write(
        """
        import threading, time
        from legroom.core.events import Progress, emit
        def train():
            time.sleep(0.3)
            emit(Progress(batch_size=4))
        threading.Thread(target=train).start()
        """
    )
    place.legroom("run", "--json", "report.json", "script.py")
    assert json.loads((place.folder / "report.json").read_text())["batch_size"] == 4


def test_without_training_there_is_a_report_but_no_table(place: Place) -> None:
    place.write("print('no training here')")
    done = place.legroom("run", "--json", "report.json", "script.py")
    assert done.stderr == ""
    report = RunReport.from_json((place.folder / "report.json").read_text())
    assert [event.name for event in report.events] == ["run_started", "run_ended"]
    assert dataclasses.replace(report, events=()) == RunReport()


def test_a_report_that_can_not_be_written_does_not_change_the_end(place: Place) -> None:
    place.write("import os; os.rmdir('reports'); raise SystemExit(7)")
    (place.folder / "reports").mkdir()
    done = place.legroom("run", "--json", "reports/r.json", "script.py")
    assert done.returncode == 7
    assert "The report could not be written to reports/r.json" in done.stderr


def test_cannot_fit_is_a_message_and_exit_code_3(place: Place) -> None:
    place.write(
        """
        import atexit
        from legroom import CannotFitError
        atexit.register(print, "atexit")
        try:
            raise RuntimeError("inner")
        except RuntimeError as error:
            raise CannotFitError("One sample needs 3.00 GB.\\nThe budget is 1.00 GB.") from error
        """
    )
    done = place.legroom("run", "script.py")
    assert done.returncode == 3
    assert done.stderr == ("legroom: One sample needs 3.00 GB.\n         The budget is 1.00 GB.\n")
    assert done.stdout == "atexit\n"


def test_cannot_fit_that_the_script_handles_is_its_own(same_as_plain) -> None:
    same_as_plain(
        "import legroom\ntry: raise legroom.CannotFitError('x')\nexcept legroom.CannotFitError: 0"
    )


SHOW_CAPS = """
    import os
    names = ("LEGROOM_MEMORY", "TF_CPU_BFC_MEM_LIMIT_IN_MB", "TF_ENABLE_ONEDNN_OPTS")
    print(*(os.environ.get(name) for name in names))
"""


@pytest.mark.parametrize(
    ("options", "env", "shown"),
    [
        ([], {}, "None None None\n"),
        (["--memory", "100MiB"], {}, f"{100 * 2**20} 100 0\n"),
        (["--memory=100MiB", "--keep-onednn"], {}, f"{100 * 2**20} 100 None\n"),
        ([], {"LEGROOM_MEMORY": "64MiB"}, f"{64 * 2**20} 64 0\n"),
        (["--memory", "100MiB"], {"LEGROOM_MEMORY": "nonsense"}, f"{100 * 2**20} 100 0\n"),
    ],
)
def test_a_cap_is_in_the_scripts_environment(
    place: Place, options: list[str], env: dict[str, str], shown: str
) -> None:
    place.write(SHOW_CAPS)
    env = {"CUDA_VISIBLE_DEVICES": "-1", **env}
    done = place.legroom("run", *options, "script.py", **env)
    assert (done.stdout, done.stderr) == (shown, "")


@pytest.mark.parametrize(
    ("command", "env", "message"),
    [
        (["run"], {}, "Missing argument 'SCRIPT'"),
        (["run", "missing.py"], {}, "There is no file missing.py"),
        (["run", "."], {}, "is a folder"),
        (["run", "book.ipynb"], {}, "%load_ext legroom"),
        (["run", "--nonsense", "script.py"], {}, "No such option"),
        (["run", "--json", "no/such/folder/r.json", "script.py"], {}, "can't be written"),
        (["run", "--json", ".", "script.py"], {}, "can't be written"),
        (["run", "--memory", "8 apples", "script.py"], {}, "Received: '8 apples'"),
        (["run", "--memory", "nan", "script.py"], {}, "Received: 'nan'"),
        (["run", "--memory", "0", "script.py"], {}, "above zero"),
        (["run", "--memory", "-1GiB", "script.py"], {}, "Received: '-1GiB'"),
        (["run", "--memory", "101%", "script.py"], {}, "More than 100 %"),
        (["run", "--memory", "900TiB", "script.py"], {}, "more than this machine has"),
        (["run", "--memory", "1MiB", "script.py"], {}, "Give at least 32.0 MiB"),
        (["run", "script.py"], {"LEGROOM_MEMORY": "lots"}, "Received: 'lots'"),
        (["run", "script.py"], {"TF_USE_LEGACY_KERAS": "1"}, "Keras 2 (tf_keras)"),
        (["nonsense"], {}, "No such command"),
    ],
)
def test_what_can_not_be_used_is_said_before_the_script_starts(
    place: Place, command: list[str], env: dict[str, str], message: str
) -> None:
    place.write("print('started')")
    done = place.legroom(*command, **env)
    text = " ".join(line.strip("│ ") for line in done.stderr.splitlines())
    assert message in text
    assert "Traceback" not in done.stderr
    assert (done.stdout, done.returncode) == ("", 2)


def test_help_and_version(place: Place) -> None:
    done = place.legroom("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "legroom")
    done = place.legroom("run", "--help")
    assert done.returncode == 0
    for option in ("--memory", "--exact", "--keep-onednn", "--json", "LEGROOM_MEMORY"):
        assert option in done.stdout


def test_python_m_legroom_from_a_source_folder(place: Place) -> None:
    """Where legroom is found by the current folder only, the child finds it too."""
    source = Path(__file__).parents[2] / "src" / "legroom"
    (place.folder / "legroom").symlink_to(source)
    place.write("import legroom; print(legroom.__file__)")
    done = place.plain("-m", "legroom", "run", "script.py")
    assert done.stdout == f"{place.folder / 'legroom' / '__init__.py'}\n"


def test_a_report_never_overwrites_a_script(place: Place) -> None:
    script = place.write("print('trained')", "train.py")
    place.write("print('other')", "other.py")
    done = place.legroom("run", "--json", "train.py", "other.py")
    assert done.returncode == 2
    assert "--json report.json train.py" in " ".join(done.stderr.replace("│", " ").split())
    assert script.read_text() == "print('trained')"
