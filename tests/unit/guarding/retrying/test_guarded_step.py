"""The loop that survives, with a step of plain Python whose memory is a number."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from legroom.backends.keras.slices.rules import Rules
from legroom.backends.tensorflow.forecast.needs import TracedNeeds, settled_needs
from legroom.core.errors import CannotFitError, OutOfMemoryError
from legroom.core.events import listening
from legroom.core.graphs import Graph, Node, StepWalk
from legroom.core.traces import TracedOp
from legroom.guarding.options import GuardOptions, Start
from legroom.guarding.retrying.guarded_step import GuardedStep


class Exhausted(Exception):
    """What the pretended framework raises."""


class Step:
    """A step that needs 10 bytes a sample, in a pool of 1000."""

    def __init__(self, limit=1000, refusal=None, coupled=()):
        self.limit = limit
        self.taken = 0
        self.ran = []
        self.recovered = 0
        self.found = Rules(refusal=refusal, coupled=list(coupled))
        self.certain = True
        self.pool = SimpleNamespace(
            limit_bytes=lambda: self.limit,
            is_certain=lambda: self.certain,
            in_use_bytes=lambda: self.taken,
            peak_bytes=lambda: self.taken + self.peak,
            reset_peak=lambda: None,
        )
        self.peak = 0

    def samples(self, data):
        return data

    def run(self, data, slice_size):
        size = data if slice_size is None else slice_size
        self.ran.append(slice_size)
        if size * 10 > self.limit - self.taken:
            raise Exhausted(f"{size} samples")
        self.peak = size * 10
        return f"trained {data}"

    def rules(self, data):
        return self.found

    def needs(self, data, free):
        return self.predicted

    def usable(self, *, planned):
        return 1.0

    def tensors(self, samples):
        return []

    def is_oom(self, error):
        return isinstance(error, Exhausted)

    def describe(self, error):
        return "conv", 848_000_000

    predicted = None
    broken_by_oom = False
    oom_seconds = 10.0
    lean_saves = unborn_bytes = 0

    def layer_costs(self, data):
        return [], False  # no model whose layers could be recomputed

    def recompute(self, blocks):
        raise AssertionError("nothing to recompute was offered")

    def recover(self):
        self.recovered += 1


@pytest.fixture
def events():
    """What was told while a test ran, but for the samples of memory that a thread tells."""
    told = []
    with listening(lambda event: event.name in ("memory", "machine") or told.append(event)):
        yield told


def test_whole_batches_that_fit_are_run_whole(events):
    step = Step()
    guarded = GuardedStep(step, GuardOptions())
    assert [guarded(64) for _ in range(3)] == ["trained 64"] * 3
    assert step.ran == [None, None, None]
    measured = [event.data["need_bytes"] for event in events if event.name == "measured"]
    assert measured == [640]  # the first step, and not all of them
    assert len(events) == 1


def test_a_failure_is_repeated_in_slices_and_said_in_one_line(events):
    step = Step()
    guarded = GuardedStep(step, GuardOptions())
    assert guarded(256) == "trained 256"
    ooms = [event for event in events if event.name == "oom"]
    assert [event.data["slice_size"] for event in ooms] == [256, 128]
    assert ooms[-1].text == (
        "out of memory at conv (848 MB more needed): batch 256 now runs as 4 slices of 64; "
        "the step was repeated, nothing lost"
    )
    assert step.recovered == 2


def test_where_running_out_breaks_the_process_nothing_is_repeated_in_it(events):
    step = Step()
    step.broken_by_oom = True
    with pytest.raises(OutOfMemoryError, match="slice_size=128"):
        GuardedStep(step, GuardOptions())(256)
    assert step.ran == [None]
    assert [event.data["broken"] for event in events if event.name == "oom"] == [True]


def test_a_failure_in_the_middle_of_a_training(events):
    step = Step()
    guarded = GuardedStep(step, GuardOptions())
    guarded(64)
    guarded(64)
    step.taken = 700
    assert guarded(64) == "trained 64"
    assert step.ran[-1] is not None
    step.taken = 0
    for _ in range(5):
        guarded(64)
    assert step.ran[-1] is None


def test_steps_that_were_run_elsewhere_are_counted(events):
    guarded = GuardedStep(Step(), GuardOptions())
    assert not guarded.whole_sizes
    guarded(64)
    assert set(guarded.whole_sizes) == {64}
    guarded.count_whole(5, 5 * 64, 64)
    guarded.report()
    (progress,) = [event for event in events if event.name == "progress"]
    assert progress.data["samples_seen"] == 6 * 64
    assert progress.data["batch_size"] == 64


def test_a_batch_that_ran_out_elsewhere_is_not_tried_whole_again(events):
    step = Step()
    guarded = GuardedStep(step, GuardOptions())
    guarded(64)
    step.taken = 500
    guarded.ran_out(("conv", 848_000_000), 0.0)
    assert guarded(64) == "trained 64"
    assert step.ran == [None, 32]
    assert not guarded.whole_sizes
    assert [event.data["slice_size"] for event in events if event.name == "oom"] == [64]


def test_other_errors_come_through():
    class Breaks(Step):
        def run(self, data, slice_size):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        GuardedStep(Breaks(), GuardOptions())(4)


def test_one_sample_too_much(events):
    with pytest.raises(CannotFitError, match="one sample at a time") as caught:
        GuardedStep(Step(limit=5), GuardOptions())(8)
    assert caught.value.budget_bytes == 5
    assert events[-1].name == "cannot_fit"


def test_what_cannot_be_sliced_ends_with_the_reason(events):
    with pytest.raises(CannotFitError, match="it counts its own calls"):
        GuardedStep(Step(refusal="it counts its own calls"), GuardOptions())(256)


def test_exact_refuses_what_slices_would_change(events):
    with pytest.raises(CannotFitError, match="norm mixes the samples"):
        GuardedStep(Step(coupled=["norm"]), GuardOptions(exact=True))(256)
    assert GuardedStep(Step(coupled=["norm"]), GuardOptions())(256) == "trained 256"
    notes = [event for event in events if event.name == "note"]
    assert len(notes) == 1


def test_the_budget_is_the_smaller_of_the_limit_and_what_was_asked_for():
    step = Step()
    guarded = GuardedStep(step, GuardOptions(memory=400))
    guarded(20)
    assert guarded.budget_bytes == 400


def test_where_the_limit_is_not_certain_the_whole_batch_is_tried_first(events):
    """A card that calls 200 bytes its rest has room for more: only running out tells."""
    step = Step()
    step.certain = False
    step.pool.limit_bytes = lambda: 200  # what the driver calls free beside a pool of 1000
    step.needs = lambda data, free: pytest.fail("nothing is predicted against a limit like that")
    guarded = GuardedStep(step, GuardOptions())
    assert [guarded(64) for _ in range(3)] == ["trained 64"] * 3
    assert step.ran == [None, None, None]
    assert guarded.budget_bytes is None
    assert [event.name for event in events] == ["measured"]


def test_where_the_limit_is_not_certain_slicing_begins_with_running_out(events):
    step = Step()
    step.certain = False
    step.pool.limit_bytes = lambda: None
    guarded = GuardedStep(step, GuardOptions())
    for _ in range(6):
        guarded(256)
    ooms = [event.data["slice_size"] for event in events if event.name == "oom"]
    assert ooms[:2] == [256, 128]
    assert len(ooms) <= 3  # 100 samples fit; one look between 64 and 128 is allowed
    assert 64 <= step.ran[-1] <= 100
    step.limit = 5
    with pytest.raises(CannotFitError, match="one sample at a time") as caught:
        guarded(256)
    assert caught.value.budget_bytes is None


def test_the_users_budget_holds_where_the_limit_is_not_certain():
    step = Step()
    step.certain = False
    step.pool.limit_bytes = lambda: 200
    guarded = GuardedStep(step, GuardOptions(memory=800))
    guarded(10)
    assert guarded.budget_bytes == 800


def test_a_step_that_may_not_fit_is_looked_at_more_closely_before_it_runs(events):
    size = (((0.0, 10.0),), 1.0)
    nodes = [
        Node("batch", "none", [], [], [None], cheap=True),
        Node("activation", "new", [(0, 0)], [], [size]),
    ]

    class Walked(Step):
        def needs(self, data, free):
            ops = [TracedOp("activation", (("a", 4 * data),), ())]  # not all of it
            quick = TracedNeeds([SimpleNamespace(kept=[], loops=False, ops=lambda n: ops)], data)
            walk = StepWalk(Graph(nodes, [0], [(1, 0)]), [], [], 1)
            return settled_needs(quick, data, free, lambda: walk)

    step = Walked(limit=2**20)
    step.run = lambda data, size: step.ran.append(size)
    guarded = GuardedStep(step, GuardOptions())
    guarded(200_000)
    assert 50_000 < step.ran[0] < 100_000
    guarded.report()
    (progress,) = [event for event in events if event.name == "progress"]
    assert progress.data["predicted_bytes"] == pytest.approx(10 * step.ran[0], rel=0.1)


class Needs:
    """A prediction that is right, and knows how far it might be off."""

    source, low, high, alike = "told", 1.0, 1.5, True

    def __call__(self, samples):
        return 10 * samples


def test_a_prediction_chooses_the_first_slices(events):
    step = Step()
    step.predicted = Needs()
    guarded = GuardedStep(step, GuardOptions())
    guarded(256)
    assert step.ran == [64]  # 66 would surely fit; four slices in any case
    guarded.report()
    (progress,) = [event for event in events if event.name == "progress"]
    assert progress.data["predicted_bytes"] == 640
    (plan,) = [event for event in events if event.name == "plan"]
    assert "up to 3.84 kB" in plan.text  # error bar and all


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({}, 40),
        ({"coupled": ["norm"]}, None),
        ({"redrawn": ["noise"]}, None),
        ({"refusal": "it counts its own calls"}, None),
        ({"unverified": "it is too large"}, None),
    ],
)
def test_where_slices_are_not_the_same_whatever_may_fit_is_tried_whole(change, first):
    step = Step()
    step.predicted = Needs()
    step.found = Rules(**change)
    GuardedStep(step, GuardOptions())(80)  # 800 bytes, or up to 1200
    assert step.ran == [first]


def test_where_it_clearly_cannot_fit_whole_it_is_not_tried():
    step = Step()
    step.predicted = Needs()
    step.found = Rules(coupled=["norm"])
    GuardedStep(step, GuardOptions())(101)
    assert step.ran == [51]


def test_the_share_that_can_be_used_is_the_steps_to_say():
    asked = []

    class Careful(Step):
        predicted = Needs()

        def usable(self, *, planned):
            asked.append(planned)
            return 0.5

    step = Careful()
    guarded = GuardedStep(step, GuardOptions(start=Start(256, 32, peak_bytes=400)))
    for _ in range(4):
        guarded(256)
    assert asked == [True]
    assert max(step.ran) <= 50


def test_a_plan_is_where_the_search_begins_not_where_it_ends(events):
    step = Step()
    plan = Start(batch_size=256, slice_size=64, peak_bytes=700)
    guarded = GuardedStep(step, GuardOptions(memory=1000, start=plan))
    for _ in range(8):
        guarded(256)
    assert step.ran[0] == 64
    assert 80 <= step.ran[-1] <= 100  # there is room for 100


def test_a_plan_that_runs_out_is_left_behind(events):
    step = Step()
    guarded = GuardedStep(step, GuardOptions(start=Start(256, 128, peak_bytes=900)))
    assert guarded(256) == "trained 256"
    assert step.ran[:2] == [128, 64]
    assert [event.name for event in events if event.name == "oom"] == ["oom"]


def test_a_plan_for_more_memory_is_not_followed(events):
    step = Step()
    guarded = GuardedStep(step, GuardOptions(start=Start(64, 2, peak_bytes=5000)))
    guarded(64)
    assert step.ran == [None]
    assert "is not used" in events[0].text


def test_a_plan_says_what_is_recomputed_from_the_start(events):
    class Leaner(Step):
        def recompute(self, blocks):
            self.limit *= 4
            self.blocks = blocks

    step = Leaner()
    plan = Start(256, 256, peak_bytes=900, recompute=(("a", "b"),))
    guarded = GuardedStep(step, GuardOptions(start=plan))
    guarded(256)
    assert step.ran == [None]
    assert step.blocks == (("a", "b"),)
    (told,) = [event for event in events if event.name == "plan"]
    assert "2 layers are recomputed" in told.text
    assert told.data["recompute"] == [["a", "b"]]


class Ordered(Step):
    """Which needs less with its ops in order, unless that was a mistake."""

    def put_in_order(self, samples):
        assert samples == 256
        self.limit *= self.helps

    helps = 4


def test_a_plan_says_that_ops_run_in_order_from_the_start(events):
    step = Ordered()
    guarded = GuardedStep(step, GuardOptions(start=Start(256, 256, peak_bytes=900, ordered=True)))
    guarded(256)
    assert step.ran == [None]
    (told,) = [event for event in events if event.name == "plan"]
    assert "its ops in an order that needs less memory" in told.text
    assert told.data["order"]
    assert told.data["slice_size"] == 256


def test_an_order_that_runs_out_is_left_for_slices(events):
    step = Ordered()
    step.helps = 1
    guarded = GuardedStep(step, GuardOptions(start=Start(256, 256, peak_bytes=900, ordered=True)))
    guarded(256)
    assert step.ran[:2] == [None, 128]
    failure = next(event for event in events if event.name == "oom")
    assert "batch 256 now runs as 2 slices of 128" in failure.text


def test_batches_that_the_plan_is_not_for_are_said(events):
    guarded = GuardedStep(Step(), GuardOptions(start=Start(64, 32, peak_bytes=900)))
    guarded(48)
    assert "the plan is for batches of 64, but the first one has 48" in events[0].text


def test_samples_are_counted_once(events):
    guarded = GuardedStep(Step(), GuardOptions())
    for size in (256, 256, 100):
        guarded(size)
    guarded.report()
    seen = [event.data for event in events if event.name == "progress"]
    assert sum(data["samples_seen"] for data in seen) == 612
    assert sum(data["samples_lost"] for data in seen) == 0


def test_another_call_goes_on_with_what_is_known_and_reports_it_again(events):
    step = Step()
    guarded = GuardedStep(step, GuardOptions())
    for _ in range(4):
        guarded(256)
    guarded.report()
    ran, size = len(step.ran), step.ran[-1]
    events.clear()
    guarded.begin_call(None)
    guarded(256)
    guarded(256)
    guarded.report()
    assert step.ran[ran:] == [size, size], "nothing is searched for again"
    plans = [event for event in events if event.name == "plan"]
    assert [(event.data["slice_size"], event.text) for event in plans] == [(size, "")]
    progress = [event.data for event in events if event.name == "progress"]
    assert [(told["samples_seen"], told["budget_bytes"]) for told in progress] == [(512, 1000)]


def test_a_step_that_did_not_run_in_a_call_reports_nothing_of_it(events):
    guarded = GuardedStep(Step(), GuardOptions())
    guarded(64)
    guarded.report()
    guarded.begin_call(None)
    events.clear()
    guarded.report()
    assert events == []


def test_another_call_reads_the_budget_again(events):
    step = Step()
    guarded = GuardedStep(step, GuardOptions())
    guarded(256)
    step.limit = 10_000
    guarded.begin_call(None)
    for _ in range(3):
        guarded(256)
    assert step.ran[-1] is None, "there is room for all of it now"


def test_what_is_barred_later_is_not_run_whole_any_more():
    step = Step()
    guarded = GuardedStep(step, GuardOptions())
    guarded(64)
    guarded(64)
    guarded.bar(64)
    guarded(64)
    assert step.ran[-1] is not None
    assert step.ran[-1] < 64


class Heavy(Step):
    """A step whose gradients take 600 bytes beside the state, unless it is lean."""

    def __init__(self, limit=1000, gradients=600):
        super().__init__(limit)
        self.gradients = gradients
        self.lean = False

    @property
    def lean_saves(self):
        return 0 if self.lean else self.gradients

    def go_lean(self, lean=True):
        self.lean = lean

    def run(self, data, slice_size):
        size = data if slice_size is None else slice_size
        self.ran.append("lean" if self.lean and slice_size is None else slice_size)
        held = 0 if self.lean and slice_size is None else self.gradients
        if size * 10 + held > self.limit - self.taken:
            raise Exhausted(f"{size} samples")
        self.peak = size * 10 + held
        return f"trained {data}"


def test_where_the_gradients_do_not_fit_a_batch_runs_whole_with_its_state_on_the_host(events):
    step = Heavy(limit=500)
    guarded = GuardedStep(step, GuardOptions())
    assert [guarded(32) for _ in range(3)] == ["trained 32"] * 3
    assert step.ran == ["lean"] * 3
    assert [event.name for event in events if event.text] == ["plan"]


def test_before_it_is_said_that_nothing_fits_the_host_is_tried(events):
    step = Heavy(limit=605)  # room for the gradients, and for nothing else
    assert GuardedStep(step, GuardOptions())(32) == "trained 32"
    assert step.ran[-2:] == [1, "lean"]
    ooms = [event.text for event in events if event.name == "oom"]
    assert "is repeated with a copy of the weights in main memory" in ooms[-1]


def test_what_does_not_fit_lean_either_is_told_once_and_not_tried_again(events):
    step = Heavy(limit=100)
    with pytest.raises(CannotFitError):
        GuardedStep(step, GuardOptions())(32)
    assert step.ran.count("lean") == 1
    assert step.ran[-1] == 1
    assert not step.lean


@pytest.mark.parametrize(("seconds", "tries"), [(0.0, True), (10.0, False)])
def test_a_last_try_has_to_be_worth_what_running_out_costs(events, seconds, tries):
    step = Heavy(limit=500, gradients=4)  # less than a hundredth of the budget
    step.oom_seconds = seconds
    step.taken = 495
    with pytest.raises(CannotFitError):
        GuardedStep(step, GuardOptions())(32)
    assert ("lean" in step.ran) == tries


def test_when_room_comes_back_a_step_is_lean_no_longer(events, monkeypatch):
    monkeypatch.setattr("legroom.guarding.retrying.guarded_step._PROGRESS_EVERY", 0.0)
    step = Heavy(limit=2000)
    step.taken = 1500
    guarded = GuardedStep(step, GuardOptions())
    for _ in range(3):
        guarded(32)
    assert step.ran == ["lean"] * 3
    step.taken = 0
    guarded(32)
    guarded(32)
    assert step.ran == ["lean"] * 4 + [None]
