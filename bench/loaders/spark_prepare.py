"""Prepare with Spark: our engine against the published recipe, on the same cores.

    python -m bench.loaders.spark_prepare PHOTOS OUT SIZE     answers over pipes

The recipe: the source `binaryFile`, a pandas function that decodes with Pillow, resizes and pads,
and the DataFrame written as Parquet. Each runs in its own process with a warm local[2], as
importing packages in Python workers would otherwise distort the times.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.loaders.child import PYTHONPATH
from bench.loaders.reading import Plan, compare
from bench.measure import rotated_trials
from bench.rows import write_rows

OURS, RECIPE = "stepladder prepare --engine spark", "binaryFile, pandas function, Parquet"
LOCAL = "stepladder prepare"
NUM_CLASSES = 8


def run(args: argparse.Namespace, plan: Plan) -> None:
    """Prepare the same photographs in turn."""
    photos = _class_folders(plan.job.folder, args.prepare_pictures)
    out = (args.out or plan.job.folder) / "spark"
    with contextlib.ExitStack() as stack:
        trials = {}
        for at, name in enumerate((OURS, RECIPE, LOCAL)):
            ask = stack.enter_context(_session(photos, out / str(at), args.size, plan))
            ask(name)  # starts Spark, its Python workers and the compiler of its JVM
            trials[name] = partial(ask, name)
        figures = rotated_trials(trials, args.rounds)
    found = compare(figures, ours=OURS)
    rows = []
    for name, entry in found.items():
        per_s, ratio = entry["per_s"], entry.get("ours_faster_by")
        rows.append(
            {
                "": name,
                "pictures/s": f"{per_s['median']:,.0f}",
                "min to max": f"{per_s['min']:,.0f} to {per_s['max']:,.0f}",
                "our engine is faster by": f"{ratio['median']:.2f}" if ratio else "",
                "at least (95 %)": f"{entry['lower_95']:.2f}" if "lower_95" in entry else "",
            }
        )
    note = (
        f"{args.prepare_pictures} JPEG files of about 400 x 300 to pixels at {args.size}, "
        f"local[2], warm, n = {args.rounds} rounds in rotated order."
    )
    write_rows(args.results or "loaders_spark", rows, note=note, rounds=[found])


def _class_folders(folder: Path, count: int) -> Path:
    """Link photographs into class folders, which both sides list."""
    photos = folder / f"classes-{count}"
    for idx in range(count):
        split = "val" if idx % 16 == 0 else "train"
        place = photos / split / f"class {idx // 16 % NUM_CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        link = place / f"{idx:05d}.jpg"
        if not link.exists():
            os.link(folder / "photos" / link.name, link)
    return photos


@contextlib.contextmanager
def _session(photos: Path, out: Path, size: int, plan: Plan) -> Iterator[Callable[[str], float]]:
    log = plan.job.folder / "logs" / "spark.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "bench.loaders.spark_prepare"]
    with log.open("a") as errors:
        process = subprocess.Popen(
            [*words, str(photos), str(out), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "PYSPARK_PYTHON": sys.executable},
        )

        def ask(name: str) -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(name + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"Spark exited with code {process.wait()}; see {log}")
            return float(json.loads(line)["per_s"])

        try:
            yield ask
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def ours(photos: Path, out: Path, size: int, *, engine: str) -> None:
    from stepladder.config.choices import EngineName
    from stepladder.config.options import PrepareConfig
    from stepladder.data.prepare.prepare import prepare

    prepare(
        PrepareConfig(
            source=photos, out=out / "store", size=size, workers=2, engine=EngineName(engine)
        )
    )


def recipe(spark: Any, photos: Path, out: Path, size: int) -> None:
    """Prepare as the published notebooks do."""
    import pandas as pd
    from PIL import Image
    from pyspark.sql.functions import col, element_at, split
    from pyspark.sql.pandas.functions import pandas_udf

    def shrink(contents: Any) -> Any:
        def one(content: bytes) -> bytes:
            picture = Image.open(io.BytesIO(content)).convert("RGB")
            picture.thumbnail((size, size), Image.Resampling.BILINEAR)
            square = Image.new("RGB", (size, size), "white")
            place = ((size - picture.width) // 2, (size - picture.height) // 2)
            square.paste(picture, place)
            return square.tobytes()

        return contents.map(one)

    shrink.__annotations__ = dict.fromkeys(("contents", "return"), pd.Series)  # read by Spark
    shrink_pictures = pandas_udf(shrink, "binary")
    files = (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", "*.jpg")
        .option("recursiveFileLookup", "true")
        .load(str(photos))
    )
    label = element_at(split(col("path"), "/"), -2)
    picture = shrink_pictures(col("content")).alias("picture")
    table = files.select(col("path"), label.alias("label"), picture)
    table.write.mode("overwrite").parquet(str(out / "recipe"))


def serve(photos: Path, out: Path, size: int) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of Spark must not be mixed with the answers
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.parquet.compression.codec", "uncompressed")  # faster, for pixels
        .getOrCreate()
    )
    kinds: dict[str, Callable[[], None]] = {
        OURS: partial(ours, photos, out, size, engine="spark"),
        LOCAL: partial(ours, photos, out, size, engine="local"),
        RECIPE: partial(recipe, spark, photos, out, size),
    }
    count = sum(1 for _ in photos.rglob("*.jpg"))
    for line in sys.stdin:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        os.sync()
        start_s = time.perf_counter()
        kinds[line.strip()]()
        answers.write(json.dumps({"per_s": count / (time.perf_counter() - start_s)}) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
