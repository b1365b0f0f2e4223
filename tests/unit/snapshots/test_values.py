from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.snapshots.values import Unstorable, decode, encode, moved, put_in_place

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner)
    | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers()), inner),
    max_leaves=20,
)  # fmt: skip


def there_and_back(value):
    arrays: list = []
    text = json.dumps(encode(value, arrays))
    return decode(json.loads(text), arrays)


@given(plain)
def test_plain_values_come_back_as_they_were(value) -> None:
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_what_json_alone_would_lose() -> None:
    value = {"t": (1, (2.5,)), "s": {3}, 7: "key", "f": math.inf, "n": np.float32(0.1)}
    back = there_and_back(value)
    assert back == value
    assert type(back["t"]) is tuple
    assert type(back["n"]) is np.float32
    assert math.isnan(there_and_back(math.nan))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64", "bool", "complex64"])
def test_arrays_are_put_aside_and_copied(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    arrays: list = []
    data = encode({"a": [array, array[0]]}, arrays)
    array[...] = 0
    back = decode(data, arrays)
    assert np.array_equal(back["a"][0], np.arange(6).reshape(2, 3).astype(dtype))
    assert back["a"][0].dtype == dtype


def test_generators_go_on_where_they_were() -> None:
    ours = [random.Random(3), np.random.RandomState(3), np.random.default_rng(3),
            np.random.Generator(np.random.Philox(3))]  # fmt: skip
    for generator in ours:
        generator.random()
    for mine, back in zip(ours, there_and_back(ours), strict=True):
        assert mine.random() == back.random()


@pytest.mark.parametrize("value", [object(), print, {1: [open]}, np.array(["x"]), type])
def test_what_is_no_plain_data_is_refused(value) -> None:
    with pytest.raises(Unstorable):
        encode(value, [])


def test_a_value_in_itself_is_refused() -> None:
    endless: list = []
    endless.append(endless)
    with pytest.raises(Unstorable):
        encode(endless, [])


def test_an_unknown_tag_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown"):
        decode({"~": "module", "name": "os"}, [])
    with pytest.raises(ValueError, match="unknown"):
        decode({"~": "Generator", "bits": "system", "state": {}}, [])


def test_moved_values_find_their_arrays() -> None:
    arrays: list = []
    data = encode({"a": (np.arange(3), [np.int64(4)])}, arrays)
    back = decode(moved(data, 2), [None, None, *arrays])
    assert np.array_equal(back["a"][0], np.arange(3))
    assert back["a"][1] == [4]


def test_others_who_hold_a_list_see_it_change() -> None:
    inner = [1]
    held = {"losses": [1.0, 2.0], "inner": inner, "gone": 1}
    losses = held["losses"]
    assert put_in_place(held, {"losses": [5.0], "inner": [2, 3]}) is held
    assert (losses, inner, held) == ([5.0], [2, 3], {"losses": [5.0], "inner": [2, 3]})
    array = np.zeros(3)
    assert put_in_place(array, np.ones(3)) is array
    assert array.sum() == 3
    generator = np.random.default_rng(1)
    put_in_place(generator, np.random.default_rng(2))
    assert generator.random() == np.random.default_rng(2).random()
