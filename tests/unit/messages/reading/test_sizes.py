"""Sizes, shapes, types and devices as frameworks write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.messages.reading.sizes import (
    SIZE,
    SIZED,
    device_of_allocator,
    device_of_path,
    dtype_name,
    parse_bytes,
    parse_shape,
    tensor_bytes,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0B", 0), ("768B", 768), ("0 bytes", 0), ("587661312", 587661312), ("1 byte", 1),
        ("2.43MiB", 2548040), ("5.8KiB", 5939), ("23.54GiB", 25275882537), ("4.00TiB", 2**42),
        ("8.41G", 9030168740), ("63.80G", 68504728371), ("530.00M", 555745280), ("48.5KiB", 49664),
        ("184. MiB", 192937984), ("201. GiB", 215822106624), ("12.50 MiB", 13107200),
        ("1.5 GB", 1500000000), ("1024.00 MB", 1024000000), ("3GB", 3000000000),
        ("26,184,840kB", 26184840000), ("1,24 GiB", 1331439862), ("234,06 MiB", 245429699),
        ("1,234 GiB", 1234 * 2**30), ("12,34", None), ("1 PiB", 2**50),
        ("1.5EiB", 1729382256910270464),
        (None, None), ("", None), ("GiB", None), ("-5", None), ("1.5", None), ("12 apples", None),
        ("9" * 25, None), ("1e300", None), ("8 EiB", None),
    ],
)  # fmt: skip
def test_parse_bytes(text: str | None, count: int | None) -> None:
    assert parse_bytes(text) == count


def test_a_writer_whose_units_are_binary() -> None:
    assert parse_bytes("31451456kB", binary=True) == 31451456 * 1024
    assert parse_bytes("6.80 GB", binary=True) == round(6.8 * 2**30)
    assert parse_bytes("6.80 GiB", binary=True) == round(6.8 * 2**30)


@given(st.text(max_size=60))
def test_parse_bytes_takes_any_text(text: str) -> None:
    count = parse_bytes(text)
    assert count is None or 0 <= count < 2**63


@given(st.integers(0, 2**62), st.sampled_from(["", "B", " bytes"]))
def test_whole_bytes_are_read_exactly(count: int, unit: str) -> None:
    assert parse_bytes(f"{count}{unit}") == count
    assert re.fullmatch(SIZE, f"{count}{unit}")
    assert bool(re.fullmatch(SIZED, f"{count}{unit}")) == bool(unit)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("64,348,298,32", (64, 348, 298, 32)), ("(64, 26, 3)", (64, 26, 3)), ("(7,)", (7,)),
        ("", ()), ("[1, 8]", (1, 8)), (None, None), ("?,3", None), ("-1,3", None), ("a", None),
        ("9" * 40, None), (",".join("1" * 40), None), ("１,２", None),
    ],
)  # fmt: skip
def test_parse_shape(text: str | None, shape: tuple[int, ...] | None) -> None:
    assert parse_shape(text) == shape


def test_dtypes_have_one_name() -> None:
    assert {
        dtype_name(name) for name in ("float", "f32", "float32", "torch.float32", "DT_FLOAT")
    } == {"float32"}
    assert dtype_name("half") == dtype_name("f16") == "float16"
    assert dtype_name("pred") == "bool"
    assert dtype_name("<U10") is None


def test_tensor_bytes() -> None:
    assert tensor_bytes((64, 348, 298, 32), "float32") == 849543168
    assert tensor_bytes((), "float64") == 8
    assert tensor_bytes((0, 5), "int8") == 0
    assert tensor_bytes(None, "int8") is None
    assert tensor_bytes((5,), None) is None
    assert tensor_bytes((5,), "string") is None
    assert tensor_bytes((2**40, 2**40), "int8") is None


@pytest.mark.parametrize(
    ("path", "device", "where"),
    [
        ("/job:localhost/replica:0/task:0/device:GPU:1", "GPU:1", "device"),
        ("/job:worker/replica:0/task:3/device:CPU:0", "CPU:0", "host"),
        ("/job:localhost/replica:0/task:0/gpu:0", "GPU:0", "device"),
        ("/device:XLA_GPU:0", "GPU:0", "device"), ("/gpu:2.", "GPU:2", "device"),
        ("GPU:3", "GPU:3", "device"), ("/device:TPU:7", "TPU:7", "device"),
        ("/job:localhost", None, None), ("", None, None), (None, None, None),
    ],
)  # fmt: skip
def test_device_of_path(path: str | None, device: str | None, where: str | None) -> None:
    assert device_of_path(path) == (device, where)


@pytest.mark.parametrize(
    ("name", "device", "where"),
    [
        ("GPU_0_bfc", "GPU:0", "device"), ("GPU_11_bfc", "GPU:11", "device"),
        ("TPU_3_bfc", "TPU:3", "device"), ("gpu_async_2", "GPU:2", "device"),
        ("cpu", "CPU:0", "host"), ("mklcpu", "CPU:0", "host"),
        ("bfc_cpu_allocator_for_gpu", "CPU:0", "host"), ("cuda_host_bfc", "CPU:0", "host"),
        ("gpu_host_bfc", "CPU:0", "host"), ("SE_0_space_0", None, None), ("", None, None),
    ],
)  # fmt: skip
def test_device_of_allocator(name: str, device: str | None, where: str | None) -> None:
    assert device_of_allocator(name) == (device, where)
