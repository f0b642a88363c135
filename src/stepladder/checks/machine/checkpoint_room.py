"""The run folder is writable and has room for the checkpoints that the run will keep."""

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
    """Write a file to the run folder, and compare the size of checkpoints with the free space."""
    place = next(path for path in (job.run_dir, *job.run_dir.absolute().parents) if path.is_dir())
    fix = "Choose another --run.dir, or free some space (`stepladder clean` lists what to delete)."
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
    evidence = (
        f"checkpoints need up to {needed / 1e6:,.1f} MB of disk space, {free / 1e6:,.0f} MB are "
        "free"
    )
    if needed > free:
        return found(
            "no_room_for_checkpoints", evidence, fix=fix, needed_bytes=needed, free_bytes=free
        )
    return passed(evidence, needed_bytes=needed, free_bytes=free)


def _weights_by_stage(job: CheckedJob) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """Return the trainable and the frozen weights of each stage, by name."""
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
    """The sound job, with more checkpoints than fit on any disk."""

    def config(self, folder: Path) -> JobConfig:
        config = super().config(folder)
        return replace(config, run=replace(config.run, keep_last=10**15))


def broken() -> Example:
    """More checkpoints than fit on any disk."""
    return _Hoarding()


CHECK = Check(
    name="checkpoint_room",
    reason="A run whose disk is full, or whose folder is not writable, fails at its first save.",
    source="reliability of long runs: a full disk at the first checkpoint",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("no_room_for_checkpoints",),
    run=checkpoint_room,
    broken=broken,
)
