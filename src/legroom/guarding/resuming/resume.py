"""A `fit` that is kept in snapshots, and goes on where a killed process was.

The script runs again from its top. A training that had finished returns what it had returned, with
its weights; the one that was interrupted goes on with its very next batch. Keras's own `fit` runs
in each case: it is told the epoch to begin with, its data is moved to its place, and before the
first batch all that the training had changed is put back.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

import keras

from legroom.backends.base import current
from legroom.backends.places import Batches, Epochs, Position
from legroom.core.aside import in_a_line, say_left_out
from legroom.core.errors import SnapshotError
from legroom.core.events import Note, Resumed, emit
from legroom.guarding import wording
from legroom.guarding.resuming.fit_hook import Hook, as_list, with_hook
from legroom.guarding.resuming.kept_sequence import KeptSequence
from legroom.guarding.resuming.random_numbers import RandomNumbers, set_unmoved
from legroom.guarding.resuming.stopping import Stopping
from legroom.machine.memory import held_back, host_available
from legroom.snapshots import attributes
from legroom.snapshots.callbacks import before_training, capture_callbacks, restore_callbacks
from legroom.snapshots.code import imported_code
from legroom.snapshots.fingerprint import differences, training_fingerprint
from legroom.snapshots.format import Content
from legroom.snapshots.randomness import randomness, set_randomness
from legroom.snapshots.run import SnapshotRun
from legroom.snapshots.values import decode, encode, moved

__all__ = ["KeptFit"]


class _Replayed(BaseException):
    """The training had finished: Keras's `fit` is left before it begins."""


class KeptFit:
    """One call of `fit`, kept in snapshots.

    Args:
        run: The run that it belongs to.
        model: The model.
        call: Keras's own `fit` with all its arguments.
        report: Has the steps say how far they are, before a snapshot is taken.
    """

    def __init__(
        self,
        run: SnapshotRun,
        model: Any,
        call: functools.partial[Any],
        report: Callable[[], None] = lambda: None,
    ) -> None:
        self._run = run
        self._model = model
        self._fit = call.func
        bound = inspect.signature(call.func).bind(*call.args, **call.keywords)
        bound.apply_defaults()
        self._arguments = dict(bound.arguments)
        self._own = next(iter(self._arguments))  # `self`, whatever it is called
        self._report = report
        self._training = run.next_training()
        self._callbacks = as_list(self._arguments.get("callbacks"))
        self._stopping = Stopping()
        self._kept: Content | None = None
        self._finished = False
        self._unkept = False
        self._first_epoch: int | None = None
        self._epoch = 0
        self._epochs: Epochs | None = None
        self._sequence: KeptSequence | None = None
        self._backend = current()
        self._copies = self._backend.state.HostCopies()
        self._iterator_randomness: tuple[Any, list[Any]] | None = None
        self.order_seed = run.seed + self._training

    @property
    def training(self) -> int:
        """The number of the training in its run."""
        return self._training

    @property
    def lean(self) -> bool:
        """Whether the host's memory is known to be short."""
        return self._run.lean

    @property
    def waits(self) -> bool:
        """Whether something is to be put back before the first batch."""
        return self._kept is not None

    @property
    def trains(self) -> bool:
        """Whether the training has begun, and Keras does not only look at the data."""
        return self._first_epoch is not None

    def __call__(self) -> Any:
        """Train, or go on, or return what was."""
        # Before the data is touched: what it was when the training began is what counts.
        try:
            self._parts = self._fingerprint()
        except Exception as error:
            say_left_out(wording.not_kept(), in_a_line(error))
            return self._fit(**self._arguments)
        self._run.training = self._training
        with held_back(self._copy_bytes()) as self._reserve:
            return self._go()

    def _fingerprint(self) -> dict[str, Any]:
        folder = self._run.script_folder
        return {
            **training_fingerprint(self._model, self._arguments),
            **({} if folder is None else imported_code(folder)),
        }

    def _go(self) -> Any:
        try:
            kept = self._run.result(self._training)
            if kept is not None and self._same(kept):
                return self._replay(kept)
            if kept is None:
                kept = self._run.newest(self._training)
                if kept is not None and self._same(kept):
                    self._kept = kept
                    self.order_seed = kept.values["order_seed"]
            return self._train()
        finally:
            self._run.training = None

    def _copy_bytes(self) -> int:
        """The host memory that a snapshot takes while it is written."""
        exact = self._backend.state.state_bytes(self._backend.state.training_variables(self._model))
        weights = self._backend.state.state_bytes(("", weight) for weight in self._model.weights)
        # Before the first step an optimizer has no slots yet; two for each weight is Adam's.
        return max(exact, 3 * weights)

    # What is kept of a training, and what becomes of it.

    def _same(self, kept: Content) -> bool:
        told = differences(kept.values["fingerprint"], self._parts)
        if told:
            self._run.start_anew(self._training, wording.another_training(self._training + 1, told))
        return not told

    def _train(self) -> Any:
        arguments = dict(self._arguments)
        hook = Hook(self.train_begins, self.epoch_begins)
        arguments["callbacks"] = with_hook(arguments["callbacks"], hook)
        self._stand_in(arguments)
        if self._kept is not None:
            arguments["initial_epoch"] = self._kept.values["epoch"]
            before_training(self._callbacks, self._kept.values["callbacks"])
        initial = self._model._initial_epoch
        try:
            with self._backend.epochs.watched(self), self._stopping.listening():
                history = self._fit(**arguments)
                self._stopping.waiting_pays = False
                self._finish()
                if self._stopping.asked is not None:
                    self._run.wait()
        finally:
            self._model._initial_epoch = initial
        return history

    def _replay(self, kept: Content) -> Any:
        """Return what a training that had finished has returned, with its weights."""
        self._kept, self._finished = kept, True
        arguments = {**self._arguments, "callbacks": [], "verbose": 0}
        self._stand_in(arguments)
        try:
            with self._backend.epochs.watched(self):
                self._fit(**arguments)
        except _Replayed:
            if hasattr(self._model, "eval"):  # on PyTorch, where `fit` leaves it so
                self._model.eval()
        if self._kept is not None:  # it had no batch at all to be left before
            self._restore(kept, [])
        file = self._run.folder.result(self._training).name
        text = wording.replayed(self._training + 1)
        emit(Resumed(text, training=self._training, finished=True, file=file))
        return self._model.history

    def _stand_in(self, arguments: dict[str, Any]) -> None:
        """Put a data set that can begin in the middle into the place of the user's own."""
        again = self._backend.epochs.shuffles_again()
        self._sequence = KeptSequence.instead_of(arguments, again, lean=self._run.lean)

    # Called by Keras, through the hook and through the data.

    def train_begins(self) -> None:
        """All callbacks have begun: the epoch to begin with is settled here."""
        if self._kept is not None:
            self._model._initial_epoch = self._kept.values["epoch"]

    def epoch_begins(self, epoch: int) -> None:
        """An epoch begins."""
        self._epoch = epoch
        if self._first_epoch is None:
            self._first_epoch = epoch

    def begin(self, epochs: Epochs) -> Position | None:
        """Where an epoch is to begin in its data."""
        self._epochs = epochs
        if self._first_epoch is None:
            return None  # Keras only looks at the data, to build the model
        position = None
        if self._sequence is not None:
            self._sequence.stand_in.ready()
        if self._kept is not None and not self._finished:
            values, arrays = self._kept.values, self._kept.arrays
            position = Position(**values["position"])
            if values["checkpoint"] is not None:
                position.checkpoint = decode(values["checkpoint"], arrays)
            set_randomness(values["iterator_randomness"], arrays)
            if position.consumed == 0:
                # Nothing was drawn since: not even by who was asked for an iterator.
                self._backend.state.set_seeds(values["seeds"], arrays)
            if self._sequence is not None and values["sequence"] is not None:
                self._sequence.seek(position, values["sequence"], arrays)
        if not epochs.goes_on():
            taken: list[Any] = []
            self._iterator_randomness = (randomness(taken), taken)
        return position

    def boundary(self, epochs: Epochs) -> None:
        """Between two batches: the moment for a snapshot, and to stop if that was asked for."""
        if self._first_epoch is None or self._kept is not None:
            return
        if self._unkept:
            self._stopping.answer()
            return
        self._stopping.waiting_pays = True
        step = epochs.position().step
        something_done = step > 0 or self._epoch > self._first_epoch
        epoch_ended = step == 0 and self._epoch > self._first_epoch
        asked = self._stopping.asked
        if not something_done and asked is None:
            return
        if asked is None and not self._run.due(epoch_ended=epoch_ended):
            return
        # First: to know whether it is over, the next batch may have to be made.
        numbers = RandomNumbers(self._backend.state)
        if epochs.over():
            return  # Keras still has to end the epoch: the next one's start is a better moment
        if something_done:
            try:
                self._snapshot(epochs, numbers, at_once=asked is not None)
            except SnapshotError:
                raise
            except Exception as error:
                self._unkept = True
                say_left_out(wording.not_kept(), in_a_line(error))
                self._stopping.answer()
                return
        if asked is not None:
            emit(Note(wording.stopped(self._epoch + 1, step), signal=int(asked)))
            self._stopping.answer()

    def first_batch(self, step: Any, run: Callable[[Any], Any], batches: Batches) -> None:
        """Put everything back, before the first batch is trained on."""
        kept = self._kept
        assert kept is not None
        began = time.monotonic()
        taken: list[Any] = []
        data_randomness = (randomness(taken), taken)
        self._bring_to_life(step, run, batches)
        self._restore(kept, self._graphs())
        if self._finished:
            raise _Replayed
        # Tracing may have drawn random numbers: those of the data come first now.
        set_randomness(*data_randomness)
        digest = None
        if kept.values["position"]["consumed"] > 0:  # else nothing was drawn since it began
            digest = batches.digest()  # this is where batches are passed over
            after: list[Any] = []
            drawn = randomness(after)
            set_unmoved(kept.values["randomness"], kept.arrays, data_randomness, (drawn, after))
        self._say_resumed(kept, digest, began)

    def first_batch_taken(self, batches: Batches) -> None:
        """The same where Keras takes the batches itself: the first one is made in here."""
        kept = self._kept
        assert kept is not None
        began = time.monotonic()
        state, values, arrays = self._backend.state, kept.values, kept.arrays
        before = RandomNumbers(state)
        if not self._finished:
            batches.reach()  # this is where batches are passed over
        if batches.begun and not self._finished:
            state.set_seeds(values["seeds"], arrays)
            if batches.in_turn:
                # Whatever draws, data or step, has drawn in its turn: so it does again from here.
                set_randomness(values["randomness"], arrays)
        digest = batches.digest() if batches.consumed and not self._finished else None
        # A step that can't be traced makes some of its variables when it first runs.
        missing = set(values["parts"]) - set(state.parts_of(self._model))
        unborn = missing or len(state.training_variables(self._model)) < len(values["variables"])
        batch = batches.peek() if unborn else None
        drawn = RandomNumbers(state)
        if unborn:
            self._model.train_function([batch])  # whatever this does is overwritten at once
        self._restore(kept, [])
        if self._finished:
            raise _Replayed
        drawn.put_back()
        if batches.begun and not batches.in_turn:
            set_unmoved(values["randomness"], arrays, before.taken, drawn.taken)
        self._say_resumed(kept, digest, began)

    def _say_resumed(self, kept: Content, digest: int | None, began: float) -> None:
        self._kept = None
        if digest != kept.values["digest"]:
            emit(Note(wording.other_data()))
        drawing = sorted(
            {op for graph in self._graphs() for op in self._backend.state.random_ops_in(graph)}
        )
        if drawing:
            emit(Note(wording.draws_anew(drawing)))
        step_done = kept.values["position"]["step"]
        emit(
            Resumed(
                wording.resumed(self._training + 1, self._epoch + 1, step_done, kept.values["at"]),
                training=self._training,
                epoch=self._epoch,
                step=step_done,
                file=kept.values["file"],
                seconds=time.monotonic() - began,
            )
        )

    # Taking and putting back.

    def _snapshot(self, epochs: Epochs, numbers: RandomNumbers, *, at_once: bool = False) -> None:
        self._report()
        needed = self._backend.state.state_bytes(
            self._backend.state.training_variables(self._model, self._graphs())
        )
        if needed - self._copies.nbytes > host_available(with_held_back=True):
            self._run.no_room(needed)
            return
        position = epochs.position()
        self._run.write(
            self._training,
            lambda arrays: self._collect(epochs, position, numbers, arrays),
            at_once=at_once,
            epoch=self._epoch,
            step=position.step,
        )

    def _finish(self) -> None:
        self._report()
        if self._unkept or (not self._run.due_result() and self._stopping.asked is None):
            return
        epochs = self._epochs
        position = None if epochs is None else epochs.position()
        numbers = RandomNumbers(self._backend.state)
        self._run.write(
            self._training,
            lambda arrays: self._collect(epochs, position, numbers, arrays, finished=True),
            finished=True,
            epoch=self._epoch,
        )

    def _collect(
        self,
        epochs: Epochs | None,
        position: Position | None,
        numbers: RandomNumbers,
        arrays: list[Any],
        *,
        finished: bool = False,
    ) -> dict[str, Any]:
        """All that the training is, in one consistent moment."""
        counted = None if epochs is None else epochs.counted
        arrays.extend(numbers.arrays)  # at the beginning, where they are as they were
        state = self._backend.state
        values: dict[str, Any] = {
            "training": self._training,
            "fingerprint": self._parts,
            "epoch": self._epoch,
            "position": None if position is None else dataclasses.asdict(position),
            "checkpoint": None,
            "order_seed": self.order_seed,
            "at": time.time(),
            "file": (
                self._run.folder.result(self._training)
                if finished
                else self._run.folder.next_snapshot(self._training)
            ).name,
            "variables": self._copies.read(
                state.training_variables(self._model, self._graphs()), arrays
            ),
            "parts": {
                name: encode(state.take(part), arrays)
                for name, part in state.parts_of(self._model).items()
            },
            "callbacks": capture_callbacks(self._callbacks, arrays),
            "history": attributes.capture(self._model.history, arrays),
            "stop_training": bool(self._model.stop_training),
            "seeds": numbers.seeds,
            "iterators": 0 if epochs is None else epochs.iterators,
        }
        self._reserve.left = max(0, self._copy_bytes() - self._copies.nbytes)
        values["randomness"] = numbers.randomness
        values["iterator_randomness"] = values["randomness"]
        passes_over = position is not None and position.consumed > 0 and not finished
        if passes_over and self._iterator_randomness is not None:
            taken, own = self._iterator_randomness
            values["iterator_randomness"] = moved(taken, len(arrays))
            arrays.extend(own)
        values["sequence"] = None
        if self._sequence is not None and position is not None:
            in_epoch = position.step > 0 and not finished
            in_turn = counted is not None and counted.in_turn
            values["sequence"] = self._sequence.collect(
                position if in_epoch else None, arrays, in_turn=in_turn
            )
            drawn = self._sequence.randomness_at(position, arrays) if in_epoch else None
            values["iterator_randomness"] = drawn or values["iterator_randomness"]
        checkpoint = None
        if epochs is not None:
            checkpoint = epochs.left() if finished else epochs.checkpoint()
        values["checkpoint"] = None if checkpoint is None else encode(checkpoint, arrays)
        # Last: it fetches the next batch.
        values["digest"] = counted.digest() if counted is not None and passes_over else None
        return values

    def _restore(self, kept: Content, graphs: list[Any]) -> None:
        values, arrays = kept.values, kept.arrays
        self._backend.state.write_variables(
            self._backend.state.training_variables(self._model, graphs), values["variables"], arrays
        )
        for name, part in self._backend.state.parts_of(self._model).items():
            if name in values["parts"]:
                self._backend.state.put(part, decode(values["parts"][name], arrays))
        self._backend.state.set_seeds(values["seeds"], arrays)
        history = self._model.history
        if self._finished:
            history = keras.callbacks.History()
            history.set_model(self._model)
            self._model.history = history
            self._model.stop_training = values["stop_training"]
            set_randomness(values["randomness"], arrays)
            self._pass_over_data(values)
            self._kept = None
            for callback in self._callbacks:
                callback.set_model(self._model)
        restore_callbacks(self._callbacks, values["callbacks"], arrays)
        attributes.restore(history, values["history"], arrays)

    def _bring_to_life(self, step: Any, run: Callable[[Any], Any], batches: Batches) -> None:
        """Have every variable of the training exist: many are made by the first step."""
        if not step.needs_data:
            step.prepare(None)
            return
        batch = batches.peek()
        step.prepare(batch)
        assert self._kept is not None
        wanted = len(self._kept.values["variables"])
        variables = self._backend.state.training_variables(self._model, self._graphs())
        if len(variables) < wanted:
            # An eager step can't be traced. Whatever this does is overwritten at once.
            run(batch)

    def _graphs(self) -> list[Any]:
        graphs = getattr(self._model.train_function, "graphs", None)
        return [] if graphs is None else graphs()

    def _pass_over_data(self, values: dict[str, Any]) -> None:
        """Leave the data as a training that had finished left it."""
        epochs = self._epochs
        if epochs is not None:
            assert self._kept is not None
            left = values["checkpoint"]
            if left is not None:
                left = decode(left, self._kept.arrays)
            epochs.pass_over(values["iterators"], left)
        if self._sequence is not None and values["sequence"] is not None:
            assert self._kept is not None
            self._sequence.put_back(values["sequence"], self._kept.arrays)
