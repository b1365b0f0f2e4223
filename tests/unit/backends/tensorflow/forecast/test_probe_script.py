"""From what a probe recorded at two sizes to any size."""

from __future__ import annotations

from legroom.backends.tensorflow.forecast.probe_script import read_recording
from legroom.backends.tensorflow.forecast.replay import look_closer, replay
from legroom.backends.tensorflow.forecast.script import Allocation
from legroom.core.graphs import Scratch

TEXTS = ["", "output", "temp", "conv", "assign", "[3,4]", "[2,4]", "[7]", "[3,3]", "[2,2]"]
NONE, OUTPUT, TEMP, CONV, ASSIGN = range(5)


def step(first, shape, size, square, square_size):
    """A step: an activation that grows, a table that grows twice, a scratch that does not."""
    return [
        [first, size, CONV, OUTPUT, shape, size],
        [first + 1, square_size, CONV, OUTPUT, square, square_size],
        [first + 2, 28, CONV, TEMP, 7, 256],
        [-(first + 2)],
        [-(first + 1)],
        [-first],
    ]


def record():
    large = step(10, 5, 48, 8, 36)
    return {
        "texts": TEXTS,
        "events": {
            "build": [[1, 400, NONE, NONE, NONE, 512]],
            "input 3": [[2, 48, NONE, NONE, 5, 256]],
            "state": [[3, 400, NONE, NONE, NONE, 512]],
            "step 1 of 3": large,
            "step 2 of 3": step(20, 5, 48, 8, 36),
            "end 3": [],
            "input 2": [[40, 32, NONE, NONE, 6, 256]],
            "step 1 of 2": step(50, 6, 32, 9, 16),
            "step 2 of 2": step(60, 6, 32, 9, 16),
            "end 2": [],
        },
    }


def sizes(entries, samples):
    return [e.bytes_at(samples, 3) for e in entries if isinstance(e, Allocation)]


def test_each_axis_that_grew_is_stretched():
    script = read_recording(record(), (3, 2))
    assert sizes(script.steps[0], 3) == [48, 36, 28]
    assert sizes(script.steps[0], 10) == [160, 400, 28]
    assert sizes(script.input, 10) == [160]
    assert sizes(script.build, 10) == [400]
    assert script.unmatched == 0


def test_what_only_a_first_step_makes_does_not_shift_later_ones():
    made = record()
    for name in ("step 1 of 3", "step 1 of 2"):
        # A program that XLA compiles, say: allocated by the same op, before all else.
        made["events"][name].insert(0, [70, 8000, CONV, OUTPUT, NONE, 8192])
    script = read_recording(made, (3, 2))
    assert sizes(script.steps[0], 10) == [8000, 160, 400, 28]
    assert sizes(script.steps[1], 10) == [160, 400, 28]


def test_what_has_no_counterpart_grows_as_its_like_does():
    made = record()
    made["events"]["step 1 of 3"].insert(1, [13, 48, ASSIGN, OUTPUT, 5, 256])
    script = read_recording(made, (3, 2))
    assert sizes(script.steps[0], 10) == [160, 160, 400, 28]
    assert script.unmatched == 0


def test_what_has_no_like_stays_and_is_counted():
    made = record()
    made["events"]["step 1 of 3"].insert(1, [13, 1000, ASSIGN, OUTPUT, NONE, 1024])
    script = read_recording(made, (3, 2))
    assert sizes(script.steps[0], 10)[1] == 1000
    assert 0 < script.unmatched < 1


def test_a_replay_gives_the_peak_of_each_step():
    script = read_recording(record(), (3, 2))
    played = replay(script, 1000, steps=5)
    held = 512 + 512 + 16128
    assert len(played.peaks) == 5
    # The activation, the square and the scratch, on top of what is held. The square's 4 MB are
    # less than half of what is left of a region of 4 MiB: it gets all of that.
    assert held + 16_000 + 4_000_000 + 256 < played.steady <= held + 16_128 + 2**22 + 256
    assert played.peaks[2] == played.peaks[4]


def test_repeated_steps_swap_what_the_step_before_made():
    """A variable whose memory is replaced in each step does not pile up."""
    made = record()
    for number, name in enumerate(("step 1 of 3", "step 2 of 3", "step 1 of 2", "step 2 of 2")):
        made["events"][name] = [
            [100 + number, 5000, ASSIGN, TEMP, NONE, 5120],
            [-(99 + number) if number != 2 else -101],
        ]
    script = read_recording(made, (3, 2))
    played = replay(script, 3, steps=20)
    assert len(set(played.peaks[2:])) == 1


def test_what_is_live_at_the_peak_is_named():
    live, timeline, _ = look_closer(read_recording(record(), (3, 2)), 1000)
    assert {item.phase for item in live} == {"build", "input", "state", "step"}
    assert sum(item.nbytes for item in live) == max(size for _, size in timeline)
    assert [op for op, _ in timeline] == ["conv", "conv", "conv"]


def test_what_an_op_takes_at_larger_sizes_only_comes_beside_its_output():
    script = read_recording(record(), (3, 2), {"conv": Scratch(1000.0, 0.0, since=50)})
    assert sizes(script.steps[0], 49) == [784, 0, 9604, 0, 28]
    assert sizes(script.steps[0], 50) == [800, 1000, 10000, 1000, 28]
    first = next(entry for entry in script.steps[0] if entry.region == "temp")
    assert script.steps[0][2] == first.number  # given back before anything else is taken


def test_nothing_takes_no_memory():
    later = {"conv": Scratch(2.0**30, 0.0, since=50)}
    plain, more = read_recording(record(), (3, 2)), read_recording(record(), (3, 2), later)
    assert replay(more, 49).peaks == replay(plain, 49).peaks
    assert replay(more, 50).steady > 2**30
