"""A sweep on a real cluster of several Ray nodes on this machine: `CASE FOLDER`."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import ray
from ray.cluster_utils import Cluster

import legroom

CASE, FOLDER = sys.argv[1], sys.argv[2]
MARKS = Path(sys.argv[3])


def mark(n):
    """Tell where a trial runs, in one go: its parent is a worker of Ray's."""
    path = MARKS / f"{n}-{os.getpid()}.json"
    written = path.with_suffix(".part")
    written.write_text(json.dumps({"n": n, "worker": os.getppid()}))
    written.rename(path)


def steps(config):
    """Slow."""
    mark(config["n"])
    time.sleep(config["seconds"])
    return {"square": config["n"] ** 2}


def keras_training(config):
    import keras
    import numpy as np

    mark(config["n"])
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
    model = keras.Sequential([keras.layers.Dense(16), keras.layers.Dense(1)])
    model.compile("adam", "mse")

    class Slow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.5)

    history = model.fit(x, x[:, :1], batch_size=32, epochs=16, verbose=2, callbacks=[Slow()])
    return {"loss": history.history["loss"]}


def marks():
    return [json.loads(path.read_text()) for path in sorted(MARKS.glob("*.json"))]


def node_of(pid):
    """The cluster's node that a worker belongs to, by its raylet; None where it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        above = [one.pid for one in psutil.Process(pid).parents()]
        for node in cluster.worker_nodes:
            if node.all_processes["raylet"][0].process.pid in above:
                return node
    return None


def wait_for(what):
    until = time.monotonic() + 200
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def alive():
    return len([node for node in ray.nodes() if node["Alive"]])


def break_things():
    """Kill a worker; then take a node away that works. In a thread, while the sweep runs."""
    if CASE == "steps":
        worker = wait_for(marks)[0]["worker"]
        os.kill(worker, signal.SIGKILL)
        told["killed"] = worker
        wait_for(lambda: len(marks()) >= 4)
        which = "*"
    else:
        shared = Path(FOLDER.removeprefix("file://"))
        snapshot = wait_for(lambda: list(shared.glob("trials/*/snapshots/*.snapshot")))[0]
        which = int(snapshot.parts[-3])  # the trial that has one to go on from

    def working():
        newest = max(MARKS.glob(f"{which}-*.json"), key=lambda path: path.stat().st_mtime)
        found = json.loads(newest.read_text())
        return (node := node_of(found["worker"])) and (node, found["n"])

    node, told["lost"] = wait_for(working)
    cluster.remove_node(node, allow_graceful=False)


if __name__ == "__main__":
    told = {}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(2):
        cluster.add_node(num_cpus=1, memory=2 * 2**30, object_store_memory=10**8)
    ray.init(address=cluster.address, log_to_driver=False)
    breaking = threading.Thread(target=break_things, daemon=True)
    breaking.start()
    if CASE == "steps":
        train, configs = steps, [{"n": n, "seconds": 3.0} for n in range(5)]
    else:
        train, configs = keras_training, [{"n": n} for n in range(2)]
    trials = legroom.sweep(train, configs, engine="ray", folder=FOLDER)
    told["trials"] = [trial.to_dict() for trial in trials]
    told["marks"] = [mark["n"] for mark in marks()]
    breaking.join(60)
    # The head may notice later than the task's owner that a node is gone.
    told["nodes"] = wait_for(lambda: alive() < 3 and alive())
    # Not printed: Ray prints, too.
    MARKS.with_suffix(".json").write_text(json.dumps(told))
    ray.shutdown()
    cluster.shutdown()
