"""What TensorBoard itself reads in the files that are written for it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from legroom.core.events import MemorySampled, Planned, RanOut
from legroom.report.exports.eventfile import EventFile, make_png
from legroom.report.exports.tensorboard import TensorBoardLog


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0, "images": 0})
    found.Reload()
    return found


@pytest.mark.parametrize("step", [0, 1, 127, 128, 2**40])
@pytest.mark.parametrize("value", [0.0, -1.5, 3e38])
def test_scalars_come_back(tmp_path: Path, step: int, value: float) -> None:
    file = EventFile(tmp_path)
    file.scalar("memory/peak", value, step, at=1e9)
    file.close()
    (event,) = read(tmp_path).Scalars("memory/peak")
    assert (event.step, event.wall_time) == (step, 1e9)
    assert event.value == pytest.approx(value)


def test_texts_come_back(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.text("events", "out of memory at “conv” <b>", 3)
    file.close()
    (event,) = read(tmp_path).Tensors("events")
    assert event.tensor_proto.string_val == ["out of memory at “conv” <b>".encode()]


def test_a_picture_is_a_picture() -> None:
    rows = [[(255, 0, 0), (0, 255, 0), (0, 0, 255)], [(1, 2, 3)] * 3]
    image = Image.open(io.BytesIO(make_png(rows)))
    assert image.size == (3, 2)
    assert [image.getpixel((x, 0)) for x in range(3)] == rows[0]
    assert image.getpixel((2, 1)) == (1, 2, 3)


def test_a_run_in_tensorboard(tmp_path: Path) -> None:
    log = TensorBoardLog(tmp_path)
    for k in range(5):
        log(MemorySampled(at=1e9 + k, device_bytes=k * 10**6, peak_bytes=5_000_000,
                          host_bytes=9_000_000, steps=10 * k))  # fmt: skip
    log(RanOut("out of memory at conv"))
    log(Planned(batch_size=64, slice_size=16, slices=4, budget_bytes=6_000_000))
    log.close()
    assert (log.peak_bytes, log.slices, log.ooms) == (5_000_000, 4, 1)
    found = read(tmp_path)
    assert [(one.step, one.value) for one in found.Scalars("memory/device_MB")] == [
        (10 * k, k) for k in range(5)
    ]
    assert found.Scalars("memory/device_peak_MB")[-1].value == 5
    assert found.Scalars("legroom/slices")[0].value == 4
    assert found.Tensors("legroom/events")[0].tensor_proto.string_val == [b"out of memory at conv"]
    (tag,) = found.Tags()["images"]
    assert tag == "memory/timeline (at most 4.00 MB)"
    picture = Image.open(io.BytesIO(found.Images(tag)[0].encoded_image_string))
    assert picture.size == (600, 200)
    colours = {colour for _, colour in picture.getcolors()}
    assert len(colours) == 3  # paper, the curve, and the limit's line
