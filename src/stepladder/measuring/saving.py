"""What checkpoints take: one real save on a private folder, and how many a training makes."""

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

_ROOM: Final = 4  # times what the saves take, that has to be free on the disk
_SLOW_S: Final = 2.0
"""Of the first commit, from which on there is no second: the frozen weights are little of it."""
_MOST_BYTES: Final = 4e9  # what a slow disk takes a minute for


@dataclass(frozen=True, kw_only=True)
class SaveTimes:
    """Seconds of a commit: the state of the training, and the best weights beside it.

    Attributes:
        first_s: the first one, which writes the frozen weights too.
        later_s: each one after it.
    """

    first_s: float
    later_s: float


def measure_saves(subject: Subject, folder: Path) -> SaveTimes | None:
    """Save a subject's state twice below a folder, as training does; nothing is left there.

    With a validation split the best weights are written as well. Where the first commit is slow it
    stands for the later ones too. None where the folder is not there, cannot be written, or has
    little room, and where gigabytes would be written.
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
    """Return the seconds of all saves of a training: one at its end, others by the clock.

    Args:
        time: of the training; work before its first step has no checkpoints.
        every_s: seconds between two at the least; 0: after every step; None: one at the end.
    """
    num_later = 0.0
    if every_s is not None:
        if every_s > 0:
            apart_s = max(every_s, saves.later_s / MAX_CHECKPOINT_FRAC)
            num_later = float(int(time.loop_s / apart_s))
        else:
            num_later = max(0.0, time.epochs * time.steps_per_epoch - 1)
    return saves.first_s + num_later * saves.later_s
