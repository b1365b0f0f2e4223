"""`legroom.stream` over every kind of source: what it gives, in what order, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import legroom
from legroom.backends.tensorflow.input.streams import started_at
from legroom.data import arrays, windows
from legroom.data.images import list_images

SAMPLES, BATCH = 1003, 32
SMALL = "900KiB"  # of data that is a few times as large: several windows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    x = np.random.default_rng(0).integers(0, 256, (SAMPLES, 40, 40), np.uint8)
    ids = np.arange(SAMPLES)
    x[:, 0, 0], x[:, 0, 1] = ids % 256, ids // 256
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", ids)
    (folder / "records").mkdir()
    for number in range(3):
        path = str(folder / "records" / f"part-{number}")
        with tf.io.TFRecordWriter(path) as writer:
            for sample in range(number, SAMPLES, 3):
                writer.write(str(sample).encode() + b" " * (sample % 7) * 300)
    table = pa.table({
        "id": ids, "text": [f"é{i}" for i in ids], "raw": [bytes([i % 256]) * (i % 9) for i in ids],
        "fixed": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(SAMPLES * 6.0)), 6),
        "listed": [[i, i + 1] for i in ids], "flag": ids % 2 == 0,
        "ragged": [[1] * (i % 3) for i in ids], "gap": [None if i == 5 else i for i in ids],
        "when": pa.array(ids, pa.timestamp("s")),
    })  # fmt: skip
    pq.write_table(table, folder / "rows.parquet", row_group_size=50)
    for number in range(50):
        image = np.full((6, 7, 3), number, np.uint8)
        path = folder / "images" / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(image).numpy())
    return folder


COLUMNS = ["id", "text", "raw", "fixed", "listed", "flag"]


def by_id(x: Any) -> Any:
    return tf.cast(x[:, 0, 0], tf.int64) + 256 * tf.cast(x[:, 0, 1], tf.int64)


# The kinds of sources, and a stage that leaves the numbers of the samples.
def made(kind: str, folder: Path, **options: Any) -> tf.data.Dataset:
    options = {"batch_size": BATCH, "memory": SMALL, **options}
    x, y = folder / "x.npy", folder / "y.npy"
    if kind == "in memory":
        return legroom.stream((np.load(x), np.load(y)), **options).map(lambda x, y: y)
    if kind == "files":
        return legroom.stream((x, y), **options).map(lambda x, y: tf.where(by_id(x) == y, y, -1))
    if kind == "mapped":
        both = {"x": np.load(x, mmap_mode="r")[:, :, ::2], "y": np.load(y)}
        return legroom.stream(both, **options).map(lambda row: row["y"])
    if kind == "one array":
        return legroom.stream(str(x), **options).map(by_id)
    if kind == "records":
        numbers = legroom.stream(folder / "records", **options).map(tf.strings.strip)
        return numbers.map(lambda text: tf.strings.to_number(text, tf.int64))
    rows = legroom.stream(folder / "rows.parquet", columns=COLUMNS, **options)
    return rows.map(lambda row: row["id"])


KINDS = ["in memory", "files", "mapped", "one array", "records", "rows"]


def ids(dataset: Any) -> list[int]:
    return [int(number) for batch in dataset for number in batch]


@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_once_in_orders_that_repeat(folder: Path, kind: str) -> None:
    dataset = made(kind, folder)
    first, second, third = ids(dataset), ids(dataset), ids(dataset)
    assert sorted(first) == sorted(second) == sorted(third) == list(range(SAMPLES))
    assert first != second != third != first
    assert len(dataset) == -(-SAMPLES // BATCH)
    again = made(kind, folder)
    assert (ids(again), ids(again)) == (first, second)
    assert ids(made(kind, folder, seed=1)) != first
    if kind != "records":  # their files have every third sample
        assert ids(made(kind, folder, shuffle=False)) == list(range(SAMPLES))


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_begins_in_its_middle(folder: Path, kind: str) -> None:
    first, second = (lambda d: (ids(d), ids(d)))(made(kind, folder))
    dataset = made(kind, folder).prefetch(1)
    iter(dataset)  # the first pass
    begun = started_at(dataset, 20)
    assert begun is not None
    assert ids(begun) == second[20 * BATCH :]
    assert ids(dataset) not in (first, second)  # and the next one is whole
    assert len(ids(dataset)) == SAMPLES


def test_what_came_before_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = windows.WindowReader.__call__
    monkeypatch.setattr(
        windows.WindowReader, "__call__",
        lambda self, seed, number: asked.append(int(number)) or original(self, seed, number),
    )  # fmt: skip
    begun = started_at(made("files", folder), 25)
    assert begun is not None
    assert len(list(begun)) == 32 - 25
    assert asked == list(range(25, 32))


def test_stages_that_remember_something_are_passed_through(folder: Path) -> None:
    stream = legroom.stream(folder / "x.npy", memory=SMALL)
    counter = tf.Variable(0)
    noise = stream.map(lambda x: tf.cast(x, tf.float32) + tf.random.normal(tf.shape(x)))
    counted = stream.map(lambda x: (x, counter.assign_add(1)))
    fewer = stream.filter(lambda x: x[0, 0, 0] > 10)
    assert [started_at(d, 3) for d in (noise, counted, fewer, stream.take(9))] == [None] * 4
    assert started_at(tf.data.Dataset.range(9), 3) is None


def test_types_are_kept(folder: Path) -> None:
    images, labels = next(iter(legroom.stream((folder / "x.npy", folder / "y.npy"))))
    assert (images.dtype, labels.dtype) == (tf.uint8, tf.int64)
    row = next(iter(legroom.stream(folder / "rows.parquet", columns=COLUMNS, shuffle=False)))
    assert list(row) == COLUMNS
    assert row["text"][7].numpy().decode() == "é7"
    assert row["raw"][13].numpy() == bytes([13]) * 4
    assert row["fixed"][2].numpy().tolist() == list(range(12, 18))
    assert row["listed"][3].numpy().tolist() == [3, 4]
    assert row["flag"][:3].numpy().tolist() == [True, False, True]


def test_hidden_folders_are_no_classes(tmp_path: Path) -> None:
    for path in ("a/1.png", "b/2.png", ".ipynb_checkpoints/3.png", "a/.cache/4.png", "b/in/5.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    paths, labels, names = list_images(str(tmp_path))
    assert names == ["a", "b"]
    assert [Path(path).stem for path in paths] == ["1", "2", "5"]
    assert list(labels) == [0, 1, 1]


def test_images_keep_their_bytes_and_have_the_class_of_their_folder(folder: Path) -> None:
    dataset = legroom.stream(folder / "images", batch_size=8)
    assert dataset.class_names == ["a", "b", "c"]
    seen = []
    for images, labels in dataset:
        assert images.dtype == tf.uint8
        seen += images[:, 0, 0, 0].numpy().tolist()
        assert np.array_equal(images[:, 5, 6, 2] % 3, labels)
    assert sorted(seen) == list(range(50))
    assert seen != sorted(seen)
    small = legroom.stream(folder / "images", batch_size=8, image_size=(3, 4))
    assert small.element_spec[0] == tf.TensorSpec((None, 3, 4, 3), tf.uint8)
    unlabelled = legroom.stream(folder / "images" / "a", batch_size=8)
    assert sorted(n for batch in unlabelled for n in batch[:, 0, 0, 0].numpy()) == [
        *range(0, 50, 3)
    ]
    begun = started_at(legroom.stream(folder / "images", batch_size=8).map(lambda x, y: x), 5)
    assert begun is not None
    assert [n for batch in begun for n in batch[:, 0, 0, 0].numpy()] == seen[40:]


def test_an_image_of_another_size_is_told(tmp_path: Path) -> None:
    for name, size in (("a", 4), ("b", 5)):
        image = tf.io.encode_png(np.zeros((size, size, 3), np.uint8))
        (tmp_path / f"{name}.png").write_bytes(image.numpy())
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not 4x4 .* give image_size"):
        list(legroom.stream(tmp_path))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"source": 5}, TypeError, "can't read a int. Expected arrays"),
        ({"source": "nowhere/*.tfrecord"}, FileNotFoundError, "no file nowhere"),
        ({"source": ["gone.npy", "y.npy"]}, FileNotFoundError, "no file gone.npy"),
        ({"source": (np.zeros(3), np.zeros(4))}, ValueError, r"shape \(3,\), \(4,\)"),
        ({"source": np.zeros((0, 2))}, ValueError, "at least one sample"),
        ({"source": np.zeros((9, 9)), "batch_size": 0}, ValueError, "Received: 0"),
        ({"source": np.zeros((9, 999)), "memory": 999}, legroom.BadBudgetError, "at least 1.53 MB"),
    ],
)
def test_what_it_refuses(options: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        legroom.stream(**options)


@pytest.mark.parametrize(
    ("column", "words"),
    [("ragged", "several lengths"), ("gap", "1 missing value"), ("when", "timestamp"),
     ("none", "no column 'none'")],
)  # fmt: skip
def test_columns_that_no_tensor_can_hold(folder: Path, column: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        legroom.stream(folder / "rows.parquet", columns=["id", column])


def test_too_large_row_groups_are_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"v": np.zeros(100_000)}), tmp_path / "v.parquet")
    with pytest.raises(legroom.BadBudgetError, match=r"row group has 100,000 rows.*row_group_size"):
        legroom.stream(tmp_path / "v.parquet", memory="1MB")


def test_damaged_and_compressed_records_are_told(tmp_path: Path, folder: Path) -> None:
    raw = (folder / "records" / "part-0").read_bytes()
    (tmp_path / "cut.tfrecord").write_bytes(raw[:-3])
    with pytest.raises(ValueError, match="record 334 goes beyond"):
        legroom.stream(tmp_path / "cut.tfrecord")
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    with tf.io.TFRecordWriter(str(tmp_path / "zipped.tfrecord"), options) as writer:
        writer.write(b"x" * 100)
    with pytest.raises(ValueError, match="compressed"):
        legroom.stream(tmp_path / "zipped.tfrecord")


def test_a_file_that_becomes_shorter_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((100_000, 4)))
    dataset = legroom.stream(tmp_path / "x.npy", memory="100KB")
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:1000])
    with pytest.raises(tf.errors.UnknownError, match="has become shorter"):
        list(dataset)


def test_without_pyarrow_it_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        legroom.stream(folder / "rows.parquet")


def test_a_view_of_a_file_is_a_file(folder: Path) -> None:
    mapped = np.load(folder / "x.npy", mmap_mode="r")
    assert arrays.is_mapped(mapped)
    assert arrays.is_mapped(np.asarray(mapped)[3:])
    assert not arrays.is_mapped(np.load(folder / "x.npy")[3:])
