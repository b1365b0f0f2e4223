"""In which order ops run, and who waits for whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from legroom.backends.tensorflow.forecast.ordering import Tensors, least_left, orderer, waits
from legroom.core.graphs import Graph, Node


def node(name, size, *inputs, effect="new", controls=(), each=0.0):
    sizes = [(((float(size), each),), 1.0)]
    return Node(name, effect, [(i, 0) for i in inputs], list(controls), sizes)


def in_order(graph, samples=1, least=0.0):
    tensors = Tensors(graph, samples)
    return tensors, least_left(tensors, tensors.heavy(least))


def names(graph, samples=1):
    return [graph.nodes[number].name for number in in_order(graph, samples)[1]]


def peak(graph):
    tensors, numbers = in_order(graph)
    return tensors.peak(numbers)


def towers():
    """Two towers, each with a large middle and a small end; traced level by level."""
    nodes = [node("x", 1), node("a", 100, 0), node("b", 100, 0), node("A", 1, 1), node("B", 1, 2),
             node("end", 1, 3, 4)]  # fmt: skip
    return Graph(nodes, [], [(5, 0)])


def test_what_frees_most_goes_first():
    assert names(towers()) == ["x", "a", "A", "b", "B", "end"]
    assert peak(towers()) == 102
    tensors = Tensors(towers(), 1)
    assert tensors.peak(tensors.as_traced) == 201


def test_only_those_wait_that_would_not_anyway():
    graph = towers()
    told = [(graph.nodes[a].name, graph.nodes[b].name) for a, b in orderer(1)(graph)]
    assert told == [("A", "b")]


def test_what_may_become_one_op_with_its_neighbours_waits_for_nobody():
    graph = towers()
    graph.nodes[2].fused = True  # b
    assert [(graph.nodes[a].name, graph.nodes[b].name) for a, b in orderer(1)(graph)] == [
        ("A", "B")
    ]


def test_what_moves_little_is_let_be():
    nodes = [node("x", 1), node("large", 1000, 0), node("L", 1000, 1), node("small", 1, 0),
             node("S", 1, 3), node("end", 1, 2, 4)]  # fmt: skip
    assert orderer(1)(Graph(nodes, [], [(5, 0)])) == []


def test_the_order_is_that_of_a_batch_size():
    nodes = [node("x", 1), node("grows", 0, 0, each=10.0), node("stays", 300, 0),
             node("A", 1, 1), node("B", 1, 2), node("end", 1, 3, 4)]  # fmt: skip
    graph = Graph(nodes, [], [(5, 0)])
    assert names(graph, samples=1)[1] == "grows"
    assert names(graph, samples=100)[1] == "stays"


def test_what_is_returned_is_kept_and_what_nobody_reads_is_not():
    nodes = [node("kept", 50), node("dropped", 70), node("last", 60)]
    assert peak(Graph(nodes, [], [(0, 0), (2, 0)])) == 110


def test_an_alias_keeps_its_inputs_memory():
    nodes = [
        node("a", 10),
        node("view", 10, 0, effect="alias"),
        node("b", 5, 0),
        node("c", 1, 1, 2),
    ]
    assert peak(Graph(nodes, [], [(3, 0)])) == 16


def test_nodes_that_were_made_before_what_they_read():
    nodes = [node("late", 1, 1), node("early", 10)]
    assert names(Graph(nodes, [], [(0, 0)])) == ["early", "late"]


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 25))
    nodes = []
    for number in range(count):
        before = st.integers(0, number - 1) if number else st.nothing()
        inputs = draw(st.lists(before, max_size=3)) if number else []
        controls = draw(st.lists(before, max_size=1)) if number else []
        effect = draw(st.sampled_from(["new", "new", "reuse", "alias", "none"]))
        if effect == "alias" and not inputs:
            effect = "new"
        nodes.append(node(str(number), draw(st.integers(0, 1000)), *inputs, effect=effect,
                          controls=controls, each=float(draw(st.integers(0, 9)))))  # fmt: skip
    # Nodes need not come after what they read.
    shuffled = draw(st.permutations(range(count)))
    place = {old: new for new, old in enumerate(shuffled)}
    for each in nodes:
        each.inputs = [(place[source], port) for source, port in each.inputs]
        each.controls = [place[source] for source in each.controls]
    results = draw(st.lists(st.integers(0, count - 1), max_size=3))
    return Graph([nodes[old] for old in shuffled], [], [(number, 0) for number in results])


def sources(graph, number):
    each = graph.nodes[number]
    return {source for source, _ in each.inputs} | set(each.controls)


@given(graphs(), st.integers(1, 50), st.integers(0, 500))
def test_any_order_respects_what_ops_wait_for(graph, samples, least):
    _, numbers = in_order(graph, samples, least)
    assert sorted(numbers) == list(range(len(graph.nodes)))
    place = {number: k for k, number in enumerate(numbers)}
    for number in numbers:
        assert all(place[source] < place[number] for source in sources(graph, number))


@given(graphs(), st.integers(1, 50), st.sets(st.integers(0, 24)), st.randoms())
def test_those_that_are_bound_run_in_that_order_whoever_chooses(graph, samples, bound, chance):
    tensors, numbers = in_order(graph, samples)
    waiting = {number: sources(graph, number) for number in numbers}
    for before, after in waits(tensors, numbers, bound):
        assert {before, after} <= bound
        waiting[after].add(before)
    ran = []
    while waiting:
        ready = sorted(number for number, others in waiting.items() if others <= set(ran))
        assert ready  # no circle
        ran.append(chance.choice(ready))
        del waiting[ran[-1]]
    expected = [number for number in numbers if number in bound]
    assert [number for number in ran if number in bound] == expected
