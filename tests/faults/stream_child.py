"""Reads data of ten times a budget, in a control group that leaves no more than the budget.

The group's limit is set here, once TensorFlow is up: what it takes by itself is not the stream's.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import legroom

BUDGET = 48 * 2**20
ROW = 12_288  # bytes: an image of 64x64
SAMPLES = 10 * BUDGET // ROW
IMAGES = 2_000


def write_arrays(folder: Path) -> None:
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (SAMPLES, 64, 64, 3))
    for first in range(0, SAMPLES, 1024):
        rows = np.arange(first, min(first + 1024, SAMPLES))
        x[rows] = (rows % 251).astype(np.uint8)[:, None, None, None]
    x.flush()
    np.save(folder / "y.npy", np.arange(SAMPLES))


def write_records(folder: Path) -> None:
    for number in range(4):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for sample in range(number, SAMPLES, 4):
                writer.write(sample.to_bytes(8, "little") + bytes(ROW - 8))


def write_rows(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    few = pa.table({"id": range(64), "image": [bytes(ROW)] * 64})
    pq.write_table(few, folder / "small.parquet")
    schema = pa.schema([("id", pa.int64()), ("image", pa.binary(ROW))])
    with pq.ParquetWriter(folder / "rows.parquet", schema, compression="none") as writer:
        for first in range(0, SAMPLES, 32):
            ids = np.arange(first, min(first + 32, SAMPLES))
            images = [bytes([number % 251]) * ROW for number in ids]
            writer.write_table(pa.table({"id": ids, "image": images}, schema), row_group_size=32)


def write_images(folder: Path) -> None:
    """Of 360x360: ten times the budget once they are decoded, little as files."""
    for number in range(IMAGES):
        image = np.full((360, 360, 3), 255 * (number % 2), np.uint8)
        image[0, 0] = number % 256, number // 256, 0
        (folder / str(number % 2)).mkdir(exist_ok=True)
        path = folder / str(number % 2) / f"{number}.png"
        path.write_bytes(tf.io.encode_png(image).numpy())


def stream(kind: str, folder: Path, budget: int) -> tf.data.Dataset:
    """A stream of ids."""
    if kind == "arrays":
        made = legroom.stream((folder / "x.npy", folder / "y.npy"), batch_size=64, memory=budget)
        return made.map(lambda x, y: (y, tf.cast(x[:, 0, 0, 0], tf.int64) == y % 251))
    if kind == "records":
        made = legroom.stream(str(folder / "*.tfrecord"), batch_size=64, memory=budget)
        parsed = made.map(lambda batch: tf.io.decode_raw(batch, tf.int64)[:, 0])
        return parsed.map(lambda ids: (ids, ids >= 0))
    if kind == "rows":
        made = legroom.stream(folder / "rows.parquet", batch_size=64, memory=budget)
        pixel = lambda row: tf.cast(tf.io.decode_raw(row["image"], tf.uint8)[:, 5], tf.int64)  # noqa: E731
        return made.map(lambda row: (row["id"], pixel(row) == row["id"] % 251))
    made = legroom.stream(folder, batch_size=16, memory=budget)
    return made.map(
        lambda image, label: (
            tf.cast(image[:, 0, 0, 0], tf.int64) + 256 * tf.cast(image[:, 0, 0, 1], tf.int64),
            tf.cast(image[:, 9, 9, 0], tf.int32) == 255 * label,
        )
    )


def plain(folder: Path) -> tf.data.Dataset:
    """What one would write: the same records, shuffled well."""
    files = tf.data.Dataset.list_files(str(folder / "*.tfrecord"))
    return tf.data.TFRecordDataset(files).shuffle(SAMPLES).batch(64).prefetch(2)


def own_memory() -> int:
    """The process's own pages: files that the kernel keeps in memory are not among them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise SystemExit("no RssAnon")


def limit_group(group: Path, size: int) -> None:
    v1 = group / "memory.limit_in_bytes"
    (v1 if v1.exists() else group / "memory.max").write_text(str(size))


def used_by_group(group: Path) -> int:
    """What the group holds that can't be dropped."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(stat.get("rss") or stat.get("anon") or 0)


def main() -> None:
    kind, folder, group = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if kind != "plain":
        WRITE[kind](folder)
    for _ in legroom.stream(np.zeros((64, 2)), batch_size=8).map(lambda x: x + 1):
        pass  # Keras is imported now, and TensorFlow's threads are there
    if kind == "rows":  # and pyarrow, with its pools
        for _ in legroom.stream(folder / "small.parquet", batch_size=8):
            pass
    before, used = own_memory(), used_by_group(group)
    limit_group(group, used + BUDGET)
    if kind == "plain":
        for _ in plain(folder):
            pass
        print(json.dumps({"finished": True}))
        return
    highest, done = [before], threading.Event()

    def sample() -> None:
        while not done.wait(0.01):
            highest.append(max(highest[-1], own_memory()))

    threading.Thread(target=sample, daemon=True).start()
    began = time.perf_counter()
    data = stream(kind, folder, BUDGET)
    passes = []
    for _ in range(2):
        seen = []
        for ids, right in data:
            seen.append(ids.numpy())
            assert np.all(right), "a sample and its id do not belong together"
        passes.append(np.concatenate(seen))
    seconds = time.perf_counter() - began
    done.set()
    expected = np.arange(IMAGES if kind == "images" else SAMPLES)
    print(
        json.dumps({
            "once": all(np.array_equal(np.sort(ids), expected) for ids in passes),
            "another_order": bool(np.any(passes[0] != passes[1])),
            "neighbours": float(np.mean(np.abs(np.diff(passes[0])) == 1)),
            "spread": spread(passes[0]),
            "grown": highest[-1] - before,
            "seconds": seconds,
        })
    )  # fmt: skip


def spread(ids: np.ndarray) -> float:
    """How even batches of 64 are: the spread of their mean id over that of a perfect shuffle."""
    whole = ids[: len(ids) // 64 * 64].reshape(-1, 64).mean(axis=1)
    return float(np.std(whole) / (len(ids) / np.sqrt(12 * 64)))


WRITE = {
    "arrays": write_arrays, "records": write_records, "rows": write_rows, "images": write_images,
}  # fmt: skip

if __name__ == "__main__":
    main()
