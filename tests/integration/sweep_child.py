"""Sweeps of trials without a framework, as a user's script: the case and a folder as arguments."""

import json
import os
import random
import sys
import time
from pathlib import Path

import legroom

FOLDER = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()


def square(config):
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return {"square": config["n"] ** 2, "drawn": random.random()}


def moody(config):
    """Ends in every way there is."""
    how = config["how"]
    if how == "raises":
        raise ValueError("this config is wrong")
    if how == "exits":
        sys.exit("out of patience")
    if how == "leaves":
        os._exit(7)
    if how == "hangs":
        while True:
            time.sleep(1)
    if how == "crashes":
        os.abort()
    if how == "forks":
        if os.fork() == 0:
            time.sleep(1000)
            os._exit(0)
        return "left one behind"
    if how == "killed":
        first = FOLDER / f"killed-{config['n']}"
        if not first.exists():
            first.touch()
            os.kill(os.getpid(), 9)
        return "after a kill"
    if how == "killed always":
        os.kill(os.getpid(), 9)
    if how == "prints":
        print("out", "ä" * 10)
        print("err", file=sys.stderr)
        return json
    return how


def many():
    read = 0
    seconds = peak = None

    def configs():
        nonlocal read
        for read in range(100_000):
            yield {"n": read}

    class Begun(BaseException):
        pass

    def stop(event):
        nonlocal seconds, peak
        if event.name == "trial_started":
            seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
            raise Begun

    import tracemalloc

    from legroom.core.events import listening

    given = list(configs()) if sys.argv[3] == "list" else configs()
    tracemalloc.start()
    began = time.process_time()  # whatever else the machine does
    try:
        with listening(stop):
            legroom.sweep(square, given, memory="1GiB", folder=FOLDER / "many")
    except Begun:
        pass
    print(json.dumps({"seconds": seconds, "peak": peak, "read": read}))


def growing():
    """The memory of the sweep itself, after some trials and after many more."""
    few, most = int(sys.argv[3]), int(sys.argv[4])
    seen, ended = {}, 0

    def count(event):
        nonlocal ended
        if event.name == "trial_ended":
            ended += 1
            status = Path("/proc/self/status").read_text()
            files = len(os.listdir("/proc/self/fd"))
            seen[ended] = int(status.split("VmRSS:")[1].split()[0]), files

    from legroom.core.events import listening

    with listening(count):
        trials = legroom.sweep(
            square, ({"n": n} for n in range(most)), memory="1GiB", workers=4, folder=FOLDER
        )
    assert [trial.result["square"] for trial in trials] == [n**2 for n in range(most)]
    print(json.dumps({"few": seen[few], "many": seen[most]}))


def squares():
    trials = legroom.sweep(
        square, [{"n": n} for n in range(12)], memory="1GiB", folder=FOLDER / "kept"
    )
    print(json.dumps([trial.result for trial in trials]))


def moods():
    hows = ["fine", "raises", "exits", "leaves", "hangs", "crashes", "forks", "killed",
            "killed always", "prints"]  # fmt: skip
    trials = legroom.sweep(
        moody,
        [{"n": n, "how": how} for n, how in enumerate(hows)],
        memory="1GiB",
        workers=4,
        folder=FOLDER / "moods",
        time_limit=12,
    )
    print(
        json.dumps(
            {
                trial.config["how"]: [trial.status, trial.result, trial.error, trial.starts]
                for trial in trials
            }
        )
    )
    frameworks = ("keras", "numpy", "tensorflow", "torch")
    print(json.dumps([name for name in frameworks if name in sys.modules]))


if __name__ == "__main__":
    {"many": many, "growing": growing, "squares": squares, "moods": moods}[sys.argv[1]]()
