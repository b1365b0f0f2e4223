"""Reading by `legroom.stream` over a plain prefetching `tf.data` pipeline over the same files.

Both give shuffled batches ready to be trained on. The plain one is what the guides recommend, with
a shuffle buffer that takes the same memory. Files are in the
kernel's cache, which is the hard case: a slow disk would hide what reading costs.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import legroom

from turns import take_turns  # isort: skip

BATCH = 64
BUDGET = 64 * 2**20
SHAPE = (64, 64, 3)
ROW = 12_288
SAMPLES = 40_000  # 490 MB
IMAGES = 3_000

FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def arrays(folder: Path) -> tuple[Any, Any]:
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (SAMPLES, *SHAPE))
    for first in range(0, SAMPLES, 1000):
        x[first : first + 1000] = np.random.default_rng(first).integers(
            0, 256, (1000, *SHAPE), np.uint8
        )
    x.flush()
    np.save(folder / "y.npy", np.arange(SAMPLES))
    header = np.load(folder / "x.npy", mmap_mode="r").offset
    labels = np.load(folder / "y.npy")

    def plain() -> Any:
        rows = tf.data.FixedLengthRecordDataset(str(folder / "x.npy"), ROW, header)
        both = tf.data.Dataset.zip((rows, tf.data.Dataset.from_tensor_slices(labels)))
        batches = both.shuffle(BUDGET // ROW).batch(BATCH)
        decoded = batches.map(
            lambda raw, y: (tf.reshape(tf.io.decode_raw(raw, tf.uint8), (-1, *SHAPE)), y),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        return decoded.prefetch(tf.data.AUTOTUNE)

    def ours() -> Any:
        both = (folder / "x.npy", folder / "y.npy")
        return legroom.stream(both, batch_size=BATCH, memory=BUDGET)

    return plain, ours


def records(folder: Path) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    for number in range(4):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for sample in range(number, SAMPLES, 4):
                features = {
                    "image": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[rng.bytes(ROW)])
                    ),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[sample])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())

    def parse(batch: Any) -> Any:
        parsed = tf.io.parse_example(batch, FEATURES)
        return tf.io.decode_raw(parsed["image"], tf.uint8), parsed["label"]

    def plain() -> Any:
        files = tf.data.Dataset.list_files(str(folder / "*.tfrecord"))
        read = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE)
        batches = read.shuffle(BUDGET // ROW).batch(BATCH)
        return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def ours() -> Any:
        batches = legroom.stream(str(folder / "*.tfrecord"), batch_size=BATCH, memory=BUDGET)
        return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    return plain, ours


def rows(folder: Path) -> tuple[Any, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    with pq.ParquetWriter(folder / "rows.parquet", schema, compression="none") as writer:
        for first in range(0, SAMPLES, 100):
            images = [rng.bytes(ROW) for _ in range(100)]
            labels = np.arange(first, first + 100)
            writer.write_table(pa.table({"image": images, "label": labels}, schema))

    def decode(row: Any) -> Any:
        return tf.io.decode_raw(row["image"], tf.uint8), row["label"]

    def plain() -> Any:
        def read() -> Any:
            for batch in pq.ParquetFile(folder / "rows.parquet").iter_batches(batch_size=BATCH):
                yield {
                    "image": batch["image"].to_numpy(zero_copy_only=False),
                    "label": batch["label"].to_numpy(),
                }

        spec = {"image": tf.TensorSpec(None, tf.string), "label": tf.TensorSpec(None, tf.int64)}
        made = tf.data.Dataset.from_generator(read, output_signature=spec)
        single = made.unbatch().shuffle(BUDGET // ROW).batch(BATCH)
        return single.map(decode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def ours() -> Any:
        batches = legroom.stream(folder / "rows.parquet", batch_size=BATCH, memory=BUDGET)
        return batches.map(decode, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    return plain, ours


def images(folder: Path) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    for number in range(IMAGES):
        (folder / str(number % 10)).mkdir(exist_ok=True)
        smooth = tf.image.resize(rng.random((8, 8, 3)) * 255, (224, 224))
        path = folder / str(number % 10) / f"{number}.jpg"
        path.write_bytes(tf.io.encode_jpeg(tf.cast(smooth, tf.uint8)).numpy())
    paths = sorted(map(str, folder.glob("*/*.jpg")))
    labels = [int(Path(path).parent.name) for path in paths]

    def decode(path: Any, label: Any) -> Any:
        return tf.io.decode_jpeg(tf.io.read_file(path), channels=3), label

    def plain() -> Any:
        both = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths))
        decoded = both.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
        return decoded.batch(BATCH).prefetch(tf.data.AUTOTUNE)

    def ours() -> Any:
        return legroom.stream(folder, batch_size=BATCH, memory=4 * BUDGET)

    return plain, ours


def passed(dataset: Any) -> float:
    """How long a pass over all of the data takes."""
    began = time.perf_counter()
    for _ in dataset:
        pass
    return time.perf_counter() - began


def main() -> None:
    makers: dict[str, Callable[[Path], tuple[Any, Any]]] = {
        "arrays": arrays, "records": records, "rows": rows, "images": images,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        plain, ours = makers[sys.argv[1]](Path(folder))
        began = time.perf_counter()
        datasets = [plain(), ours()]
        for dataset in datasets:
            passed(dataset)
        made = time.perf_counter() - began
        seen = take_turns(*(functools.partial(passed, dataset) for dataset in datasets))
    print(json.dumps({**seen, "first_passes": made}))


if __name__ == "__main__":
    np.random.seed(0)
    main()
