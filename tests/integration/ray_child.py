"""A sweep on a real cluster of several Ray nodes on this machine: `CASE FOLDER`."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

import legroom

CASE, FOLDER = sys.argv[1], sys.argv[2]
MARKS = Path(sys.argv[3])


def steps(config):
    """Slow, and tells where it runs: its parent is a worker of Ray's."""
    mark = MARKS / f"{config['n']}-{os.getpid()}.json"
    mark.write_text(json.dumps({"n": config["n"], "worker": os.getppid()}))
    time.sleep(config["seconds"])
    return {"square": config["n"] ** 2}


def keras_training(config):
    import keras
    import numpy as np

    (MARKS / f"{config['n']}-{os.getpid()}.json").write_text(
        json.dumps({"n": config["n"], "worker": os.getppid()})
    )
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
    """The cluster's node that a worker belongs to, by its raylet."""
    import psutil

    above = psutil.Process(pid).parents()
    for node in cluster.worker_nodes:
        raylet = node.all_processes["raylet"][0].process.pid
        if raylet in [one.pid for one in above]:
            return node
    raise AssertionError(f"worker {pid} is of no node")


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
    newest = max(MARKS.glob(f"{which}-*.json"), key=lambda path: path.stat().st_mtime)
    lost = json.loads(newest.read_text())
    cluster.remove_node(node_of(lost["worker"]), allow_graceful=False)
    told["lost"] = lost["n"]


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
