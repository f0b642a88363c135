"""stepladder: a store written by `prepare`, read by its Reader."""

from __future__ import annotations

import csv
import itertools
import shutil
from typing import Any

from PIL import Image

from bench.loaders.contract import BATCH, Batches, Epoch, Job, Kind, Line, Setting, Shuffle

PACKAGE = None
WRITER = "ours"


def _line(name: str, kind: Kind, verify: str, *threads: int) -> Line:
    settings = tuple({"verify": verify, "threads": count} for count in threads)
    return Line(name=name, kind=kind, shuffle=Shuffle.GLOBAL, settings=settings)


LINES = (
    _line("stepladder", Kind.PIXELS, "first_touch", 1, 2),
    _line("stepladder, always verified", Kind.PIXELS, "always", 1, 2),
    _line("stepladder, never verified", Kind.PIXELS, "never", 1, 2),
    _line("stepladder", Kind.JPEG, "first_touch", 2, 3),
    _line("stepladder", Kind.PRESIZED, "first_touch", 2, 3),
)
WRITE_SETTINGS = ({"workers": 2},)


def write(job: Job, setting: Setting) -> None:
    from stepladder.config.choices import Encoding
    from stepladder.config.options import PrepareConfig
    from stepladder.data.prepare.prepare import prepare

    folder = job.place("ours")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    table = folder / "pictures.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label", "split"))
        for idx in range(job.num_pictures):  # one class per picture: label = number
            writer.writerow((job.photo(idx), f"{idx:06d}", "train"))
        grey = folder / "grey.jpg"  # `prepare` needs a validation split; it is not read here
        Image.new("RGB", (32, 32), "grey").save(grey)
        writer.writerow((grey, f"{0:06d}", "val"))
    encoding = Encoding.PIXELS if job.kind is Kind.PIXELS else Encoding.JPEG
    prepare(
        PrepareConfig(
            source=table,
            out=folder / "store",
            size=job.size,
            encoding=encoding,
            workers=setting["workers"],
        )
    )


def open_epochs(job: Job, setting: Setting) -> Epoch:

    from stepladder.config.choices import OrderMode, Split, VerifyPages
    from stepladder.data.reading.reader import Reader
    from stepladder.data.store.store import Store

    verify = VerifyPages(setting["verify"])
    split = Store.open(job.place("ours") / "store", verify_pages=verify).split(Split.TRAIN)
    assert split is not None
    options: dict[str, Any] = {"mode": OrderMode.GLOBAL, "threads": setting["threads"]}
    reader = Reader(split, seed=0, global_batch_size=BATCH, **options)
    counter = itertools.count()

    def epoch() -> Batches:
        return ((batch.inputs, batch.targets) for batch in reader.epoch(next(counter)))

    return epoch
