"""A graph run by the executor's rules."""

from __future__ import annotations

from legroom.backends.tensorflow.forecast.executor import Executor, Variable
from legroom.backends.tensorflow.forecast.script import Allocation
from legroom.core.graphs import Graph, Node, Scratch


def size(count):
    return (((float(count), 0.0),), 4.0)


def new(name, count, *inputs, **options):
    return Node(name, options.pop("effect", "new"), [(i, 0) for i in inputs], [], [size(count)],
                **options)  # fmt: skip


def argument():
    return Node("argument", "none", [], [], [None], cheap=True)


def story(graph, threads=1):
    """What happened: names as they are taken, with a minus as they are given back."""
    names, told = {}, []
    for entry in Executor(graph, threads=threads).run():
        if isinstance(entry, Allocation):
            names[entry.number] = entry.op
            told.append(entry.op)
        else:
            told.append(f"-{names[entry]}")
    return told


def test_memory_is_given_back_after_the_last_reader():
    nodes = [argument(), new("a", 1, 0), new("b", 2, 1), new("c", 3, 1, 2)]
    assert story(Graph(nodes, [0], [(3, 0)])) == ["a", "b", "c", "-a", "-b", "-c"]


def test_an_op_writes_over_what_nobody_else_reads():
    nodes = [argument(), new("a", 5, 0), new("b", 5, 1, effect="reuse"), new("c", 1, 2)]
    assert story(Graph(nodes, [0], [(3, 0)])) == ["a", "c", "-a", "-c"]
    nodes.append(new("d", 1, 1, 2))  # someone else reads it, later
    assert "b" in story(Graph(nodes, [0], [(3, 0), (4, 0)]))


def test_an_op_writes_its_last_output_over_the_one_input_that_it_may():
    loss = Node("loss", "reuse", [(1, 0), (2, 0)], [], [size(1), size(5)], over=0)
    nodes = [argument(), new("logits", 5, 0), new("labels", 5, 0), loss]
    assert story(Graph(nodes, [0], [(3, 1)])).count("loss") == 1  # what it is, not its gradient
    loss.over = 1
    nodes.append(new("metric", 1, 2, 3))  # reads the labels, and after it
    assert story(Graph(nodes, [0], [(3, 1), (4, 0)])).count("loss") == 2


def test_an_op_does_not_write_over_another_size_or_an_argument():
    nodes = [argument(), new("a", 5, 0), new("b", 4, 1, effect="reuse")]
    assert story(Graph(nodes, [0], [(2, 0)])) == ["a", "b", "-a", "-b"]
    nodes = [argument(), new("b", 4, 0, effect="reuse")]
    assert story(Graph(nodes, [0], [(1, 0)])) == ["b", "-b"]


def test_the_last_op_that_became_ready_goes_on_and_others_wait_on_a_stack():
    nodes = [argument(), new("a", 1, 0), new("b", 1, 1), new("c", 1, 1), new("d", 1, 3)]
    taken = [name for name in story(Graph(nodes, [0], [(2, 0), (4, 0)])) if name[0] != "-"]
    assert taken == ["a", "c", "d", "b"]


def test_two_threads_have_the_memory_of_two_ops_at_once():
    nodes = [argument(), new("a", 1, 0), new("b", 5, 1), new("of b", 1, 2), new("c", 5, 1),
             new("of c", 1, 4)]  # fmt: skip
    graph = Graph(nodes, [0], [(3, 0), (5, 0)])
    one, two = (story(graph, threads) for threads in (1, 2))
    assert one.index("-c") < one.index("b")
    assert two.index("b") < two.index("-c")
    assert two.index("c") < two.index("-b")
    assert sorted(one) == sorted(two)


def test_an_op_that_takes_long_is_overtaken():
    nodes = [argument(), new("a", 1, 0), new("b", 10**4, 1), new("of b", 1, 2),
             new("c", 10**4, 1), new("of c", 1, 4)]  # fmt: skip
    nodes[4].work = 2e6
    told = story(Graph(nodes, [0], [(3, 0), (5, 0)]), 2)
    assert told.index("of b") < told.index("of c")
    nodes[2].work, nodes[4].work = 2e6, 0.0
    told = story(Graph(nodes, [0], [(3, 0), (5, 0)]), 2)
    assert told.index("of c") < told.index("of b")


def test_a_batch_comes_when_all_else_has_run():
    nodes = [argument(), argument(), new("of the batch", 1, 0), new("of a weight", 1, 1)]
    graph = Graph(nodes, [0, 1], [(2, 0), (3, 0)], late=frozenset({0}))
    assert [n for n in story(graph) if n[0] != "-"] == ["of a weight", "of the batch"]


def test_what_reads_a_batch_runs_in_the_order_of_its_parts():
    """The batch comes on a thread of its own, so its readers line up; others are stacked."""
    nodes = [argument(), argument(), new("of x", 1, 0), new("of y", 1, 1), new("more of x", 1, 2)]
    batch = Graph(nodes, [0, 1], [(3, 0), (4, 0)], late=frozenset({0, 1}))
    assert [n for n in story(batch) if n[0] != "-"] == ["of x", "more of x", "of y"]
    first = Graph([*nodes[:1], new("source", 1, 0), *(new(n, 1, 1) for n in "abc")], [0], [])
    assert [n for n in story(first) if n[0] != "-"] == ["source", "c", "b", "a"]


def test_of_those_an_op_makes_ready_the_farthest_from_the_start_goes_on():
    """Not the one that was traced last: the optimizer sorts the graph by who waits for whom."""
    nodes = [argument(), new("source", 1, 0), new("way", 1, 0), new("longer way", 1, 2),
             Node("far", "new", [(1, 0), (3, 0)], [], [size(1)]),
             Node("near", "new", [(1, 0)], [], [size(1)])]  # fmt: skip
    told = [n for n in story(Graph(nodes, [0], [])) if n[0] != "-"]
    assert told == ["way", "longer way", "source", "far", "near"]


def test_scratch_is_gone_when_the_op_is_done():
    nodes = [argument(), new("a", 1, 0, scratch=Scratch(100.0, 2.0))]
    entries = Executor(Graph(nodes, [0], [(1, 0)])).run()
    assert isinstance(entries[1], Allocation)
    assert entries[1].region == "temp"
    assert entries[1].bytes_at(10, 1) == 120
    assert entries[2] == entries[1].number


def test_a_loop_that_pushes_onto_a_list_holds_all_its_turns():
    """As an LSTM does: each turn's state is kept for the way back, which pops them one by one."""
    body = Graph(
        [
            argument(),
            new("state", 8, 0),
            Node("push", "push", [(0, 0), (1, 0)], [], [None]),
        ],
        [0],
        [(2, 0)],
    )
    back = Graph(
        [argument(), Node("pop", "pop", [(0, 0)], [], [None, None]),
         Node("use", "new", [(1, 1)], [], [size(1)])],
        [0],
        [(1, 0)],
    )  # fmt: skip
    nodes = [
        Node("list", "none", [], [], [None]),
        Node("forward", "loop", [(0, 0)], [], [None], body=body, turns=5),
        Node("backward", "loop", [(1, 0)], [], [None], body=back, turns=5),
    ]
    told = story(Graph(nodes, [], [(2, 0)]))
    assert told.count("state") == told.count("-state") == 5
    assert told.index("-state") > max(i for i, name in enumerate(told) if name == "state")


def test_each_turn_gets_another_item_of_a_list():
    """An LSTM keeps each word for the gradient of its weights: the list is all there to its end."""
    body = Graph(
        [argument(), argument(), Node("get", "get", [(0, 0)], [], [size(8)]),
         Node("push", "push", [(1, 0), (2, 0)], [], [None])],
        [0, 1],
        [(0, 0), (3, 0)],
    )  # fmt: skip
    nodes = [
        Node("words", "unstack", [], [], [size(8)], turns=5),
        Node("list", "none", [], [], [None]),
        Node("loop", "loop", [(0, 0), (1, 0)], [], [None, None], body=body, turns=5),
        Node("after", "new", [(2, 0)], [], [size(1)]),
        Node("end", "new", [(2, 1)], [3], [size(1)]),
    ]
    told = story(Graph(nodes, [], [(4, 0)]))
    assert told.count("words") == 5
    assert told.index("end") < told.index("-words")


def test_a_call_runs_its_graph():
    inner = Graph([argument(), new("inside", 3, 0)], [0], [(1, 0)])
    nodes = [argument(), Node("call", "call", [(0, 0)], [], [size(3)], body=inner),
             new("after", 1, 1)]  # fmt: skip
    assert story(Graph(nodes, [0], [(2, 0)])) == ["inside", "after", "-inside", "-after"]


def variable_nodes(*ops):
    return [Node("v", "none", [], [], [None], cheap=True), *ops]


def test_a_variable_that_is_still_read_moves_when_it_is_written():
    nodes = variable_nodes(
        Node("read", "read", [(0, 0)], [], [size(5)]),
        Node("write", "update", [(0, 0)], [1], [], cheap=True),
        new("late reader", 1, 1),
    )
    nodes[3].controls.append(2)
    variable = Variable(7, size(5))
    executor = Executor(Graph(nodes, [0], []), {"v": variable})
    first, second = (executor.run(made) for made in (100, 200))
    assert [e if isinstance(e, int) else (e.op, e.number) for e in first] == [
        ("write", 101), ("late reader", 102), 102, 7,
    ]  # fmt: skip
    assert second[-1] == 101  # where the step before had left it


def test_a_variable_that_nobody_reads_is_written_in_place():
    nodes = variable_nodes(Node("write", "update", [(0, 0)], [], []))
    assert Executor(Graph(nodes, [0], []), {"v": Variable(7, size(5))}).run() == []


def test_variables_that_share_their_zeros_part_when_they_are_written():
    nodes = [
        *(Node(name, "none", [], [], [None], cheap=True) for name in "vw"),
        *(Node(f"write {k}", "update", [(k, 0)], [], []) for k in (0, 1)),
    ]
    one = Variable(7, size(5))
    variables = {"v": one, "w": Variable(0, size(5), like=one)}
    entries = Executor(Graph(nodes, [0, 1], []), variables).run()
    assert len(entries) == 1  # the last one keeps the zeros' memory


def test_a_variable_takes_over_what_it_is_given():
    nodes = variable_nodes(new("value", 5, 0), Node("assign", "assign", [(0, 0), (1, 0)], [], []))
    entries = Executor(Graph(nodes, [0], []), {"v": Variable(7, size(5))}).run()
    assert [e if isinstance(e, int) else e.op for e in entries] == ["value", 7]


def test_a_variable_whose_rows_were_written_is_copied_by_each_later_read():
    nodes = variable_nodes(
        Node("read", "read", [(0, 0)], [], [size(5)]),
        new("use", 1, 1),
        Node("rows", "scatter", [(0, 0)], [2], [], cheap=True),
    )
    executor = Executor(Graph(nodes, [0], []), {"v": Variable(7, size(5))})
    first, second = (executor.run(made) for made in (100, 200))
    assert [e.op for e in first if isinstance(e, Allocation)] == ["use"]
    assert [e.op for e in second if isinstance(e, Allocation)] == ["read", "use"]


def test_a_list_of_a_tensor_is_copies_and_zeros_like_it_make_room_for_items():
    nodes = [
        new("tensor", 6),
        Node("list", "unstack", [(0, 0)], [], [size(2)], turns=3),
        Node("zeros", "zeros", [(1, 0)], [], [None]),
        new("item", 2),
        Node("set", "set", [(2, 0), (3, 0)], [], [None]),
    ]
    told = story(Graph(nodes, [], [(4, 0)]))
    assert told.count("list") == told.count("zeros") == 3
    assert told.index("-tensor") > told.index("list")
    # One of the zeros goes when the item takes its place; the others with the result.
    assert told[-3:] == ["-item", "-zeros", "-zeros"]


def test_what_waits_for_no_turn_is_made_for_those_to_come():
    body = Graph([argument(), new("zeros", 2, ahead=1), new("use", 1, 0, 1)], [0], [(0, 0)])
    loop = Node("loop", "loop", [(0, 0), (2, 0)], [], [None], body=body, turns=8, ahead=4)
    ahead = Node("zeros", "unstack", [], [], [size(2)], turns=3)
    told = story(Graph([argument(), loop, ahead], [0], []))
    live = most = 0
    for name in told:
        live += {"zeros": 1, "-zeros": -1}.get(name, 0)
        most = max(most, live)
    assert most == 4
    assert live == 0
