"""The process of one trial: guarded, capped, kept in snapshots; it runs `train(config)`.

Run as a file, by `legroom.sweeps.trials.process`. The function comes pickled through a file without
a name, so nothing that could run code is ever read from a disk. What came of it goes back the same
way, as JSON.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import mmap
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legroom.core.events import Event
    from legroom.sweeps.trials.process import TrialOptions
    from legroom.sweeps.trials.trial import Answer

__all__ = ["main"]


def main() -> None:
    """Read the function and its config, run it, and write down what came of it."""
    told = sys.argv[1]
    sys.path[:] = json.loads(told)["path"]
    if importlib.util.find_spec("legroom") is None:
        sys.path.append(str(Path(__file__).parents[3]))
    from legroom.core.process.lifeline import end_with
    from legroom.sweeps.trials.process import TrialOptions

    options = TrialOptions.from_json(told)
    end_with(options.parent)
    sys.argv[:] = [""]
    answer = _run(options)
    with os.fdopen(options.answer, "wb") as file:
        file.write(answer.to_json().encode())
    sys.stdout.flush()
    if answer.outcome != "returned":
        sys.exit(1)


def _run(options: TrialOptions) -> Answer:
    from legroom.machine.process import peak_resident_bytes
    from legroom.supervisor.guarded import guard_process
    from legroom.sweeps.trials.trial import Answer, readable
    from legroom.sweeps.trials.verdicts import NEEDS_MORE, needs_more

    def leave(event: Event) -> None:
        """Before a batch is cut because the cap is small: a larger one can be had."""
        if options.cap is not None and needs_more(event, options.cap):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(NEEDS_MORE)

    guard_process(options.child, options.script_folder, [leave] if options.may_ask else [])
    try:
        train, config = _sent(options.function), _sent(options.config)
        answer = Answer("returned", readable(train(config)))
    except BaseException as error:
        answer = _raised(error)
    return dataclasses.replace(answer, host_peak=peak_resident_bytes())


def _sent(handle: int) -> Any:
    """What the parent put into a file; other trials read it at the same time."""
    with mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as data:
        value = pickle.loads(data)
    os.close(handle)
    return value


def _raised(error: BaseException) -> Answer:
    from legroom.core.errors import CannotFitError
    from legroom.messages import diagnose_exception
    from legroom.sweeps.trials.trial import Answer

    trace = _trace(error)
    sys.stdout.flush()
    print(trace, file=sys.stderr, flush=True)
    line = traceback.format_exception_only(type(error), error)[0].strip()
    if isinstance(error, CannotFitError):
        need = error.needed_bytes
        return Answer(
            "raised", error=line, trace=trace, short=True, need_bytes=need, story=str(error)
        )
    diagnosis = diagnose_exception(error)
    short = bool(diagnosis.is_oom)
    return Answer("raised", error=line, trace=trace, short=short, story=diagnosis.story)


def _trace(error: BaseException) -> str:
    """The traceback from the user's own code on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


if __name__ == "__main__":
    main()
