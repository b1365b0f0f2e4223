"""Where a run is kept."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from legroom.supervisor.place import default_folder, newest_folder

ARGUMENTS = st.lists(st.text(max_size=300), min_size=1, max_size=5)


def test_a_script_without_arguments_has_a_folder_of_its_name(tmp_path: Path) -> None:
    assert default_folder(tmp_path / "train.py") == tmp_path / ".legroom" / "train.py"


def test_arguments_can_be_read_in_the_name(tmp_path: Path) -> None:
    folder = default_folder(tmp_path / "train.py", ("--lr", "0.1", "data/photos"))
    assert folder.parent == tmp_path / ".legroom"
    assert folder.name.startswith("train.py-lr-0.1-data-photos-")


@given(one=ARGUMENTS, other=ARGUMENTS)
def test_each_has_its_own_and_a_name_that_any_system_takes(
    one: list[str], other: list[str]
) -> None:
    names = [default_folder(Path("train.py"), arguments).name for arguments in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    for name in names:
        assert not set(name) & set('/\\:*?"<>|\0 ')
        assert len(os.fsencode(name)) < 200


def test_the_newest_run_of_a_script_whatever_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    assert newest_folder(script) == default_folder(script)
    folders = [default_folder(script), default_folder(script, ("a",)), default_folder(script, "b")]
    for age, folder in enumerate(reversed(folders)):
        folder.mkdir(parents=True)
        os.utime(folder, (age, age))
    (tmp_path / ".legroom" / "other.py").mkdir()
    assert newest_folder(script) == folders[0]
