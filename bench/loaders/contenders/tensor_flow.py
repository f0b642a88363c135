"""tf.data: TFRecord files, shuffled by file and buffer, or cached in memory and fully shuffled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.loaders.contract import (
    BATCH,
    BUFFER,
    Epoch,
    Job,
    Kind,
    Line,
    Setting,
    Shuffle,
    in_processes,
)

PACKAGE = "tensorflow"
WRITER = "tensor_flow"
LINES = (
    Line(
        name="tf.data, TFRecord",
        kind=Kind.PIXELS,
        shuffle=Shuffle.SHARDS,
        settings=tuple(
            {"is_held": False, "threads": threads, "parse": parse}
            for threads in (1, 2)
            for parse in ("one by one", "by batch")
        ),
    ),
    Line(
        name="tf.data, cached in memory",
        kind=Kind.PIXELS,
        shuffle=Shuffle.GLOBAL,
        settings=tuple(
            {"is_held": True, "threads": threads, "parse": "one by one"} for threads in (1, 2)
        ),
    ),
    Line(
        name="tf.data, its own decoder",
        kind=Kind.JPEG,
        shuffle=Shuffle.SHARDS,
        settings=(
            {"is_held": False, "threads": 2, "parse": "own"},
            {"is_held": True, "threads": 2, "parse": "own"},
        ),
        is_same_pixels=False,
    ),
    Line(
        name="tf.data, the shared function",
        kind=Kind.JPEG,
        shuffle=Shuffle.SHARDS,
        settings=({"is_held": False, "threads": 2, "parse": "shared"},),
    ),
)
WRITE_SETTINGS = ({"form": "threads"}, {"form": "processes"})
NUM_FILES = 12


def write(job: Job, setting: Setting) -> None:
    folder = job.place("tensor_flow")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if setting["form"] == "threads":
        _write_part(job, folder, 0, range(job.num_pictures), threads=2)
    else:
        in_processes(_write_part, job, folder, 2)


def _write_part(job: Job, folder: Path, part_idx: int, part: range, threads: int = 0) -> None:
    import tensorflow as tf

    items = job.items(part, threads=threads)
    num_files = NUM_FILES if threads else NUM_FILES // 2
    ends = [len(part) * idx // num_files for idx in range(num_files + 1)]
    for file_idx in range(num_files):
        path = str(folder / f"{part_idx}-{file_idx:02d}.tfrecord")
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(ends[file_idx], ends[file_idx + 1]):
                idx, data = next(items)
                picture = tf.train.Feature(bytes_list=tf.train.BytesList(value=[data]))
                number = tf.train.Feature(int64_list=tf.train.Int64List(value=[idx]))
                features = tf.train.Features(feature={"picture": picture, "number": number})
                example = tf.train.Example(features=features)
                writer.write(example.SerializeToString())


def open_epochs(job: Job, setting: Setting) -> Epoch:
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    files = sorted(str(path) for path in job.place("tensor_flow").glob("*.tfrecord"))
    threads = setting["threads"]
    data = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
    data = data.interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=threads, deterministic=False
    )
    if setting["is_held"]:
        decoded = data.map(_parser(job, setting), num_parallel_calls=threads)
        held = decoded if job.kind is Kind.PIXELS else data
        held = held.cache().shuffle(job.num_pictures, reshuffle_each_iteration=True)
        data = held if job.kind is Kind.PIXELS else held.map(_parser(job, setting), threads)
        data = data.batch(BATCH)
    elif setting["parse"] == "by batch":
        data = data.shuffle(BUFFER).batch(BATCH)
        data = data.map(_batch_parser(job), num_parallel_calls=threads, deterministic=False)
    else:
        data = data.shuffle(BUFFER)
        data = data.map(_parser(job, setting), num_parallel_calls=threads, deterministic=False)
        data = data.batch(BATCH)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    data = data.with_options(options).prefetch(tf.data.AUTOTUNE)

    def epoch() -> Iterator[Any]:
        return ((pictures.numpy(), ids.numpy()) for pictures, ids in data)

    return epoch


def _features() -> dict[str, Any]:
    import tensorflow as tf

    return {
        "picture": tf.io.FixedLenFeature([], tf.string),
        "number": tf.io.FixedLenFeature([], tf.int64),
    }


def _batch_parser(job: Job) -> Any:
    import tensorflow as tf

    def parse(records: Any) -> tuple[Any, Any]:
        found = tf.io.parse_example(records, _features())
        pixels = tf.io.decode_raw(found["picture"], tf.uint8)
        return tf.reshape(pixels, (-1, job.size, job.size, 3)), found["number"]

    return parse


def _parser(job: Job, setting: Setting) -> Any:
    import tensorflow as tf

    size = job.size

    def parse(record: Any) -> tuple[Any, Any]:
        found = tf.io.parse_single_example(record, _features())
        if job.kind is Kind.PIXELS:
            pixels = tf.io.decode_raw(found["picture"], tf.uint8)
        elif setting["parse"] == "shared":
            pixels = tf.numpy_function(job.decode, [found["picture"]], tf.uint8)
        else:
            pixels = _square(tf.io.decode_jpeg(found["picture"], channels=3), size)
        return tf.reshape(pixels, (size, size, 3)), found["number"]

    return parse


def _square(pixels: Any, size: int) -> Any:
    """Resize with antialiasing and pad with white, with TensorFlow operations."""
    import tensorflow as tf

    fitted = tf.image.resize(pixels, (size, size), preserve_aspect_ratio=True, antialias=True)
    fitted = tf.cast(tf.round(fitted), tf.uint8)
    shape = tf.shape(fitted)
    top, left = (size - shape[0]) // 2, (size - shape[1]) // 2
    margins = [[top, size - shape[0] - top], [left, size - shape[1] - left], [0, 0]]
    return tf.pad(fitted, margins, constant_values=255)
