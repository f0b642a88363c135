"""Run one contender in this process, driven by `compare` with one line of JSON per request.

    python -m bench.loaders.serve MODULE

Requests arrive on stdin, answers go to stdout: {"do": "write" | "open" | "trial" | "check", …}.
Output of libraries goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bench.loaders.contract import Epoch, Job, Kind

PAGE_BYTES = 4096


class Server:
    """A contender's module and the epochs that it opened."""

    def __init__(self, module: str) -> None:
        self.module = importlib.import_module(f"bench.loaders.contenders.{module}")
        self.job: Job | None = None
        self.epoch: Epoch | None = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Handle a request."""
        match question.pop("do"):
            case "write":
                job = job_of(question["job"])
                start_s = time.perf_counter()
                self.module.write(job, question["setting"])
                return {"seconds": time.perf_counter() - start_s, "pictures": job.num_pictures}
            case "open":
                self.job = job_of(question["job"])
                self.epoch = self.module.open_epochs(self.job, question["setting"])
                return {}
            case "trial":
                assert self.epoch is not None, "no epochs are open"
                return trial(self.epoch, question["min_s"])
            case "check":
                assert self.epoch is not None, "no epochs are open"
                assert self.job is not None
                return check(self.epoch, self.job)
            case unknown:
                raise ValueError(f"unknown request {unknown!r}")


def job_of(value: dict[str, Any]) -> Job:
    return Job(**{**value, "folder": Path(value["folder"]), "kind": Kind(value["kind"])})


def trial(epoch: Epoch, min_s: float) -> dict[str, Any]:
    """Read whole epochs for at least min_s, and touch every page of every batch."""
    num_pictures = touched = num_epochs = 0
    first_s = []
    start_s = time.perf_counter()
    while num_epochs == 0 or time.perf_counter() - start_s < min_s:
        begin_s = time.perf_counter()
        for idx, (pictures, _) in enumerate(epoch()):
            touched += touch(pictures)
            num_pictures += len(pictures)
            if idx == 0:
                first_s.append(time.perf_counter() - begin_s)
        num_epochs += 1
    return {
        "pictures": num_pictures,
        "seconds": time.perf_counter() - start_s,
        "epochs": num_epochs,
        "first_batch_s": min(first_s),
        "touched": touched,
    }


def as_rows(pictures: Any) -> np.ndarray:
    """View a batch as (n, h, w, c), without a copy unless its memory layout is (n, c, h, w)."""
    array = np.asarray(pictures)
    return array.transpose(0, 2, 3, 1) if array.shape[1] == 3 else array


def touch(pictures: Any) -> int:
    """Add up one byte of each page of a batch."""
    array = np.asarray(pictures)
    if not array.flags.c_contiguous:
        array = as_rows(array)
    return int(array.reshape(-1)[::PAGE_BYTES].sum())


def check(epoch: Epoch, job: Job) -> dict[str, Any]:
    """Read an epoch and compare it with the photographs."""
    counts = np.zeros(job.num_pictures, dtype=np.int64)
    differences = [0.0]
    shape: tuple[int, ...] = ()
    order: list[int] = []
    for pictures, numbers in epoch():
        rows, ids = as_rows(pictures), np.asarray(numbers).reshape(-1)
        if rows.dtype != np.uint8 or len(rows) != len(ids):
            raise ValueError(f"a batch of {rows.dtype} {rows.shape} has {len(ids)} numbers")
        np.add.at(counts, ids, 1)
        shape = rows.shape[1:]
        order += ids.tolist()
        for row, idx in zip(rows[::16], ids[::16].tolist(), strict=True):
            wanted = job.decode(job.photo(idx).read_bytes())
            differences.append(float(np.abs(row.astype(np.int16) - wanted).mean()))
    return {
        "each_once": bool((counts == 1).all()),
        "pictures": int(counts.sum()),
        "missing": int((counts == 0).sum()),
        "shape": list(shape),
        "largest_mean_difference": max(differences),
        "neighbours_kept": float(np.mean(np.diff(order) == 1)),
    }


def keep_to_one_core() -> None:
    """Resize each picture on one core: the pictures of a batch already use all cores."""
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(1)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not be mixed with the answers
    warnings.simplefilter("ignore")
    keep_to_one_core()
    server: Server | None = None
    for line in sys.stdin:
        try:
            server = server or Server(sys.argv[1])
            answer = server.answer(json.loads(line))
        except Exception as error:  # any exception of a contender is its result
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
