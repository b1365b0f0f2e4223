"""Hand-written loops that go on where a killed process was: `legroom.resumable`.

A loop of the user's own can't be seen from outside. Where it says what it changes (`state=`) and
takes its batches from here, all is known that is needed: between two batches the state is
consistent, and the number of batches is the place.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from legroom.backends.base import current, named
from legroom.backends.inputs import Batches
from legroom.core.errors import SnapshotError
from legroom.core.events import Note, Resumed, emit
from legroom.guarding import wording
from legroom.guarding.resuming.stopping import Stopping
from legroom.snapshots import attributes
from legroom.snapshots.fingerprint import data_fingerprint, differences
from legroom.snapshots.format import Content
from legroom.snapshots.randomness import randomness, set_randomness
from legroom.snapshots.run import SnapshotRun
from legroom.snapshots.values import decode, encode, moved, put_in_place

__all__ = ["KeptLoop", "as_state"]


class KeptLoop:
    """One pass over a data set.

    Args:
        run: The run that it belongs to.
        dataset: Anything that can be iterated over.
        state: What the loop changes, by name; read again whenever it is kept.
    """

    def __init__(self, run: SnapshotRun, dataset: Any, state: dict[str, Any]) -> None:
        self._run = run
        self._dataset = dataset
        self._state = state
        self._number = run.next_training()
        parts = list(state.values())
        if any(map(current().state.is_replaced, parts)):
            parts = [state]  # which the loop puts new ones into
        self._loop = run.loop_of(self._number, parts)
        self._source: Batches | None = None
        self._parts = {
            "the data": data_fingerprint(dataset),
            "the names in state": ", ".join(self._state),
        }

    def __iter__(self) -> Iterator[Any]:
        kept = self._kept()
        done = 0
        if kept is not None:
            self._restore(kept)
            done = kept.values["done"]
        if self._over(kept):
            if hasattr(self._dataset, "element_spec"):
                iter(self._dataset)  # the order of a tf.data shuffle is drawn for each pass
            return
        stopping = Stopping()
        before = self._run.training
        self._run.training = self._number
        try:
            with stopping.listening():
                yield from self._batches(kept, done, stopping)
                self._write(None, finished=True)
                if stopping.asked is not None:
                    self._run.wait()
        finally:
            self._run.training = before

    def _batches(self, kept: Content | None, done: int, stopping: Stopping) -> Iterator[Any]:
        arrays: list[Any] = []
        if kept is not None:
            set_randomness(kept.values["pass_randomness"], kept.arrays)
        self._pass_randomness = (randomness(arrays), arrays)
        place = None if kept is None else kept.values.get("place")
        if kept is not None and place is not None:
            place = decode(place, kept.arrays)
        source = self._from(done, place)
        if kept is not None:
            # On the way to the place data may have drawn.
            set_randomness(kept.values["randomness"], kept.arrays)
            current().state.set_seeds(kept.values["seeds"], kept.arrays)
        for batch in source:
            stopping.waiting_pays = True
            yield batch
            done += 1
            if stopping.asked is not None or self._run.due(epoch_ended=False):
                asked = stopping.asked
                self._write(done, at_once=asked is not None)
                if asked is not None:
                    emit(Note(wording.stopped(self._number + 1, done), signal=int(asked)))
                    stopping.answer()

    def _from(self, done: int, place: Any) -> Iterator[Any]:
        """The batches from a place on: by their number where that can be, else passed over."""
        dataset = self._dataset
        keras = _keras()
        if (
            keras is not None
            and isinstance(dataset, keras.utils.PyDataset)
            and dataset.num_batches is not None
        ):
            return (dataset[i] for i in range(done, dataset.num_batches))
        if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
            return (dataset[i] for i in range(done, len(dataset)))
        if done and hasattr(dataset, "element_spec"):
            begun = named("tensorflow").streams.started_at(dataset, done)
            if begun is not None:
                return begun
        self._source = current().passages.begin(dataset, place, done)
        return iter(self._source)

    def _kept(self) -> Content | None:
        kept = self._run.result(self._number) or self._run.newest(self._number)
        if kept is None:
            # This pass had ended, if a later one is known: only the newest state is kept of a loop.
            # It is put in place here, so that whatever runs between the passes sees it and not the
            # beginning.
            kept = self._run.newest_after(self._number, self._loop)
            if kept is None or kept.values.get("names") != sorted(self._state):
                return None
            kept.values["done"] = None
            return kept
        told = differences(kept.values["fingerprint"], self._parts)
        if told:
            self._run.start_anew(self._number, wording.another_training(self._number + 1, told))
            return None
        return kept

    @staticmethod
    def _over(kept: Content | None) -> bool:
        return kept is not None and kept.values["done"] is None

    def _write(self, done: int | None, *, finished: bool = False, at_once: bool = False) -> None:
        def collect(arrays: list[Any]) -> dict[str, Any]:
            values: dict[str, Any] = {
                "training": self._number,
                "loop": self._loop,
                "fingerprint": self._parts,
                "names": sorted(self._state),
                "done": None if finished else done,
                "at": time.time(),
                "state": {name: _taken(name, part, arrays) for name, part in self._state.items()},
                "seeds": current().state.seeds(arrays),
                "randomness": randomness(arrays),
            }
            taken, own = self._pass_randomness
            by = len(arrays)
            arrays.extend(own)
            values["pass_randomness"] = moved(taken, by)
            place = None
            if self._source is not None:
                place = self._source.left() if finished else self._source.place()
            values["place"] = None if place is None else encode(place, arrays)
            return values

        self._run.write(self._number, collect, finished=finished, at_once=at_once, step=done)
        if finished:
            if self._run.last_pass is not None and self._run.last_pass >= self._loop:
                self._run.forget(self._run.last_pass)
            self._run.last_pass = self._number

    def _restore(self, kept: Content) -> None:
        values = kept.values
        if values["training"] == self._run.restored != self._number:
            return  # a later pass, put in place by the one before this
        for name, part in list(self._state.items()):
            self._state[name] = _put(part, values["state"][name], kept.arrays, self._state)
        current().state.set_seeds(values["seeds"], kept.arrays)
        set_randomness(values["randomness"], kept.arrays)
        self._run.restored = values["training"] if values["done"] is None else None
        if values["done"] is None and values["training"] == self._number and values["place"]:
            current().passages.leave(self._dataset, decode(values["place"], kept.arrays))
        if values["done"] is not None:
            text = wording.resumed_loop(self._number + 1, values["done"], values["at"])
            emit(Resumed(text, training=self._number, step=values["done"]))


def _keras() -> Any:
    """Keras, where the script uses it: a loop in plain PyTorch does not."""
    keras = sys.modules.get("keras")
    return keras if hasattr(keras, "Model") else None


def _variables(part: Any) -> list[tuple[str, Any]] | None:
    """The variables of a part of the state; None for other things than Keras's."""
    keras = _keras()
    if keras is not None:
        if isinstance(part, keras.Model):
            return current().state.training_variables(part)
        if isinstance(part, (keras.Layer, keras.Metric, keras.optimizers.Optimizer)):
            return [("own", variable) for variable in part.variables]
        if isinstance(part, keras.random.SeedGenerator):
            return [("own", part.state)]
    if hasattr(part, "assign") and hasattr(part, "numpy"):
        return [("own", part)]
    return None


def _taken(name: str, part: Any, arrays: list[Any]) -> Any:
    variables = _variables(part)
    if variables is not None:
        return {"variables": current().state.HostCopies().read(variables, arrays)}
    before = len(arrays)
    with contextlib.suppress(TypeError):  # Unstorable, too
        if (own := current().state.take(part)) is not None:
            return {"own": encode(own, arrays)}
        return {"value": encode(part, arrays)}
    del arrays[before:]
    if isinstance(part, (list, tuple)):
        return {"parts": [_taken(f"{name}[{i}]", x, arrays) for i, x in enumerate(part)]}
    if isinstance(part, dict) and all(isinstance(key, str) for key in part):
        return {"parts": {key: _taken(f"{name}.{key}", x, arrays) for key, x in part.items()}}
    if not hasattr(part, "__dict__") or hasattr(part, "state_dict"):
        raise SnapshotError(
            f"legroom.resumable can't keep state[{name!r}]: expected a model, an optimizer, "
            "metrics, variables, something with a state_dict of plain values, or lists and dicts "
            f"of these. Received: {type(part).__name__}"
        )
    return {"attributes": attributes.capture(part, arrays)}


def _put(part: Any, kept: Any, arrays: list[Any], state: Mapping[str, Any]) -> Any:
    """Put back what was taken of a part; returns what stands in its place from now on."""
    if "variables" in kept:
        _put_variables(part, kept["variables"], arrays, state)
    elif "own" in kept:
        made = current().state.put(part, decode(kept["own"], arrays))
        return part if made is None else made
    elif "parts" in kept:
        entries = enumerate(part) if isinstance(part, (list, tuple)) else list(part.items())
        known = dict(enumerate(kept["parts"])) if isinstance(kept["parts"], list) else kept["parts"]
        for key, inner in entries:
            if key in known:
                new = _put(inner, known[key], arrays, state)
                if new is not inner and not isinstance(part, tuple):
                    part[key] = new
    elif "attributes" in kept:
        attributes.restore(part, kept["attributes"], arrays)
    else:
        return put_in_place(part, decode(kept["value"], arrays))
    return part


def _put_variables(
    part: Any, table: list[list[Any]], arrays: list[Any], state: Mapping[str, Any]
) -> None:
    keras = _keras()
    if keras is not None and isinstance(part, keras.optimizers.Optimizer) and not part.built:
        part.build(_trained_by(state))
    variables = _variables(part) or []
    if len(variables) < len(table) and keras is not None and isinstance(part, keras.Model):
        _build_optimizers(part)
        variables = _variables(part) or []
    current().state.write_variables(variables, table, arrays)


def _trained_by(state: Mapping[str, Any]) -> list[Any]:
    """What an optimizer that was not used yet trains: the models beside it."""
    keras = _keras()
    return [
        variable
        for part in state.values()
        if isinstance(part, (keras.Model, keras.Layer))
        for variable in part.trainable_variables
    ]


def _build_optimizers(model: Any) -> None:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)


def as_state(state: Any) -> dict[str, Any]:
    """A state by name, however it was given; a dict stays the loop's own."""
    if type(state) is dict and all(isinstance(name, str) for name in state):
        return state
    if isinstance(state, Mapping):
        return {str(name): part for name, part in state.items()}
    if isinstance(state, Iterable) and isinstance(state, (list, tuple)):
        return {str(number): part for number, part in enumerate(state)}
    return {"state": state}
