"""Running a part of a model again for its gradients, instead of keeping what it computed.

The second run has to be the first one over again. Keras's own `remat` draws new Dropout masks and
moves BatchNorm's statistics twice. Here the second run sees all state as it was before the first:
seeds, statistics, whatever the layers hold beside their weights; and what it writes is dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf
from keras import StatelessScope, tree
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.random.seed_generator import global_seed_generator
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.python.eager import context, record

from legroom.backends import patches
from legroom.backends.keras.models.call_context import CallContext
from legroom.backends.parts import VARIABLE
from legroom.backends.tensorflow.slices.draws import STATEFUL_DRAWS

__all__ = ["Packing", "run_recomputed"]


def run_recomputed(
    body: Callable[[Sequence[Any]], Any],
    inputs: Sequence[Any],
    layers: Sequence[keras.layers.Layer],
    *,
    compiled: bool = False,
    packing: Packing | None = None,
) -> Any:
    """Run a body now, and once more when its gradients are asked for.

    Args:
        body: A function of a list of tensors, to a structure of tensors.
        inputs: The tensors. A Keras mask on one of them is passed on with it.
        layers: The layers that the body calls.
        compiled: Whether XLA compiles this: it needs another word to keep the two runs apart.
        packing: How the inputs are kept in between; as they are, without it.
    """
    first = _Run(body, layers, compiled, packing)
    masks = [getattr(x, "_keras_mask", None) for x in inputs]
    first.masked = [i for i, mask in enumerate(masks) if mask is not None]
    tensors = [*inputs, *(masks[i] for i in first.masked)]
    results = tf.custom_gradient(first.forward)(*tensors)
    return first.unpack(results if isinstance(results, (list, tuple)) else [results])


class Packing(Protocol):
    """How tensors are kept in less memory."""

    def pack(self, tensors: Sequence[Any]) -> list[Any]:
        """What is kept of them."""
        ...

    def unpack(self, kept: Sequence[Any]) -> list[Any]:
        """The tensors again."""
        ...


class _Run:
    """One pass through the body, and what its repetition needs."""

    def __init__(
        self,
        body: Callable[[Sequence[Any]], Any],
        layers: Sequence[keras.layers.Layer],
        compiled: bool,
        packing: Packing | None,
    ) -> None:
        self._body = body
        self._layers = list(dict.fromkeys(part for x in layers for part in x._flatten_layers()))
        self._compiled = compiled
        self._packing = packing
        self._context = CallContext()
        self.masked: list[int] = []

    def forward(self, *tensors: Any) -> Any:
        """The first run, as `tf.custom_gradient` wants it."""
        before = {id(v): (v, _read(v)) for v in _variables(self._layers)}
        written: set[int] = set()
        had = {id(layer): len(layer._losses) for layer in self._layers}
        draws: list[Any] = []
        with record.stop_recording(), _drawing(draws.append), _noting_writes(written):
            outputs = self._body(self._with_masks(tensors))
        state = [kept for key, kept in before.items() if key in written]
        self._structure = outputs
        self._leaves = len(tree.flatten(outputs))
        self._loss_places = [
            (layer, place)
            for layer in self._layers
            for place in range(had[id(layer)], len(layer._losses))
        ]
        flat = tree.flatten(outputs)
        losses = [layer._losses[place] for layer, place in self._loss_places]
        masks = [getattr(x, "_keras_mask", None) for x in flat]
        self._output_masks = [i for i, mask in enumerate(masks) if mask is not None]
        results = [*flat, *losses, *(masks[i] for i in self._output_masks)]
        differentiable = len(flat) + len(losses)
        kept: Sequence[Any] = tensors
        if self._packing is not None:
            kept = self._packing.pack(tensors)
            # Packed before anything goes on from here: until then the inputs are there in full.
            with tf.control_dependencies(kept):
                results = [tf.identity(x) for x in results]

        def backward(*upstream: Any, variables: Any = None) -> Any:
            wanted = list(variables or [])
            return self._gradients(kept, state, draws, upstream[:differentiable], wanted)

        return results, backward

    def unpack(self, results: Sequence[Any]) -> Any:
        """The body's own structure; masks and losses back where Keras looks for them."""
        flat = list(results[: self._leaves])
        losses = results[self._leaves : self._leaves + len(self._loss_places)]
        for (layer, place), loss in zip(self._loss_places, losses, strict=True):
            layer._losses[place] = loss
        masks = results[self._leaves + len(self._loss_places) :]
        for i, mask in zip(self._output_masks, masks, strict=True):
            flat[i]._keras_mask = mask
        return tree.pack_sequence_as(self._structure, flat)

    def _with_masks(self, tensors: Sequence[Any]) -> list[Any]:
        inputs = list(tensors[: len(tensors) - len(self.masked)])
        for i, mask in zip(self.masked, tensors[len(inputs) :], strict=True):
            inputs[i]._keras_mask = mask
        return inputs

    def _gradients(
        self,
        kept: Sequence[Any],
        state: Sequence[Any],
        draws: list[Any],
        upstream: Sequence[Any],
        variables: list[Any],
    ) -> Any:
        """The second run, and the gradients through it."""
        # The state as well: masks drawn from seeds that are there all along would be drawn, and
        # held, from the beginning of the step.
        values = self._after(upstream, [*kept, *(value for _, value in state)])
        again, shown = values[: len(kept)], values[len(kept) :]
        if self._packing is not None:
            again = self._packing.unpack(again)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            watched = [x for x in again if x.dtype.is_floating or x.dtype.is_complex]
            tape.watch([*watched, *variables])
            scope = _Again([(v, value) for (v, _), value in zip(state, shown, strict=True)])
            drawn = iter(draws)
            with self._in_context(), scope, _drawing(replay=lambda: next(drawn)):
                outputs = self._body(self._with_masks(again))
            targets = [*tree.flatten(outputs), *scope.losses]
        pairs = [
            (target, gradient)
            for target, gradient in zip(targets, upstream, strict=True)
            if gradient is not None and (target.dtype.is_floating or target.dtype.is_complex)
        ]
        gradients = tape.gradient(
            [target for target, _ in pairs],
            [*watched, *variables],
            output_gradients=[gradient for _, gradient in pairs],
        )
        by_input = dict(zip([id(x) for x in watched], gradients, strict=False))
        # Without a connection there is no gradient; custom_gradient wants zeros for it.
        for_variables = [
            tf.zeros(v.shape, v.dtype) if g is None else g
            for v, g in zip(variables, gradients[len(watched) :], strict=True)
        ]
        for_inputs = [by_input.get(id(x)) for x in again]
        return self._finished(for_inputs, for_variables), for_variables

    def _finished(self, for_inputs: list[Any], for_variables: list[Any]) -> list[Any]:
        """The inputs' gradients, once those of the variables are there.

        Nothing waits for a weight's gradient before the update. Left to itself, a graph goes on
        with the layers before and holds what was computed again here for too long.
        """
        if tf.executing_eagerly() or self._compiled:
            return for_inputs
        ends = [g.values if isinstance(g, tf.IndexedSlices) else g for g in for_variables]
        with tf.control_dependencies(ends):
            return [tf.identity(g) if isinstance(g, tf.Tensor) else g for g in for_inputs]

    def _after(self, upstream: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        """The inputs again, as tensors that exist only once the gradients have come this far.

        Otherwise a graph's optimiser sees the same ops on the same inputs and runs them once.
        """
        arrived = [gradient for gradient in upstream if gradient is not None]
        if self._compiled and not tf.executing_eagerly():
            return list(xla.optimization_barrier(*tensors, *arrived)[: len(tensors)])
        with tf.control_dependencies(arrived):
            return [tf.identity(x) for x in tensors]

    @contextlib.contextmanager
    def _in_context(self) -> Iterator[None]:
        """Keras's own context as it was when the body first ran."""
        # Eager draws take a number from here, also those that are replayed.
        numbers = getattr(context.context(), "_rng", None)
        at = None if numbers is None else numbers.getstate()
        try:
            with self._context.in_force():
                yield
        finally:
            if numbers is not None:
                numbers.setstate(at)


@contextlib.contextmanager
def _drawing(
    keep: Callable[[Any], None] | None = None, replay: Callable[[], Any] | None = None
) -> Iterator[None]:
    """Keep what TensorFlow's own generators draw, which no seed of Keras brings back; or give it.

    Args:
        keep: Called with each draw.
        replay: Gives the draws, in the same order.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def instead(original: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*args: Any, **kwargs: Any) -> Any:
            if graph is not None and tf.compat.v1.get_default_graph() is not graph:
                return original(*args, **kwargs)  # in a loop's own graph, from where none comes out
            if replay is not None:
                return replay()
            drawn = original(*args, **kwargs)
            if keep is not None:
                keep(drawn)
            return drawn

        return draw

    with contextlib.ExitStack() as hooks:
        for module, name in STATEFUL_DRAWS:
            hooks.enter_context(patches.replaced(module, name, instead))
        yield


def _read(variable: Any) -> Any:
    """A variable's value as the run sees it, which may itself be a second run of something."""
    scope = get_stateless_scope()
    shown = None if scope is None else scope.get_current_value(variable)
    return variable._value.value() if shown is None else shown


def _variables(layers: Sequence[keras.layers.Layer]) -> list[Any]:
    """Every Keras variable of the layers, and the global seed."""
    found = {id(v): v for layer in layers for v in layer.variables}
    seed = global_seed_generator().state
    found[id(seed)] = seed
    return list(found.values())


@contextlib.contextmanager
def _noting_writes(written: set[int]) -> Iterator[None]:
    """Note which Keras variables are written."""

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def assign(self: Any, value: Any) -> Any:
            written.add(id(self))
            return original(self, value)

        return assign

    with patches.replaced(VARIABLE, "assign", noting):
        yield


class _Again(StatelessScope):
    """Shows what the first run found, and keeps the second run's writes to itself.

    A layer may write a weight that is trained (SpectralNormalization does) and go on with it. Its
    gradient is the weight's then, whatever value it has, so that is how such a value is shown.
    """

    def __init__(self, state: Sequence[tuple[Any, Any]]) -> None:
        super().__init__(
            [(v, self._shown(v, value)) for v, value in state],
            collect_losses=True,
            initialize_variables=False,
        )

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        super().add_update((variable, self._shown(variable, value)))

    @staticmethod
    def _shown(variable: Any, value: Any) -> Any:
        if not variable.trainable:
            return value
        now = variable._value.value()
        return now + tf.stop_gradient(tf.cast(value, now.dtype) - now)
