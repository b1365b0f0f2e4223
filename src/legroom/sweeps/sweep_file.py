"""What a sweep of a script is, read from a TOML file; and a script as what a sweep trains.

script = "train.py"
memory = "8GiB"

[fixed]                     # for all trials
epochs = 20

[grid]                      # every combination of these
units = [64, 128]
batch-size = [32, 256]

[[list]]                    # or these sets, one after the other; each with the whole grid
optimizer = "adam"
[[list]]
optimizer = "sgd"

[random]                    # drawn, `draws` times for each of the others
lr = { low = 1e-4, high = 1e-1, log = true }
layers = { low = 1, high = 4 }
activation = ["relu", "gelu"]
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from legroom.core.errors import LegroomError
from legroom.sweeps.opening import Settings

__all__ = ["Configs", "ScriptTraining", "SweepFile", "arguments_of", "read_sweep_file"]

_TABLES = ("fixed", "grid", "list", "random")
_SETTINGS = ("memory", "workers", "folder", "time_limit", "exact", "seed")
_KEYS = ("script", "draws", *_SETTINGS, *_TABLES)
_LAST_LINES = 2**16


@dataclasses.dataclass(frozen=True)
class SweepFile:
    """A sweep as a file has it.

    Attributes:
        script: The script.
        configs: What each trial is trained with.
        settings: All the rest.
    """

    script: Path
    configs: Configs
    settings: Settings


class Configs:
    """The configs of a sweep, made as they are asked for.

    Args:
        fixed: What all have in common.
        grid: Names and their values: every combination.
        listed: Sets of names and values, one after the other.
        drawn: Names, and what their values are drawn from.
        draws: How often, for each of the others.
        seed: What the draws begin with.
    """

    def __init__(
        self,
        fixed: Mapping[str, Any],
        grid: Mapping[str, Sequence[Any]],
        listed: Sequence[Mapping[str, Any]],
        drawn: Mapping[str, Any],
        draws: int = 1,
        seed: int = 0,
    ) -> None:
        self._fixed = fixed
        self._grid = grid
        self._listed = listed or [{}]
        self._drawn = drawn
        self._draws = draws
        self._seed = seed

    def __len__(self) -> int:
        return len(self._listed) * math.prod(map(len, self._grid.values())) * self._draws

    def __iter__(self) -> Iterator[dict[str, Any]]:
        points = itertools.product(
            self._listed, itertools.product(*self._grid.values()), range(self._draws)
        )
        for number, (listed, values, _) in enumerate(points):
            numbers = random.Random(f"{self._seed}/{number}")
            yield {
                **self._fixed,
                **listed,
                **dict(zip(self._grid, values, strict=True)),
                **{name: _draw(numbers, kind) for name, kind in self._drawn.items()},
            }


@dataclasses.dataclass(frozen=True)
class ScriptTraining:
    """A script as what a sweep trains: it is run with a config as its options.

    If the last line of its output that is a JSON object tells the result, so it is.

    Attributes:
        script: The script's path.
        code: A fingerprint of its code.
    """

    script: str
    code: str

    def __call__(self, config: Mapping[str, Any]) -> Any:
        """Run the script in this process, as ``__main__``."""
        from legroom.core.process.main_script import run_as_main

        begin = os.fstat(1).st_size
        try:
            run_as_main([self.script, *arguments_of(config)])
        except SystemExit as left:
            if left.code not in (None, 0):
                raise
        sys.stdout.flush()
        return _last_object(begin)


def arguments_of(config: Mapping[str, Any]) -> list[str]:
    """A config as the options of a command: ``--units 64``; ``--amp`` for what is true."""
    words = []
    for name, value in config.items():
        if value is True:
            words.append(f"--{name}")
        elif isinstance(value, (list, tuple)):
            words += [f"--{name}", *map(str, value)]
        elif value is not False:
            words += [f"--{name}", str(value)]
    return words


def read_sweep_file(path: Path) -> SweepFile:
    """Read a sweep.

    Raises:
        LegroomError: If the file can't be read, or says what can't be.
    """
    data = _read(path)
    unknown = [key for key in data if key not in _KEYS]
    if unknown:
        raise _wrong(path, f"{unknown[0]!r} is not known. Known are: {', '.join(_KEYS)}")
    script = data.get("script")
    if not isinstance(script, str):
        raise _wrong(path, 'it needs a line like script = "train.py"')
    draws = data.get("draws", 1)
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise _wrong(path, f"draws must be a whole number, 1 or more. Received: {draws!r}")
    grid, drawn = _table(path, data, "grid"), _table(path, data, "random")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise _wrong(path, f"{name} in [grid] must be a list of values. Received: {values!r}")
    for name, kind in drawn.items():
        _check_draw(path, name, kind)
    if drawn and "draws" not in data:
        raise _wrong(path, "with a [random] table it must say how often: draws = 20")
    listed = data.get("list", [])
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise _wrong(path, "each set of the list must be a table of its own: [[list]]")
    settings = Settings(**{key: data[key] for key in _SETTINGS if key in data})
    if settings.folder is None:
        folder = path.absolute().parent / ".legroom" / f"sweep-{path.stem}"
        settings = dataclasses.replace(settings, folder=folder)
    configs = Configs(
        _table(path, data, "fixed"), grid, listed, drawn, draws if drawn else 1, settings.seed
    )
    return SweepFile(path.absolute().parent / script, configs, settings)


def _read(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return found
    except OSError as error:
        raise LegroomError(f"{path} can't be read: {error.strerror or error}") from error
    except ValueError as error:
        raise _wrong(path, str(error)) from error


def _table(path: Path, data: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise _wrong(path, f"{name} must be a table: [{name}]. Received: {table!r}")
    return table


def _check_draw(path: Path, name: str, kind: Any) -> None:
    if isinstance(kind, list) and kind:
        return
    if isinstance(kind, dict) and set(kind) <= {"low", "high", "log"}:
        low, high = kind.get("low"), kind.get("high")
        numbers = all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in (low, high))
        if numbers and low <= high and (low > 0 or not kind.get("log")):  # type: ignore[operator]
            return
    raise _wrong(
        path,
        f"{name} in [random] must be a list to choose from, or a range like "
        f"{{ low = 1e-4, high = 1e-1, log = true }}. Received: {kind!r}",
    )


def _draw(numbers: random.Random, kind: Any) -> Any:
    if isinstance(kind, list):
        return numbers.choice(kind)
    low, high = kind["low"], kind["high"]
    whole = isinstance(low, int) and isinstance(high, int)
    if kind.get("log"):
        value = math.exp(numbers.uniform(math.log(low), math.log(high)))
        return min(high, max(low, round(value))) if whole else value
    return numbers.randint(low, high) if whole else numbers.uniform(low, high)


def _last_object(begin: int) -> Any:
    """The last JSON object that was printed, where what is printed goes to a file."""
    try:
        size = os.fstat(1).st_size
        begin = max(begin, size - _LAST_LINES)
        text = os.pread(1, size - begin, begin).decode(errors="replace")
    except OSError:  # not a file that can be read
        return None
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


def _wrong(path: Path, why: str) -> LegroomError:
    return LegroomError(f"{path} is no sweep: {why}. See `legroom sweep --help` for an example.")
