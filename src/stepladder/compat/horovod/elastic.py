"""`hvd.elastic`: a training that continues from its last commit after a failure.

If a collective fails in all processes, the state returns to the last commit in memory. If a process
dies, `torchrun --max-restarts 3 train.py` starts all of them again; then rank 0 has kept the last
commit in a file, and the others receive it.
"""

from __future__ import annotations

import copy
import math
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sized
from functools import wraps
from pathlib import Path
from typing import Any, Final

import torch

from stepladder.compat.horovod.objects import broadcast_object
from stepladder.compat.horovod.session import (
    HorovodInternalError,
    current,
    init,
    shutdown,
)
from stepladder.errors import DataError

FOLDER: Final = "STEPLADDER_ELASTIC_DIR"  # for commits; by default that of temporary files


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a dataset among ranks, without the examples that were processed before a failure.

    Args:
        dataset: with a length.
        shuffle: permute the examples, again in each epoch.
        seed: equal on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; to be called at the end of the one before."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:  # noqa: ARG002
        """Count the examples of a batch, on all ranks, as processed."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Continue at a position."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the examples that are left among the ranks of now."""
        session = current()
        self.num_replicas, self.rank = session.size, session.rank
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        padded = self.remaining_indices[:]
        padded += padded[: self.total_size - len(padded)]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


class TorchState:
    """What a training has to know to continue: models, optimizers, samplers and plain values.

    Args:
        model, optimizer: of torch.
        values: further objects, such as `epoch=0`; they become attributes.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        self._names = [*values]
        self._callbacks: list[Callable[[], None]] = []
        for name, value in (("model", model), ("optimizer", optimizer)):
            if value is not None:
                values[name] = value
                self._names.append(name)
        vars(self).update(values)
        self.save()

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Call functions after each reset, such as one that sets the learning rate."""
        self._callbacks.extend(callbacks)

    def commit(self) -> None:
        """Keep the state, to return to it after a failure."""
        self.save()
        file = _commit_file()
        if file is not None and current().rank == 0:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            torch.save(self._saved, partial)
            partial.replace(file)

    def check_host_updates(self) -> None:
        """Do nothing: the launcher starts all processes again if hosts change."""

    def save(self) -> None:
        """Keep the state in memory."""
        self._saved = copy.deepcopy({name: _state_of(vars(self)[name]) for name in self._names})

    def restore(self) -> None:
        """Return to the state that was kept last."""
        for name, state in copy.deepcopy(self._saved).items():
            value = vars(self)[name]
            if _has_state(value):
                value.load_state_dict(state)
            else:
                vars(self)[name] = state

    def sync(self) -> None:
        """Use the state of rank 0 on all ranks."""
        self.save()
        self._saved = broadcast_object(self._saved)
        self.restore()

    def on_reset(self) -> None:
        """Divide samplers among the ranks of now, and call the callbacks."""
        for name in self._names:
            if isinstance(vars(self)[name], ElasticSampler):
                vars(self)[name].reset()
        for callback in self._callbacks:
            callback()

    def resume(self) -> bool:
        """Return to the last commit of an earlier attempt, on rank 0; False without one."""
        file = _commit_file()
        if file is None or current().rank or not int(os.environ["TORCHELASTIC_RESTART_COUNT"]):
            return False
        if not file.is_file():
            return False
        try:
            self._saved = torch.load(file, weights_only=True)
        except Exception as error:
            raise DataError(
                f"the last commit cannot be read ({type(error).__name__})",
                where=str(file),
                fix="Keep only tensors, numbers, text, lists and dictionaries in TorchState.",
            ) from error
        self.restore()
        return True


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _state_of(value: Any) -> Any:
    return value.state_dict() if _has_state(value) else value


def _commit_file() -> Path | None:
    """Return the file of commits; None if the launcher never starts processes again."""
    if not int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")):
        return None
    parent = Path(os.environ.get(FOLDER) or tempfile.gettempdir())
    # of the launcher: the job's name is often the same in every run
    job = f"{os.environ['TORCHELASTIC_RUN_ID']}-{os.environ.get('MASTER_PORT', '0')}-{os.getppid()}"
    folder = parent / f"stepladder-elastic-{os.getuid()}-{job}"
    return folder / "commit.pt"


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a `TorchState` that continues from the last commit after a failure."""

    @wraps(function)
    def training(state: TorchState, *args: Any, **kwargs: Any) -> Any:
        if broadcast_object(state.resume()):
            state.sync()
            state.on_reset()
        while True:
            try:
                state.sync()
                result = function(state, *args, **kwargs)
            except HorovodInternalError:
                state.restore()
                shutdown()
                init()
                state.on_reset()
                continue
            file = _commit_file()
            if file is not None and current().rank == 0 and file.is_file():
                file.unlink()
                file.parent.rmdir()
            return result

    return training
