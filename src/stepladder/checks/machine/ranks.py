"""Build a Task's model and data as one of several ranks, in a new process.

    python -m stepladder.checks.machine.ranks FOLDER RANK NUM_LOOKS

FOLDER has config.yaml and task.json. Model and data of rank RANK are built NUM_LOOKS times; samples
of them are written to views.json, or the error to error.txt.
"""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from stepladder.checks.evidence.sample import tensors_of
from stepladder.checks.evidence.workers import can_fork
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.config.load import load_job
from stepladder.config.recipe import Recipe
from stepladder.config.show import dump_job
from stepladder.data.reading.datasets import as_source, is_stochastic
from stepladder.data.reading.examples import ArrivalSource, Examples, Source
from stepladder.errors import USER_TASK
from stepladder.records import read_json, to_json, write_json
from stepladder.records.from_json import from_json
from stepladder.task.contract import Task
from stepladder.task.load import load_task
from stepladder.training.randomness import seed_everything, step_seed
from stepladder.training.setup.build import make_model
from stepladder.training.setup.run_folder import CONFIG

NUM_RANKS: Final = 2
NUM_DRAWS = 8
TASK_FILE, VIEWS_FILE, ERROR_FILE = "task.json", "views.json", "error.txt"
_NUM_ROWS = 16
_NUM_VALUES = 16  # of each tensor
_CLOSE = 1e-5  # relative to a number, or to the largest in its tensor: rounding may differ
_LIMIT_S = 60.0
_MEETING_PLACE = (
    "MASTER_ADDR",
    "MASTER_PORT",
)  # there are no other ranks: a Task must not wait for them

Numbers = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Some examples of a split, as numbers.

    Attributes:
        length: examples of the split.
        inputs, targets: of the rows that were read; empty if reading is random.
    """

    length: int
    inputs: tuple[Numbers, ...] = ()
    targets: tuple[Numbers, ...] = ()


@dataclass(frozen=True, kw_only=True)
class View:
    """The model and data of one rank.

    Attributes:
        weights: some values of each parameter and buffer, by name.
        data: train and val, if they exist.
        draws: one training example, read repeatedly; empty if reading is not random.
        later_draws: the same, after another example was read.
    """

    weights: Mapping[str, Numbers]
    data: Mapping[str, Rows]
    draws: tuple[Numbers, ...] = ()
    later_draws: tuple[Numbers, ...] = ()


def can_look(job: CheckedJob) -> bool:
    """Return True if a process for a rank can be started."""
    return can_fork() or has_file(job)


def has_file(job: CheckedJob) -> bool:
    """Return True if the Task is from a file that another interpreter can load.

    A Task that was constructed in Python, perhaps with arguments, is not.
    """
    was_loaded = type(job.task).__module__.startswith(USER_TASK)
    return was_loaded and Path(job.task_name.rpartition(":")[0]).is_file()


def views_of(job: CheckedJob, rank: int, *, num_looks: int = 1, fresh: bool = False) -> list[View]:
    """Return the model and data of a rank, from a process of its own.

    Args:
        num_looks: how often model and data are built in that process.
        fresh: use a new interpreter if the Task is in a file; else fork this process.

    Raises:
        RuntimeError: if it failed there, with the message.
        TimeoutError: if it took too long.
    """
    limit_s = min(_LIMIT_S, max(10.0, job.left_s() / 2))
    is_fresh = has_file(job) and (fresh or not can_fork())
    return (_fresh if is_fresh else _forked)(job, rank, num_looks, limit_s)


def alike(a: Numbers, b: Numbers) -> bool:
    """Return True if two values are equal up to rounding; NaN equals NaN."""
    if len(a) != len(b):
        return False
    finite = (abs(x) for x in (*a, *b) if np.isfinite(x))
    atol = 0.1 * _CLOSE * max(finite, default=0.0)
    return np.allclose(a, b, rtol=_CLOSE, atol=atol, equal_nan=True)


def other_keys(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """List the names that are in only one of two mappings."""
    return [*(name for name in first if name not in second), *(n for n in second if n not in first)]


def other_rows(first: Rows, second: Rows, *, names: tuple[str, str]) -> str | None:
    """Return how two views of a split differ, or None; `names` are those of the views."""
    if first.length != second.length:
        return f"{names[0]} has {first.length} examples and {names[1]} has {second.length}"
    for what in ("inputs", "targets"):
        ours, theirs = getattr(first, what), getattr(second, what)
        num = sum(not alike(a, b) for a, b in zip(ours, theirs, strict=False))
        if num:
            return f"{num} of {len(ours)} compared examples have different {what} in {names[1]}"
    return None


# --- in the rank's process


def look(task: Task, recipe: Recipe) -> View:
    """Build a Task's model and data in a process with a rank's variables, on the CPU."""
    rank = int(os.environ["RANK"])
    recipe = replace(recipe, device=replace(recipe.device, compile=False))
    model = make_model(recipe, copy.copy(task), torch.device("cpu"))
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    weights = {name: _numbers(tensor) for name, tensor in tensors if not _is_unset(tensor)}
    data = {}
    for split in (Split.TRAIN, Split.VAL):
        source = _open(task, recipe, split)
        if source is not None and len(source):
            data[split.value] = _rows(source)
    train = _open(task, recipe, Split.TRAIN) if not data["train"].inputs else None
    if train is None or isinstance(train, ArrivalSource):
        return View(weights=weights, data=data)
    draws = _draws(train, recipe, rank)
    later = _open(task, recipe, Split.TRAIN)
    assert later is not None
    return View(
        weights=weights,
        data=data,
        draws=draws,
        later_draws=_draws(later, recipe, rank, after=len(later) - 1),
    )


def _open(task: Task, recipe: Recipe, split: Split) -> Source | None:
    seed_everything(recipe.seed)
    data = copy.copy(task).data(split)
    return None if data is None else as_source(data)


def _rows(source: Source) -> Rows:
    """Read a few rows; none of a random source, which may differ by design."""
    if isinstance(source, ArrivalSource):
        items = list(itertools.islice(source.arrivals(), _NUM_ROWS))
        seen = [source.collate([item]) for item in items]
    elif is_stochastic(source):
        return Rows(length=len(source))
    else:
        rows = np.unique(np.linspace(0, len(source) - 1, _NUM_ROWS).astype(np.int64))
        seen = [source.read(row) for row in rows.reshape(-1, 1)]
    return Rows(
        length=len(source),
        inputs=tuple(_of_value(examples.inputs) for examples in seen),
        targets=tuple(_of_value(examples.targets) for examples in seen),
    )


def _draws(
    source: Source, recipe: Recipe, rank: int, *, after: int | None = None
) -> tuple[Numbers, ...]:
    seed_everything(step_seed(recipe.seed, 0, rank))
    if after is not None:
        source.read(np.array([after]))
    seen: list[Examples] = [source.read(np.zeros(1, dtype=np.int64)) for _ in range(NUM_DRAWS)]
    return tuple(_of_value(examples.inputs) for examples in seen)


def _of_value(value: Any) -> Numbers:
    made = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    return tuple(number for tensor in tensors_of(made) for number in _numbers(tensor))


def _numbers(tensor: Tensor) -> Numbers:
    """Return some evenly spaced values of a tensor, and its mean."""
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.numel() == 0:
        return ()
    flat = tensor.detach().reshape(-1)
    rows = torch.linspace(0, flat.numel() - 1, min(_NUM_VALUES, flat.numel())).long()
    return (*flat[rows].tolist(), float(flat.double().mean()))


def _is_unset(tensor: Tensor) -> bool:
    return torch.nn.parameter.is_lazy(tensor) or tensor.is_meta


def _variables(rank: int) -> dict[str, str]:
    """Return the environment that torchrun sets for a rank, without the master's address."""
    kept = {name: value for name, value in os.environ.items() if name not in _MEETING_PLACE}
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": NUM_RANKS, "LOCAL_WORLD_SIZE": NUM_RANKS}
    return {**kept, **{name: str(value) for name, value in own.items()}}


def _words(error: BaseException) -> str:
    what = str(error).strip().partition("\n")[0][:300]
    return f"{type(error).__name__}: {what}" if what else type(error).__name__


# --- a forked process


def _forked(job: CheckedJob, rank: int, num_looks: int, limit_s: float) -> list[View]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(theirs, job, rank, num_looks))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about forks with threads: the child uses none of them
        process.start()
    theirs.close()
    try:
        if not ours.poll(limit_s):
            raise TimeoutError(f"rank {rank} took over {limit_s:.0f} s to build model and data")
        seen = ours.recv()
    except EOFError:
        raise RuntimeError(f"the process of rank {rank} exited without a message") from None
    finally:
        process.kill()
        process.join()
        ours.close()
    if isinstance(seen, str):
        raise RuntimeError(f"as rank {rank}: {seen}")  # noqa: TRY004  (its message, not its type)
    views: list[View] = seen
    return views


def _tell(pipe: Connection, job: CheckedJob, rank: int, num_looks: int) -> None:
    torch.set_num_threads(1)  # the threads of the parent process do not exist in a fork
    os.environ.update(_variables(rank))
    for name in _MEETING_PLACE:
        os.environ.pop(name, None)
    try:
        pipe.send([look(job.task, job.recipe) for _ in range(num_looks)])
    except Exception as error:
        pipe.send(_words(error))


# --- a fresh interpreter


def _fresh(job: CheckedJob, rank: int, num_looks: int, limit_s: float) -> list[View]:
    with tempfile.TemporaryDirectory(prefix="stepladder-check-") as temporary:
        folder = Path(temporary)
        (folder / CONFIG).write_text(dump_job(job.config), encoding="utf-8")
        write_json(folder / TASK_FILE, job.task_name)
        command = [sys.executable, "-m", "stepladder.checks.machine.ranks", str(folder)]
        try:
            result = subprocess.run(
                [*command, str(rank), str(num_looks)],
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
                env={**_variables(rank), "CUDA_VISIBLE_DEVICES": ""},
            )
        except subprocess.TimeoutExpired:
            what = f"rank {rank} took over {limit_s:.0f} s to build model and data"
            raise TimeoutError(what) from None
        if (folder / ERROR_FILE).exists():
            why = (folder / ERROR_FILE).read_text(encoding="utf-8")
            raise RuntimeError(f"as rank {rank}: {why}")
        if not (folder / VIEWS_FILE).exists():
            why = (result.stderr.strip().splitlines() or ["it exited without a message"])[-1]
            raise RuntimeError(f"as rank {rank}: {why[:300]}")
        return [from_json(View, view) for view in read_json(folder / VIEWS_FILE)]


def main(folder: Path, rank: int, num_looks: int) -> None:
    """Load the Task's file as a rank, and write its views."""
    torch.set_num_threads(1)
    os.environ.update(_variables(rank))
    try:
        recipe = load_job(folder / CONFIG).recipe
        task = load_task(str(read_json(folder / TASK_FILE)), store=recipe.data.store, recipe=recipe)
        views = [look(task, recipe) for _ in range(num_looks)]
        write_json(folder / VIEWS_FILE, to_json(views))
    except Exception as error:
        (folder / ERROR_FILE).write_text(_words(error), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
