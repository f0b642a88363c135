"""Estimate the time of checkpoints: time real saves, and count those of a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from torch import Tensor

from stepladder.errors import ResourceError
from stepladder.machine import disk_free_bytes
from stepladder.measuring.subject import Subject
from stepladder.optim.state import flatten_state
from stepladder.records import to_json
from stepladder.records.profile import TrainingTime
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.folder_checks import probe
from stepladder.training.randomness import capture_random_state
from stepladder.training.session import MAX_CHECKPOINT_FRAC
from stepladder.training.stage import frozen_names

_ROOM: Final = 4  # free disk space needed, as a multiple of the saves
_SLOW_S: Final = 2.0
"""If the first commit is slower, there is no second: the frozen weights are a small part of it."""
_MOST_BYTES: Final = 4e9  # a minute on a slow disk


@dataclass(frozen=True, kw_only=True)
class SaveTimes:
    """Seconds of a commit: the state of the training, and the best weights.

    Attributes:
        first_s: the first one, which also writes the frozen weights.
        later_s: each later one.
    """

    first_s: float
    later_s: float


def measure_saves(subject: Subject, folder: Path) -> SaveTimes | None:
    """Save a subject's state twice in a folder, as training does, and remove it.

    With a validation split the best weights are written, too. If the first commit is slow, its time
    is used for the later ones, too. None if the folder does not exist, cannot be written or has too
    little free space, or if gigabytes would be written.
    """
    model, parts = subject.model, subject.parts
    names = frozen_names(model, parts.frozen)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    learned = {name: tensor for name, tensor in state.items() if name not in names}
    frozen = {name: tensor for name, tensor in state.items() if name in names}
    optimizer, facts = flatten_state(parts.update.optimizer, model)
    if not folder.is_dir():
        return None
    num_bytes = 2 * _num_bytes(learned) + _num_bytes(optimizer, frozen)
    if num_bytes > _MOST_BYTES or _ROOM * num_bytes > disk_free_bytes(folder):
        return None
    random_tensors, random_state = capture_random_state()
    tensors = {"model": learned, "optimizer": optimizer, "random": random_tensors}
    values = to_json({"optimizer": facts, "random": random_state, "scaler": parts.update.state()})
    try:
        with TemporaryDirectory(prefix=".save-", dir=folder) as name:
            saves = Checkpoints(Path(name) / "checkpoints", file_system=probe(Path(name)))
            seconds: list[float] = []
            for idx in (1, 2):
                if sum(seconds) > _SLOW_S:
                    break
                took_s = saves.save(f"step-{idx:09d}", tensors, values, frozen).seconds
                if subject.sources.val is not None:
                    best = {"model": learned}
                    took_s += saves.save(f"best-{idx:09d}", best, {}, frozen).seconds
                seconds.append(took_s)
    except (ResourceError, OSError):
        return None
    return SaveTimes(first_s=seconds[0], later_s=seconds[-1])


def _num_bytes(*groups: dict[str, Tensor]) -> int:
    return sum(tensor.nbytes for group in groups for tensor in group.values())


def checkpoints_s(saves: SaveTimes, time: TrainingTime, *, every_s: float | None) -> float:
    """Return the seconds of all checkpoints of a training: one at its end, others by time.

    Args:
        time: of the training; there are no checkpoints before its first step.
        every_s: minimum seconds between two; 0: after every step; None: only one at the end.
    """
    num_later = 0.0
    if every_s is not None:
        if every_s > 0:
            apart_s = max(every_s, saves.later_s / MAX_CHECKPOINT_FRAC)
            num_later = float(int(time.loop_s / apart_s))
        else:
            num_later = max(0.0, time.epochs * time.steps_per_epoch - 1)
    return saves.first_s + num_later * saves.later_s
