"""A graph run by TensorFlow's rules, without running it: which op takes memory when. Pure.

TensorFlow's executor does not take the ops in the order in which they were traced, and the order
decides what is live at the same time: that is the subject of `crew`. Memory is counted by
references, as tensors are: an op's inputs are let go when it has run, and an op that may write over
its input does so if nobody else reads that. A variable that is written while someone still reads it
moves to memory of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from legroom.backends.tensorflow.forecast.crew import Crew
from legroom.backends.tensorflow.forecast.script import Allocation, Entry
from legroom.backends.tensorflow.forecast.wiring import Wiring, same_bytes
from legroom.core.graphs import Graph, Node, Size

__all__ = ["Executor", "Variable"]

# Turns of a loop that are walked; the rest of a longer one grows as these did.
_MOST_TURNS = 4096
# How long an op takes, as a multiple of how long it should.
_SPREAD = (0.5, 1.5)


class _Buffer:
    __slots__ = ("blank", "kept", "number", "references", "size")

    def __init__(self, number: int, size: Size | None, kept: bool = False) -> None:
        self.number = number
        self.size = size
        self.references = 0
        self.kept = kept  # a weight or an input: not the step's to give back
        self.blank = False  # a list's zeros, which its items take the places of


class Variable(_Buffer):
    """A variable, as ops get it: what they read and write is its memory.

    Args:
        number: The number of the allocation that it begins with.
        size: Its size.
        like: A variable that it shares this memory with until one of them is written.
    """

    __slots__ = ("buffer", "scattered")

    def __init__(self, number: int, size: Size, like: Variable | None = None) -> None:
        super().__init__(0, None, kept=True)
        # Once rows of a variable were written by themselves, each read of it is a copy.
        self.scattered = False
        self.buffer: _Buffer = _Buffer(number, size) if like is None else like.buffer
        self.buffer.references += 1


# What flows along an edge: a tensor's buffer, or those of a list of tensors.
_Value = list[_Buffer]


class Executor:
    """Runs a step's graph, once or again and again.

    Its arguments that are not variables are held by others. What it returns is given back at its
    end.

    Args:
        graph: The graph.
        variables: Variables by the names of the arguments that they are given as. They are left
            as a step leaves them, for the next one.
        threads: How many threads run it.
    """

    def __init__(
        self, graph: Graph, variables: Mapping[str, Variable] | None = None, threads: int = 1
    ) -> None:
        self._graph = graph
        self._threads = threads
        given = variables or {}
        names = [graph.nodes[number].name for number in graph.arguments]
        self._arguments = [[given.get(name) or _Buffer(0, None, kept=True)] for name in names]
        self._wirings: dict[int, Wiring] = {}

    def run(self, made: int = 0, chance: int = 0) -> list[Entry]:
        """Run it once.

        Args:
            made: The number after which those of this run's allocations begin.
            chance: With several threads, how long ops take differs from run to run; this says
                which of them it is.
        """
        run = _Run(made, self._wirings, random.Random(chance))
        for value in run.run(self._graph, self._arguments, self._threads):
            run.drop(value)
        return run.entries


class _Run:
    def __init__(self, made: int, wirings: dict[int, Wiring], chance: random.Random) -> None:
        self._chance = chance
        self.entries: list[Entry] = []
        self._made = made
        self._wirings = wirings
        self._scratch: _Value = []
        self._turn = 0  # of the loop that is under way

    def run(self, graph: Graph, arguments: Sequence[_Value], threads: int = 1) -> list[_Value]:
        """Run a graph on values, each of which is consumed; returns its results, held once."""
        nodes = graph.nodes
        wiring = self._wirings.get(id(graph))
        if wiring is None:
            wiring = self._wirings[id(graph)] = Wiring(graph)
        read, firsts, uses, targets = wiring.inputs, wiring.firsts, wiring.uses, wiring.targets
        pending = list(wiring.pending)
        values: list[_Value] = [[]] * wiring.count
        given = dict(zip(graph.arguments, arguments, strict=True))
        crew = Crew(nodes, wiring.early, threads)
        late = wiring.late
        scratch: dict[int, _Value] = {}
        entries, vary = self.entries, self._chance.uniform

        def begin(number: int) -> None:
            if number in given:
                made = [given[number]]
            else:
                made = self._outputs(nodes[number], [values[each] for each in read[number]])
                if self._scratch:
                    scratch[number], self._scratch = self._scratch, []
            output = firsts[number]
            for value in made:
                values[output] = value
                # It was held once while it was handed over; what nobody reads is gone now.
                more = uses[output] - 1
                output += 1
                for buffer in value:
                    buffer.references += more
                    if buffer.references == 0 and not buffer.kept:
                        entries.append(buffer.number)

        def end(number: int) -> list[int]:
            if number in scratch:
                self.drop(scratch.pop(number))
            for each in () if nodes[number].effect == "call" else read[number]:
                for buffer in values[each]:
                    buffer.references -= 1
                    if buffer.references == 0 and not buffer.kept:
                        entries.append(buffer.number)
            found = []
            for target in targets[number]:
                pending[target] -= 1
                if pending[target] == 0:
                    found.append(target)
            return found

        while True:
            task = crew.begin()
            if task is not None:
                thread, number = task
                begin(number)
                if nodes[number].cheap:
                    crew.ready(thread, end(number))
                else:
                    time = wiring.times[number] * vary(*_SPREAD) if threads > 1 else 0.0
                    crew.run(thread, number, time)
                continue
            task = crew.end()
            if task is not None:
                thread, number = task
                crew.ready(thread, end(number))
            elif late:
                crew.arrived(self._arrive(late, begin, end, wiring.places))
                late = []
            else:
                break
        return [values[result] for result in wiring.results]

    @staticmethod
    def _arrive(
        late: Sequence[int],
        begin: Callable[[int], None],
        end: Callable[[int], list[int]],
        places: Sequence[int],
    ) -> list[int]:
        """Have a batch come, all of its parts at once; returns what can run now, in its order."""
        for number in late:
            begin(number)
        found = [each for number in late for each in end(number)]
        return sorted(found, key=places.__getitem__)

    def _outputs(self, node: Node, inputs: list[_Value]) -> list[_Value]:
        """What a node makes, each held once."""
        effect = node.effect
        if effect in ("new", "reuse", "none"):
            return self._made_anew(node, inputs)
        if effect == "alias" and inputs:
            return self._padded([self._again(inputs[0])], node)
        if effect == "call":
            assert node.body is not None
            # What is called is part of this graph when TensorFlow runs it: each value that it reads
            # is given back there, by its last reader.
            return self._padded(self.run(node.body, inputs), node)
        if effect == "loop":
            return self._padded(self._loop(node, inputs), node)
        if effect in ("read", "update", "assign", "scatter") and inputs and inputs[0]:
            variable = inputs[0][0]
            if isinstance(variable, Variable):
                return self._padded(self._touch(node, variable, inputs), node)
        if effect in ("update", "assign", "scatter"):
            return self._padded([], node)
        if effect == "read" and inputs:
            return self._padded([self._again(inputs[0])], node)
        if effect in ("push", "set"):
            # The item is the last input that is a tensor of some size.
            items, item = inputs[0], inputs[-1]
            if items and items[-1].blank:
                # Lists of zeros are filled from their end, as loops run backwards over them.
                return [self._again([*item, *items[:-1]])]
            return [self._again([*items, *item])]
        if effect == "replace":
            return [self._again(inputs[-1])]
        if effect == "merge":
            return [self._again(max(inputs, key=len, default=[]))]
        if effect == "pop":
            items = inputs[0]
            return [self._again(items[:-1]), self._again(items[-1:])]
        if effect == "get":
            # Each turn of a loop gets another one.
            items = inputs[0]
            return [self._again([items[self._turn % len(items)]] if items else [])]
        if effect == "unstack":
            # An item is the tensor's first axis apart from its length.
            (size,) = node.outputs
            assert size is not None
            return [[self._new(node.name, "temp", size) for _ in range(node.turns)]]
        if effect == "zeros":
            return [self._blanks(node, inputs[0])]
        return self._made_anew(node, inputs)

    def _made_anew(self, node: Node, inputs: list[_Value]) -> list[_Value]:
        """What an op makes that has tensors and nothing else for its outputs."""
        effect = node.effect
        reused = self._reusable(node, inputs) if effect == "reuse" else None
        made: list[_Value] = []
        last = len(node.outputs) - 1
        for port, size in enumerate(node.outputs):
            if port == last and reused is not None:
                made.append(self._again(reused))
            elif size is None or effect == "none":
                made.append([])
            else:
                made.append([self._new(node.name, "output", size)])
        scratch: _Value = []
        if node.copies is not None:
            (copied,) = inputs[node.copies]
            if copied.size is not None and (copied.references > 1 or copied.kept):
                scratch.append(self._new(node.name, "temp", copied.size))
        fixed, each, since = node.scratch
        if fixed or each:
            scratch.append(self._new(node.name, "temp", (((fixed, each),), 1.0), since))
        self._scratch = scratch
        return made

    def _touch(self, node: Node, variable: Variable, inputs: list[_Value]) -> list[_Value]:
        """Read a variable, or write it."""
        old = variable.buffer
        if node.effect == "read" and variable.scattered and old.size is not None:
            return [[self._new(node.name, "output", old.size)]]
        if node.effect == "read":
            return [self._again([old])]
        if node.effect == "scatter":
            variable.scattered = True
        if node.effect == "assign":
            # It takes over the memory of what it is given.
            if len(inputs) > 1 and len(inputs[1]) == 1 and same_bytes(inputs[1][0].size, old.size):
                (variable.buffer,) = self._again(list(inputs[1]))
                self.drop([old])
        elif old.references > 1 and old.size is not None:
            variable.buffer = self._new(node.name, "temp", old.size)
            self.drop([old])
        return []

    def _blanks(self, node: Node, items: _Value) -> _Value:
        """Zeros like the items of a list."""
        made = [self._new(node.name, "temp", item.size) for item in items if item.size is not None]
        for buffer in made:
            buffer.blank = True
        return made

    def _loop(self, node: Node, inputs: list[_Value]) -> list[_Value]:
        body = node.body
        assert body is not None
        count = len(body.arguments)
        values, ahead = self._taken(inputs[:count]), inputs[count:]
        turns = min(node.turns, _MOST_TURNS)
        outer = self._turn
        for self._turn in range(turns):
            for items in ahead:
                # What was made ahead is there for each of the turns to come.
                if turns - self._turn <= len(items):
                    self.drop([items.pop()])
            values = self.run(body, values)
        self._turn = outer
        return values

    def _taken(self, values: list[_Value]) -> list[_Value]:
        return [self._again(value) for value in values]

    @staticmethod
    def _padded(values: list[_Value], node: Node) -> list[_Value]:
        return [*values[: len(node.outputs)], *([] for _ in node.outputs[len(values) :])]

    @staticmethod
    def _reusable(node: Node, inputs: list[_Value]) -> _Value | None:
        for value in inputs if node.over is None else [inputs[node.over]]:
            if len(value) == 1:
                (buffer,) = value
                # Held by this op alone, and of the very size that is needed, whatever its shape.
                if (
                    buffer.references == 1
                    and not buffer.kept
                    and same_bytes(buffer.size, node.outputs[-1])
                ):
                    return value
        return None

    def _new(self, op: str, region: str, size: Size, since: int = 0) -> _Buffer:
        self._made += 1
        buffer = _Buffer(self._made, size)
        buffer.references = 1
        axes, itemsize = size
        self.entries.append(Allocation(self._made, op, region, 0, axes, itemsize, since=since))
        return buffer

    @staticmethod
    def _again(value: _Value) -> _Value:
        for buffer in value:
            buffer.references += 1
        return value

    def drop(self, value: _Value) -> None:
        """Let go of a value once."""
        for buffer in value:
            buffer.references -= 1
            if buffer.references == 0 and not buffer.kept:
                self.entries.append(buffer.number)
