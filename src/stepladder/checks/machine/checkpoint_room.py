"""The checkpoints that a run will keep have a place: a folder that takes files, and room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from stepladder.checks.contract import Answer, Check, Tier, found, passed
from stepladder.checks.examples import Example
from stepladder.checks.job import CheckedJob
from stepladder.config.options import JobConfig
from stepladder.errors import ResourceError
from stepladder.machine import disk_free_bytes
from stepladder.records.findings import Severity
from stepladder.training.checkpoint.folder_checks import probe
from stepladder.training.checkpoint.training_state import checkpoints_bytes
from stepladder.training.stage import enter_stage, frozen_names, stages_of


def checkpoint_room(job: CheckedJob) -> Answer:
    """Write a file where checkpoints will lie, and compare their bytes with what is free."""
    place = next(path for path in (job.run_dir, *job.run_dir.absolute().parents) if path.is_dir())
    fix = "Choose another --run.dir, or free some space (`stepladder clean` lists what may go)."
    try:
        file_system = probe(place)
    except ResourceError as error:
        return found("no_room_for_checkpoints", str(error).partition("\n")[0], fix=fix)
    needed = max(
        checkpoints_bytes(
            learned,
            frozen,
            config=job.config.run,
            optimizer=job.recipe.optimizer.name,
            has_hard_links=file_system.has_hard_links,
        )
        for learned, frozen in _weights_by_stage(job)
    )
    free = disk_free_bytes(place)
    evidence = f"checkpoints need {needed / 1e6:,.1f} MB at most, {free / 1e6:,.0f} MB are free"
    if needed > free:
        return found(
            "no_room_for_checkpoints", evidence, fix=fix, needed_bytes=needed, free_bytes=free
        )
    return passed(evidence, needed_bytes=needed, free_bytes=free)


def _weights_by_stage(job: CheckedJob) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Return what learns and what is frozen in each stage, by name."""
    model = job.model()
    parts = []
    for stage in stages_of(job.recipe.train, job.recipe.batch):
        state = model.state_dict()
        frozen = frozen_names(model, enter_stage(stage, job.task, model))
        parts.append(
            (
                {name: tensor for name, tensor in state.items() if name not in frozen},
                {name: tensor for name, tensor in state.items() if name in frozen},
            )
        )
    return parts


class _Hoarding(Example):
    """The sound job, but that it keeps more checkpoints than any disk holds."""

    def config(self, folder: Path) -> JobConfig:
        config = super().config(folder)
        return replace(config, run=replace(config.run, keep_last=10**15))


def broken() -> Example:
    """More checkpoints are kept than any disk holds."""
    return _Hoarding()


CHECK = Check(
    name="checkpoint_room",
    reason="A run whose disk fills up, or whose folder cannot be written, dies at its first save.",
    source="reliability of long runs: a full disk at the first checkpoint",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("no_room_for_checkpoints",),
    run=checkpoint_room,
    broken=broken,
)
