"""A process that trains slices of members: `python -m stepladder.populations.worker FD`.

Orders come as JSON lines on its standard input, results go to the file descriptor FD. It ends when
its input does, so that it does not outlive the process that has started it.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepladder.config.load import load_job
from stepladder.errors import StepladderError
from stepladder.populations.genes import applied, genes_of
from stepladder.populations.opening import slice_job
from stepladder.populations.slices import Order, train_order
from stepladder.records import to_json
from stepladder.task.load import load_task
from stepladder.training.output.display import Display


def main(argv: list[str]) -> int:
    """Open the job that the first line names, and train a slice for each further line."""
    out = os.fdopen(int(argv[0]), "w")
    first = json.loads(sys.stdin.readline())

    def answer(value: dict[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    try:
        job = load_job(Path(first["config"]))
        device = replace(job.recipe.device, threads=job.recipe.device.threads or first["threads"])
        job = replace(job, recipe=replace(job.recipe, device=device))
        task = load_task(first["task"], store=job.recipe.data.store, recipe=job.recipe)
        opened = slice_job(job, task, folder=Path(first["folder"]), display=Display(sys.stderr))
        genes = genes_of(job.population.genes, job.recipe)
        answer({"ready": True})
        for line in sys.stdin:
            fields = json.loads(line)
            order = Order(**{**fields, "values": tuple(fields["values"])})
            score = train_order(opened, lambda values: applied(job.recipe, genes, values), order)
            answer({"score": to_json(score)})
    except StepladderError as error:
        answer({"error": str(error)})
        return error.exit_code
    return 0


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
