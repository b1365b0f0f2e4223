"""What follows from runs of a step, by table: four samples at once, and in slices of 1 and 3."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from legroom.backends.keras.slices import judge
from legroom.backends.keras.slices.judge import Near
from legroom.backends.keras.slices.rules import Draw, Refused, Unshown
from legroom.backends.keras.slices.runs import Decision, Drawn, Run

NEAR = Near()
# A mean over four samples of which the first alone has 2, and the other three have 6.
MEAN, SUM, PARTS = 5.0, 8.0, (2.0, 6.0)


def whole(**seen) -> Run:
    """What four samples showed at once; lists by slice have this one slice."""
    return Run([4], **{name: [value] for name, value in seen.items()})


def parts(**seen) -> Run:
    """What the same samples showed in two slices."""
    return Run([1, 3], **{name: list(values) for name, values in seen.items()})


@pytest.mark.parametrize(
    ("one", "other", "floor", "single", "half"),
    [
        (1.0, 1.0, 0, True, True),
        (1.0, 1.0001, 0, True, True),
        (1.0, 1.001, 0, False, True),
        (1.0, 1.04, 0, False, True),
        (1.0, 1.1, 0, False, False),
        (0.0, 1e-20, 0, True, True),  # as good as nothing
        (0.0, 1e-6, 0, False, False),
        (0.0, 1e-6, 10.0, True, True),  # nothing beside what else there is
        ([1e6, 1.0], [1e6, 2.0], 0, True, True),  # on the scale of the largest
        ([1.0], 1.0, 0, False, False),
        ([1.0, 1.0], [1.0], 0, False, False),
        ([], [], 0, True, True),
    ],
)
def test_near(one, other, floor, single, half):
    for near, wanted in ((Near(), single), (Near(halves=True), half)):
        assert near(one, other, floor) is wanted
        assert near(other, one, floor) is wanted


@pytest.mark.parametrize(
    ("policy", "term", "halves"),
    [
        ("float32", np.float32(1), False),
        ("float16", np.float32(1), True),
        ("bfloat16", np.float32(1), True),
        ("float32", np.float16(1), True),
        ("float64", 1.0, False),
    ],
)
def test_precision_is_that_of_layers_or_losses(policy, term, halves):
    assert Near.of(whole(terms=[term]), policy).halves is halves


@pytest.mark.parametrize(
    ("value", "slices", "rule", "coupled"),
    [
        (MEAN, PARTS, None, []),
        (SUM, PARTS, "sum", []),
        (7.0, PARTS, None, ["dice"]),
        (2.0, (2.0, 2.0), None, []),  # a regularizer, the same in every slice
        (0.0, (0.0, 0.0), None, []),  # both: its own reduction tells
        (np.ones(4), (np.ones(1), np.ones(3)), None, []),  # the gradients tell
    ],
)
def test_loss_terms(value, slices, rule, coupled):
    one = whole(terms=[MEAN, value], counts={})
    one.names = ["mse", "dice"]
    others = parts(terms=[[2.0, slices[0]], [6.0, slices[1]]])
    assert judge.term_rules(one, others, NEAR) == ([None, rule], coupled)


def test_a_term_that_counts_is_told_by_what_it_counts():
    one = whole(terms=[7.0], counts={0: 12.0})
    one.names = ["masked"]
    others = parts(terms=[[2.0], [6.0]], counts=[{0: 5.0}, {0: np.float32(7.0)}])
    assert judge.term_rules(one, others, NEAR) == ([None], [])
    assert judge.total_counts(one, others) == {0: 12.0}
    assert judge.total_counts(whole(counts={}), others) == {}


def test_a_coupled_loss_is_named_once():
    one = whole(terms=[7.0, 7.0], counts={})
    one.names = ["dice", "dice"]
    others = parts(terms=[[2.0, 2.0], [6.0, 6.0]])
    assert judge.term_rules(one, others, NEAR) == ([None, None], ["dice"])


def arrays(*values):
    return [None if value is None else np.full(3, value) for value in values]


@pytest.mark.parametrize(
    ("gradients", "first", "second", "rule"),
    [
        (arrays(5, 5), arrays(2, 2), arrays(6, 6), "mean"),
        (arrays(8, 8), arrays(2, 2), arrays(6, 6), "sum"),
        (arrays(7, 7), arrays(2, 2), arrays(6, 6), None),
        (arrays(5, 8), arrays(2, 2), arrays(6, 6), None),  # one variable's a mean, one's a sum
        (arrays(8, 0), arrays(2, 0), arrays(6, 0), "sum"),
        (arrays(0, 0), arrays(0, 0), arrays(0, 0), "mean"),
        (arrays(8, None), arrays(2, None), arrays(6, None), "sum"),
        (arrays(None), arrays(None), arrays(None), "mean"),
        ([], [], [], "mean"),
        ([np.zeros((0, 2))], [np.zeros((0, 2))], [np.zeros((0, 2))], "mean"),
        # Rounding in a variable whose gradient is nothing beside the other's.
        (arrays(5, 1e-9), arrays(2, 0), arrays(6, 0), "mean"),
        (arrays(5, 1e-3), arrays(2, 0), arrays(6, 0), None),
    ],
)
def test_gradients(gradients, first, second, rule):
    one, others = whole(gradients=[gradients]), parts(gradients=[[first], [second]])
    assert judge.gradient_rules(one, others, NEAR) == [rule]


def test_each_apply_has_its_own_rule():
    one = whole(gradients=[arrays(5), arrays(8), arrays(7)])
    others = parts(gradients=[[arrays(2)] * 3, [arrays(6)] * 3])
    assert judge.gradient_rules(one, others, NEAR) == ["mean", "sum", None]


@pytest.mark.parametrize(
    ("gradients", "doubled", "rule"),
    [
        (arrays(5, 3), arrays(5, 3), "mean"),
        (arrays(5, 3), arrays(10, 6), "sum"),
        (arrays(5, None), arrays(10, None), "sum"),
        (arrays(0, 0), arrays(0, 0), "mean"),
        (arrays(5, 3), arrays(9, 6), None),  # 4 of the 5 from samples, 1 from a regularizer
        (arrays(5, 3), arrays(5, 6), None),
    ],
)
def test_samples_that_come_twice_tell_a_mean_from_a_sum(gradients, doubled, rule):
    one, twice = whole(gradients=[gradients]), Run([8], gradients=[[doubled]])
    if rule is None:
        with pytest.raises(Refused, match="neither means nor sums"):
            judge.coupled_rules(one, twice, NEAR)
    else:
        assert judge.coupled_rules(one, twice, NEAR) == [rule]


def test_gradients_in_halves_may_be_further_off():
    one, others = whole(gradients=[arrays(5.1)]), parts(gradients=[[arrays(2)], [arrays(6)]])
    assert judge.gradient_rules(one, others, NEAR) == [None]
    assert judge.gradient_rules(one, others, Near(halves=True)) == ["mean"]


@pytest.mark.parametrize(
    ("value", "first", "second", "rules"),
    [
        (MEAN, *PARTS, ["mean"]),
        (SUM, *PARTS, ["sum"]),
        (6.0, *PARTS, ["last"]),
        (7.0, *PARTS, []),
        (2.0, 2.0, 2.0, ["mean", "last"]),
        (0.0, 0.0, 0.0, ["mean", "last", "sum"]),
        (6.0, 0.0, 6.0, ["last", "sum"]),
        (np.int64(4), np.int64(1), np.int64(3), ["sum"]),
        (np.int64(3), np.int64(3), np.int64(3), ["last"]),  # never a mean of counts
        (np.int64(0), np.int64(0), np.int64(0), ["sum", "last"]),
        (np.arange(4), np.arange(1), np.arange(3), ["concat"]),  # whatever is in it
        (np.ones((4, 2)), np.ones((1, 2)), np.ones((3, 2)), ["concat"]),
        (np.ones((4, 4)), np.ones((1, 1)), np.ones((3, 3)), []),  # of pairs
        (np.full(4, MEAN), np.full(4, 2.0), np.full(4, 6.0), ["mean"]),  # four of something else
        (None, None, None, ["last"]),
        ("loss", "loss", "loss", ["last"]),
        (np.bool_(True), np.bool_(False), np.bool_(True), ["last"]),
    ],
)
def test_results(value, first, second, rules):
    one, others = whole(outputs=[MEAN, value]), parts(outputs=[[2.0, first], [6.0, second]])
    assert judge.output_rules(one, others, NEAR) == [["mean"], rules]


@pytest.mark.parametrize(
    ("value", "first", "second", "rule"),
    [
        (np.ones(4), np.ones(1), np.ones(3), "concat"),
        (MEAN, *PARTS, "mean"),
        (SUM, *PARTS, "sum"),
        (7.0, *PARTS, "mean"),  # as good as any
    ],
)
def test_held_updates(value, first, second, rule):
    one = whole(held=[[None, value], [SUM]])
    others = parts(held=[[[None, first], [2.0]], [[None, second], [6.0]]])
    assert judge.held_rules(one, others, NEAR) == [["last", rule], ["sum"]]


def test_a_held_update_that_cant_be_put_together():
    pairs = [np.ones((n, n)) for n in (4, 1, 3)]
    one, others = whole(held=[[SUM], [pairs[0]]]), parts(held=[[[2.0], [p]] for p in pairs[1:]])
    assert judge.held_rules(one, others, NEAR) is None


@pytest.mark.parametrize(
    ("once", "again", "kinds"),
    [
        ([[None]], [[None]], [[None]]),
        ([[6, None]], [[12, None]], [["samples", None]]),
        ([[6], [5]], [[6], [10]], [["entries"], ["samples"]]),
        ([], [], []),
    ],
)
def test_sparse_rows(once, again, kinds):
    assert judge.sparse_rows(whole(rows=once), Run([8], rows=[again])) == kinds


def test_sparse_rows_of_two_kinds_are_refused():
    with pytest.raises(Refused, match="mixes rows of samples with other rows"):
        judge.sparse_rows(whole(rows=[[6]]), Run([8], rows=[[[9]]]))


def variable(name):
    return SimpleNamespace(name=name)


@pytest.mark.parametrize(
    ("before", "after", "other", "same"),
    [
        (0.0, 5.0, 5.0, True),
        (0.0, 5.0, 6.0, False),
        (0.0, 5.0, None, False),  # not written in slices
        (1e3, 0.0, 1e-6, True),  # nothing beside what it was
    ],
)
def test_state(before, after, other, same):
    state = variable("state")
    one = Run([4], written={1: (state, np.array(before), np.array(after))})
    others = Run([1, 3], written={} if other is None else {1: (state, before, np.array(other))})
    assert judge.unlike_state(one, others, (), NEAR) == ({} if same else {1: state})


def test_state_that_others_look_after():
    names = ["kernel", "average", "dropout/seed_generator_state", "own"]
    one = Run([4], written={i: (variable(n), np.zeros(()), 1.0) for i, n in enumerate(names)})
    one.trained = {0}
    assert list(judge.unlike_state(one, Run([1, 3]), {1}, NEAR)) == [3]


def test_owners_of_state():
    accuracy, names = object(), {3: "norm", 4: "norm", 5: None}
    found = judge.owners(
        {key: key for key in (1, 2, 3, 4)}, {1: accuracy, 2: accuracy}, names.__getitem__
    )
    assert found == ([accuracy], ["norm"])
    with pytest.raises(Refused, match="a variable of its own, 'count', which slices"):
        judge.owners({5: variable("count")}, {1: accuracy}, lambda _: None)


@pytest.mark.parametrize(
    ("gradients", "terms", "draws", "why"),
    [
        ([[1, 1], [1, 1]], [[1], [1]], [(1, 8), (3, 8)], None),
        ([[1, 1], [1]], [[1], [1]], [(1, 8), (3, 8)], "a different number of times"),
        ([[1, 1], [1, 1]], [[1, 1], [1, 1]], [(1, 8), (3, 8)], "it computes different losses"),
        ([[1, 1], [1, 1]], [[1], [1]], [(16, 8), (16, 8)], r"of a fixed size \(16, 8\)"),
        ([[1, 1], [1, 1]], [[1], [1]], [(16, 8), (3, 8)], None),
    ],
)
def test_another_course_on_a_part_of_the_batch_is_refused(gradients, terms, draws, why):
    one = whole(gradients=[1, 1], terms=[1], draws=[Drawn("uniform", (16, 8), "")])
    others = parts(
        gradients=gradients, terms=terms, draws=[[Drawn("uniform", s, "")] for s in draws]
    )
    if why is None:
        judge.refuse_other_course(one, others, 16)
    else:
        with pytest.raises(Refused, match=why):
            judge.refuse_other_course(one, others, 16)
    judge.refuse_other_course(one, parts(draws=others.draws), 32)  # 16 is not the batch


def draw(scope, way):
    return Draw("uniform", (1, 8), (True, False), scope, way)


@pytest.mark.parametrize(
    ("unlike", "apart"),
    [
        (set(), []),
        ({"a"}, ["a", "a"]),
        ({"a", "b"}, ["a", "a", "b"]),
        ({"a and b together"}, ["a", "a", "b"]),
    ],
)
def test_rows_that_are_not_the_same_step_are_drawn_apart(unlike, apart):
    draws = [draw("a", "rows"), draw("a", "rows"), draw("b", "rows"), draw("c", "same")]
    asked = []

    def agree(scopes):
        asked.append(scopes)
        together = len(scopes) > 1 and "a and b together" in unlike
        return not together and not scopes & unlike

    found = judge.apart_where_unlike(draws, agree)
    assert [d.scope for d in found if d.way == "apart"] == apart
    assert [d.scope for d in found] == [d.scope for d in draws]
    assert len(asked) == (3 if unlike else 1)


@pytest.mark.parametrize(
    ("ways", "asked"), [(["same", "apart"], 0), (["rows", "same"], 1), (["rows", "rows"], 1)]
)
def test_a_single_scope_is_asked_about_once(ways, asked):
    calls = []
    found = judge.apart_where_unlike([draw("a", way) for way in ways], calls.append)
    assert len(calls) == asked
    assert not asked or {d.way for d in found} == {"apart"}


@pytest.mark.parametrize(
    ("draws", "layers"),
    [
        ([draw("model/dropout", "rows"), draw("model/dropout", "same")], []),
        ([draw("model/dropout/cond", "apart")], ["dropout"]),
        ([draw("model/block/dropout", "apart")], ["dropout"]),  # the innermost
        ([draw("", "apart"), draw("noise", "apart")], ["the step"]),
        ([draw("block/a", "apart"), draw("block/b", "apart"), draw("dropout", "apart")],
         ["block", "dropout"]),
    ],
)  # fmt: skip
def test_layers_that_draw_other_numbers(draws, layers):
    assert judge.redrawn_layers(draws, {"model", "block", "dropout"}) == layers


def chosen(number, shape=(), op="GreaterEqual"):
    return Decision(op, shape, [np.full(shape, number), np.float32(1)])


@pytest.mark.parametrize(
    ("at_once", "in_slices", "decides"),
    [
        ([], ([], []), False),
        ([chosen(5.0)], ([chosen(2.0)], [chosen(6.0)]), True),  # a floor under a mean
        ([chosen(5.0)], ([chosen(5.0)], [chosen(5.0)]), False),  # a weight's
        ([chosen(5.0, (4,))], ([chosen(2.0, (1,))], [chosen(6.0, (3,))]), False),  # each sample's
        ([chosen(5.0, (7,))], ([chosen(2.0, (7,))], [chosen(6.0, (7,))]), True),
        ([chosen(5.0)], ([chosen(2.0, op="Sign")], [chosen(6.0)]), False),  # another course
        ([chosen(5.0)], ([], []), False),
        ([Decision("Sign", (), [])], ([Decision("Sign", (), [])],) * 2, False),  # many numbers
        (
            [chosen(1.0, (4,)), chosen(5.0)],
            ([chosen(1.0, (1,)), chosen(2.0)], [chosen(1.0, (3,)), chosen(6.0)]),
            True,
        ),
    ],
)
def test_choices_by_a_number_of_the_whole_batch(at_once, in_slices, decides):
    one, other = whole(decisions=at_once), parts(decisions=in_slices)
    assert judge.decides(one, other, NEAR) is decides


NAN, INF = np.float32("nan"), np.float32("inf")


@pytest.mark.parametrize(
    ("one", "others", "refusal"),
    [
        ({"terms": [1.0]}, {"terms": [[1.0], [1.0]]}, None),
        ({"terms": [NAN]}, {"terms": [[1.0], [NAN]]}, "its loss is .* on the samples"),
        ({"terms": [1.0]}, {"terms": [[NAN], [1.0]]}, "its loss is .* on a part"),
        ({"terms": [INF]}, {"terms": [[INF], [1.0]]}, "its loss is infinite"),
        ({"gradients": [[None, NAN]]}, {}, "its gradients are"),
        ({"gradients": [[None, np.ones(2)]]}, {}, None),
    ],
)
def test_losses_that_are_no_numbers(one, others, refusal):
    if refusal is None:
        judge.refuse_no_numbers(whole(**one), parts(**others), NEAR)
        return
    with pytest.raises(Refused, match=refusal):
        judge.refuse_no_numbers(whole(**one), parts(**others), NEAR)


def test_gradients_may_overflow_in_half_precision():
    judge.refuse_no_numbers(whole(gradients=[[INF]]), parts(), Near(halves=True))


@pytest.mark.parametrize(
    ("agree", "resumes", "known", "found"),
    [
        (True, True, False, []),
        (True, False, False, ["random"]),
        (False, True, True, ["random"]),
        (False, True, False, None),
    ],
)
def test_own_noise(agree, resumes, known, found):
    # What is drawn from once only was made then.
    runs = Run([4], moved=["random", "numpy.random"]), Run([1, 3], moved=["random"])
    how = {"agree": agree, "resumes": resumes, "known": known}
    if found is not None:
        assert judge.own_noise(*runs, **how) == found
        return
    with pytest.raises(Refused, match=r"its own random numbers \(random\)"):
        judge.own_noise(*runs, **how)


@pytest.mark.parametrize(
    ("terms", "gradients", "seen", "tells"),
    [
        (["sum"], [], {"terms": [[2.0], [6.0]]}, True),
        (["sum"], [], {"terms": [[0.0], [6.0]]}, False),
        ([None], [], {"terms": [[0.0], [6.0]]}, True),  # a mean
        ([], ["sum"], {"gradients": [[[np.ones(2), None]], [[np.ones(2), None]]]}, True),
        ([], ["sum"], {"gradients": [[[np.zeros(2), None]], [[np.ones(2), None]]]}, False),
        ([], ["sum"], {"gradients": [[[np.full(2, 1e-9)]], [[np.ones(2)]]]}, False),
        ([], ["mean"], {"gradients": [[[np.zeros(2)]], [[np.ones(2)]]]}, True),
    ],
)
def test_what_only_one_slice_has_a_part_in_is_no_sum(terms, gradients, seen, tells):
    at_once = whole(gradients=[[np.ones(2)] for _ in gradients])
    if tells:
        judge.refuse_unshown(terms, gradients, at_once, parts(**seen))
    else:
        with pytest.raises(Unshown, match="means or sums"):
            judge.refuse_unshown(terms, gradients, at_once, parts(**seen))


@pytest.mark.parametrize(
    ("gradients", "tells"),
    [([], True), ([[None]], True), ([[np.zeros(2), None]], False),
     ([[np.zeros(2), np.ones(2)]], True), ([[np.ones(2)], [np.zeros(2)]], False)],
)  # fmt: skip
def test_without_gradients_nothing_is_shown(gradients, tells):
    if tells:
        judge.refuse_unshown([], [], whole(gradients=gradients), parts())
    else:
        with pytest.raises(Unshown, match="no gradients"):
            judge.refuse_unshown([], [], whole(gradients=gradients), parts())
