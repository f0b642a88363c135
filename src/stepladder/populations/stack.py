"""Members whose weights are stacked, so that each step updates all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from stepladder.config.recipe import OptimizerConfig
from stepladder.errors import DataError
from stepladder.populations.updates import Updates
from stepladder.records import write_bytes
from stepladder.records.population import Score
from stepladder.training.course import Position

T = TypeVar("T")
MAX_RECIPES: Final = 4096  # of members, that are kept


class Stack:
    """Stacked weights with their optimizer, the best ones, and a position that all share.

    Args:
        weights: of all members, (members, ...), by name.
        config: of the optimizer.
        is_head: these are the weights of heads.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], config: OptimizerConfig, *, is_head: bool
    ) -> None:
        self._is_head = is_head
        self.weights = dict(weights)
        self.updates = Updates(config, self.weights)
        self.kept: dict[str, Tensor] = {}
        self.position = Position()

    @property
    def is_head(self) -> bool:
        """Whether the kept weights have the names of the head alone."""
        return self._is_head

    def inherit(self, parents: Sequence[int]) -> None:
        """Copy weights and optimizer state from the parents."""
        for weight in self.weights.values():
            weight.copy_(weight[torch.as_tensor(parents, device=weight.device)])
        self.updates.inherit(parents)

    def keep(self, member: int) -> None:
        """Copy the weights of a member."""
        self.kept = {name: w[member : member + 1].clone() for name, w in self.weights.items()}

    def save(self, folder: Path, name: str) -> None:
        """Write all members into one file."""
        state, numbers = self.updates.state()
        tensors = {f"weights.{key}": value for key, value in self.weights.items()}
        tensors |= {f"kept.{key}": value for key, value in self.kept.items()}
        tensors |= {f"state.{key}": value for key, value in state.items()}
        values = {f"state.{key}": float(value) for key, value in numbers.items()}
        values |= {f"position.{key}": value for key, value in self.position.state().items()}
        on_host = {key: value.contiguous().cpu() for key, value in tensors.items()}
        content = save(on_host, {key: repr(value) for key, value in values.items()})
        write_bytes(folder / name, content)

    def load(self, folder: Path, name: str) -> None:
        """Restore all members.

        Raises:
            DataError: if the file is damaged, or has other members.
        """
        path = folder / name
        device = next(iter(self.weights.values())).device
        try:
            # copies: products of tensors within a file, at any address, may round differently
            tensors = {key: t.to(device, copy=True) for key, t in load_file(path).items()}
            values = _metadata(path)
            for key, weight in self.weights.items():
                weight.copy_(tensors[f"weights.{key}"])
            self.updates.restore(_below("state.", tensors), _below("state.", values))
            self.kept = _below("kept.", tensors)
            at = {key: int(value) for key, value in _below("position.", values).items()}
            self.position = Position(**at)
        except (SafetensorError, OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
            raise DataError(
                f"the saved members cannot be read ({error})",
                where=str(path),
                fix="Begin again: type the same command with --overwrite.",
            ) from None

    def close(self) -> None:
        """Do nothing: there are no readers and no processes."""


def mean_score(scores: Sequence[Score]) -> Score:
    """Return the mean of those that have not diverged."""
    finite = [score for score in scores if score.is_finite]
    accuracies = [score.accuracy for score in finite if score.accuracy is not None]
    return Score(
        loss=float(np.mean([score.loss for score in finite])) if finite else float("nan"),
        accuracy=float(np.mean(accuracies)) if accuracies else None,
    )


def schedule_step(position: Position, *, batch: int, steps_per_epoch: int) -> float:
    """Return the step of the schedule at a position, in batches of a size.

    Intervals may end within a batch, and members may have had batches of other sizes: then it is
    not the number of steps that were taken.
    """
    return position.epoch * steps_per_epoch + position.offset / batch


def seed_of(seed: int, step: int) -> int:
    """Return a seed for the random numbers of a step."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)


def _metadata(path: Path) -> dict[str, float]:
    with safe_open(path, framework="pt") as file:
        return {key: float(value) for key, value in (file.metadata() or {}).items()}


def _below(prefix: str, values: Mapping[str, T]) -> dict[str, T]:
    return {key.removeprefix(prefix): v for key, v in values.items() if key.startswith(prefix)}
