"""A worker's process: `python -m stepladder.training.asynchronous.worker FILE`."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from stepladder.config.choices import AsyncMethod
from stepladder.config.recipe import Recipe
from stepladder.errors import MissingExtraError, StepladderError, UsageError
from stepladder.machine import num_cores
from stepladder.parallel.asynchronous.link import Message, WorkerLink
from stepladder.parallel.asynchronous.shared import SharedWeights
from stepladder.parallel.orphans import end_with_parent
from stepladder.task.load import load_task
from stepladder.training.asynchronous.contribution import Contribution, Contributor, Work
from stepladder.training.setup.build import open_device
from stepladder.training.setup.table_version import open_at_version


class Hired(NamedTuple):
    """What a worker gets at its start.

    Attributes:
        address: of the server.
        life: how often the worker was started before.
        at: epoch, and examples of it that the run has used so far.
        server: number of the server's process.
        shared: folder of the weights that all workers change; None: each has a copy.
    """

    recipe: Recipe
    task: str
    address: str
    worker: int
    life: int
    at: tuple[int, int]
    server: int
    shared: Path | None


def num_threads(recipe: Recipe) -> int:
    """Return the compute threads of a worker; one if all change the same weights."""
    if recipe.asynchronous.method is AsyncMethod.HOGWILD:
        return 1
    return recipe.device.threads or max(1, num_cores() // recipe.asynchronous.workers)


def main(file: Path) -> None:
    """Work until the server ends this process, or has ended."""
    hired: Hired = pickle.loads(file.read_bytes())
    end_with_parent(hired.server)
    link = WorkerLink(hired.address, hired.worker, hired.life)
    try:
        contributor = _contributor(hired)
        contributor.on_progress = link.progress
        shared = None
        if hired.shared is not None:
            shared = SharedWeights.open(hired.shared, contributor.weights.num)
            contributor.share(shared)
        link.send("hello", {})
        while (message := link.receive()).kind != "stop":
            contribution = _done(contributor, message, shared)
            sums = contribution._asdict() | {"longest_s": link.longest_s}
            change, buffers = sums.pop("change"), sums.pop("buffers")
            link.send("done", sums, change, buffers)
    except StepladderError as error:
        words = {name: getattr(error, name) for name in ("what", "where", "why", "fix")}
        kind = UsageError if isinstance(error, MissingExtraError) else type(error)
        link.send("error", {"type": kind.__name__, **words})
        link.receive()  # the server has read it, and ends this process
    except Exception as error:  # the Task may raise anything, and would do so again
        traceback.print_exc()
        what = f"worker {hired.worker} raised {type(error).__name__}: {error}"
        fix = f"The whole traceback is in its log, logs/worker-{hired.worker}.log of the run."
        link.send("error", {"type": "ResourceError", "what": what, "fix": fix})
        link.receive()
    sys.stdout.flush()
    os._exit(0)  # threads of readers need not end


def _contributor(hired: Hired) -> Contributor:
    recipe = hired.recipe
    torch.set_num_threads(num_threads(recipe))
    task = load_task(hired.task, store=recipe.data.store, recipe=recipe)
    return Contributor(
        recipe,
        task,
        open_at_version(task, recipe.data.table_version),
        worker=hired.worker,
        device=open_device(recipe, local_rank=hired.worker),
        at=hired.at,
    )


def _done(contributor: Contributor, message: Message, shared: SharedWeights | None) -> Contribution:
    work = Work(**message.values)
    weights: Tensor
    weights, statistics = message.tensors
    if shared is None:
        return contributor.compute(work, weights, statistics)
    before = shared.num_updates
    contribution = contributor.change_shared(work, statistics)
    age = shared.num_updates - before
    shared.count()
    return contribution._replace(age=age)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
