"""A second backend, as small as can be: NumPy, on a device that counts and runs out on demand.

It knows legroom by the protocols in `legroom.backends` only. Memory is counted by what is really
alive: an array that an error's traceback still holds is still taken.
"""

from __future__ import annotations

import dataclasses
import weakref

import numpy as np

from legroom.backends.base import Device
from legroom.backends.steps import BackendStep
from legroom.core.traces import LayerCost
from legroom.machine.budget import DeviceReading

RATE, FRICTION = 0.05, 0.9


class RanOut(Exception):
    """No memory for an array."""

    def __init__(self, place, nbytes):
        super().__init__(f"{place}: {nbytes} bytes")
        self.place, self.nbytes = place, nbytes


class Pool:
    """Counts arrays. `fails_at` has one allocation fail, whatever is free; `others` is taken."""

    def __init__(self, limit=None):
        self.limit = limit
        self.others = self.own = self.peak = self.allocations = 0
        self.fails_at = None

    def new(self, array, place):
        """An array, now that it is there."""
        self.allocations += 1
        full = self.limit is not None and self.in_use_bytes() + array.nbytes > self.limit
        if full or self.allocations == self.fails_at:
            raise RanOut(place, array.nbytes)
        self.own += array.nbytes
        self.peak = max(self.peak, self.in_use_bytes())
        weakref.finalize(array, self._give_back, array.nbytes)
        return array

    def _give_back(self, nbytes):
        self.own -= nbytes

    def device_name(self):
        return "NUMPY:0"

    def card_number(self):
        return None

    def has_started(self):
        return True

    def has_limit(self):
        return self.limit is not None

    def limit_bytes(self):
        return self.limit

    def is_certain(self):
        return True

    def in_use_bytes(self):
        return self.own + self.others

    def peak_bytes(self):
        return self.peak

    def reset_peak(self):
        self.peak = self.in_use_bytes()

    def read_device(self):
        return DeviceReading(self.device_name(), allocator_bytes=self.limit)

    def set_limit(self, limit):
        self.limit = limit


@dataclasses.dataclass(frozen=True)
class Rules:
    """What slices would change."""

    coupled: tuple[str, ...] = ()
    redrawn: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    summaries: bool = False
    refusal: str | None = None
    unverified: str | None = None

    @property
    def exact(self):
        return not (self.coupled or self.redrawn or self.calls)


class Step:
    """A training step of tanh layers with a squared loss and momentum.

    Args:
        pool: The device.
        width: Of each layer.
        depth: How many there are.
        centred: Whether outputs have the mean of their batch taken off, which couples its samples.
        foresees: Whether it tells what it needs before it runs.
    """

    def __init__(self, pool, *, width=8, depth=4, centred=False, foresees=False):
        self.pool = pool
        self.net = {"width": width, "depth": depth, "centred": centred}
        rng = np.random.default_rng(0)
        self.weights = {
            f"layer_{number}": pool.new(rng.normal(0, width**-0.5, (width, width)), "weights")
            for number in range(depth)
        }
        self.velocity = {}  # born in the first update
        self.updates = 0
        self.lean = False
        self.blocks = ()
        self.foresees = foresees
        self.ran = []  # the slice sizes; None for whole batches
        self.undone = []  # the state as each failure left it

    def state(self):
        """All that a step changes, by value."""
        arrays = {**self.weights, **{f"{name}'": x for name, x in self.velocity.items()}}
        return {"updates": self.updates, **{name: array.copy() for name, array in arrays.items()}}

    # Computing.

    def run(self, data, slice_size):
        x, y = data
        whole = slice_size is None
        self.ran.append("lean" if whole and self.lean else slice_size)
        if whole and self.lean:
            return self._run_lean(x, y)
        sums, velocity = {}, self._velocity()
        for start in range(0, len(x), slice_size or len(x)):
            part = slice(start, start + (slice_size or len(x)))
            for name, gradient in self._gradients(x[part], y[part], len(x)):
                if name in sums:
                    sums[name] += gradient
                else:
                    sums[name] = gradient
        # All new values, before the first is written; of the velocity in the gradients' memory.
        for name, gradient in sums.items():
            gradient *= -RATE
            gradient += FRICTION * velocity[name]
        weights = {
            name: self.pool.new(weight + sums[name], name) for name, weight in self.weights.items()
        }
        self.weights, self.velocity, self.updates = weights, sums, self.updates + 1
        return self.updates

    def _run_lean(self, x, y):
        """As a framework would: each weight as soon as its gradient is there."""
        before = self.state()  # in the host's memory, which is not counted
        try:
            velocity = self._velocity()
            for name, gradient in self._gradients(x, y, len(x)):
                velocity[name] *= FRICTION
                velocity[name] -= RATE * gradient
                self.weights[name] += velocity[name]
        except BaseException:
            for name, weight in self.weights.items():
                weight[...] = before[name]
            for name, moved in self.velocity.items():
                moved[...] = before[f"{name}'"]
            raise
        self.velocity, self.updates = velocity, self.updates + 1
        return self.updates

    def _velocity(self):
        return self.velocity or {
            name: self.pool.new(np.zeros_like(weight), "velocity")
            for name, weight in self.weights.items()
        }

    def _gradients(self, x, y, total):
        """Of the loss's part on these samples; the last layer's first, when it is done with."""
        names = list(self.weights)
        values = [x]  # what goes into each layer and out of it
        starts = {last: first for first, last in self._places()}
        for number, name in enumerate(names, 1):
            values.append(self._layer(name, values[-1]))
            first = starts.get(number, number)
            values[first + 1 : number] = [None] * len(values[first + 1 : number])
        out = values[-1]
        if self.net["centred"]:
            out = self.pool.new(out - out.mean(0), "centre")
        slope = self.pool.new(2 * (out - y) / total, "loss")
        if self.net["centred"]:
            slope = self.pool.new(slope - slope.mean(0), "centre")
        del out
        for number in reversed(range(len(names))):
            if values[number] is None:
                first, last = next(at for at in self._places() if at[0] <= number < at[1])
                for k in range(first, last - 1):
                    values[k + 1] = self._layer(names[k], values[k])
            slope *= 1 - values[number + 1] ** 2
            values[number + 1] = None
            gradient = self.pool.new(values[number].T @ slope, names[number])
            if number:
                slope = self.pool.new(slope @ self.weights[names[number]].T, names[number])
            yield names[number], gradient
            del gradient

    def _layer(self, name, given):
        return self.pool.new(np.tanh(given @ self.weights[name]), name)

    def _places(self):
        """Where each block begins, and the place after its end."""
        names = list(self.weights)
        return [(names.index(block[0]), names.index(block[-1]) + 1) for block in self.blocks]

    # What the guard asks.

    def samples(self, data):
        return len(data[0])

    def rules(self, data):
        return Rules(coupled=("centre",) if self.net["centred"] else ())

    def needs(self, data, free):
        return Counted(self, len(data[0])) if self.foresees else None

    def usable(self, *, planned):
        return 1.0

    def tensors(self, samples):
        nbytes = 8 * samples * self.net["width"]
        return [(name, nbytes) for name in self.weights]

    def layer_costs(self, data):
        nbytes = data[0].nbytes
        return [
            LayerCost(name, nbytes, incoming_bytes=nbytes, work=1.0, read_bytes=nbytes)
            for name in self.weights
        ], True

    def recompute(self, blocks):
        self.blocks = blocks

    def put_in_order(self, samples):
        """There is one order only."""

    @property
    def lean_saves(self):
        return 0 if self.lean else sum(weight.nbytes for weight in self.weights.values())

    @property
    def unborn_bytes(self):
        return 0 if self.velocity else sum(weight.nbytes for weight in self.weights.values())

    def go_lean(self, lean=True):
        self.lean = lean

    def is_oom(self, error):
        return isinstance(error, RanOut)

    def describe(self, error):
        return error.place, error.nbytes

    oom_seconds = 0.0
    broken_by_oom = False

    def recover(self):
        self.undone.append(self.state())


class Counted:
    """What a step needs, by counting one on zeros, on a device without a limit."""

    source, low, high, alike = "counted", 1.0, 1.05, True

    def __init__(self, step, batch):
        self._net, self._blocks, self._batch = step.net, step.blocks, batch

    def __call__(self, samples):
        twin = Step(Pool(), **self._net)
        twin.recompute(self._blocks)
        before = twin.pool.in_use_bytes()
        whole = samples >= self._batch
        zeros = np.zeros((samples if whole else 2 * samples, self._net["width"]))
        twin.run((zeros, zeros), None if whole else samples)
        return twin.pool.peak - before


class Seam:
    """Hands on what a protocol names, and nothing else: whoever asks for more gets an error."""

    def __init__(self, behind, protocol):
        self._behind = behind
        self._names = {name for name in vars(protocol) if not name.startswith("_")}

    def __getattr__(self, name):
        if name not in self._names:
            raise AttributeError(f"{name} is not part of the seam")
        value = getattr(self._behind, name)
        return Seam(value, Device) if name == "pool" else value


def behind_the_seam(step):
    """A step as a guard may see it."""
    return Seam(step, BackendStep)
