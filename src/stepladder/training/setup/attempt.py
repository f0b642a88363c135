"""The start of an attempt: what an earlier one left, and what it may be replaced by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stepladder.config.options import JobConfig
from stepladder.config.show import dump_job
from stepladder.machine import environment
from stepladder.records import read_jsonl, write_json
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.output.events import DISCARDED_FILE, EVENTS_FILE, rewind
from stepladder.training.setup.build import Sources
from stepladder.training.setup.differences import Conditions, differences, refuse_other_classes
from stepladder.training.setup.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where an attempt begins.

    Attributes:
        attempt: its number, from 1.
        loaded: the checkpoint that it goes on from; None: a fresh run.
        conditions: of this attempt; changed: how they differ, a sentence each.
        has_new_data: whether the data is other than that of the checkpoint.
    """

    attempt: int
    checkpoints: Checkpoints
    loaded: Loaded | None
    conditions: Conditions
    changed: Sequence[str]

    @property
    def after_step(self) -> int:
        """Steps that the checkpoint has behind it."""
        return int(self.loaded.state["position"]["step"]) if self.loaded is not None else 0

    @property
    def has_new_data(self) -> bool:
        """Whether the data is other than that of the checkpoint."""
        loaded = self.loaded
        return loaded is not None and loaded.state["conditions"]["data"] != self.conditions.data


def begin(
    job: JobConfig,
    sources: Sources,
    folder: RunFolder,
    *,
    device: torch.device,
    described: Mapping[str, Any],
    accept_new_data: bool,
) -> Start:
    """Find the checkpoint to go on from, write the config, and move later events aside.

    Args:
        job, sources, folder, device: of this attempt.
        described: the facts that the Task gives of itself.
        accept_new_data: go on with other examples; never with other classes.

    Raises:
        DataError: if the data is new and that is not accepted, the classes are others, or no
            checkpoint is sound.
    """
    splits = {split: source for split, source in vars(sources).items() if source is not None}
    conditions = Conditions.measure(
        device=device,
        world_size=1,
        data={split: source.fingerprint for split, source in splits.items()},
        num_examples={split: len(source) for split, source in splits.items()},
    )
    checkpoints = folder.checkpoints(keep_last=job.run.keep_last)
    checkpoints.clean()
    loaded = checkpoints.newest()
    changed: Sequence[str] = ()
    if loaded is not None:
        refuse_other_classes(loaded.state["describe"], described)
        old = Conditions.from_state(loaded.state["conditions"])
        changed = differences(old, conditions, accept_new_data=accept_new_data)
    # from here on nothing is refused: what an earlier attempt wrote may be replaced
    folder.write_config(dump_job(job))
    write_json(folder.path / "env.json", environment())
    attempt = 1 + max((e.get("attempt", 0) for e in _all_events(folder.path)), default=0)
    start = Start(
        attempt=attempt,
        checkpoints=checkpoints,
        loaded=loaded,
        conditions=conditions,
        changed=changed,
    )
    rewind(folder.path, after_step=start.after_step)
    return start


def _all_events(folder: Path) -> list[Mapping[str, Any]]:
    return [
        record
        for name in (EVENTS_FILE, DISCARDED_FILE)
        for record in read_jsonl(folder / name)
        if isinstance(record.get("attempt"), int)
    ]
