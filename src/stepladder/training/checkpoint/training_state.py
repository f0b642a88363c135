"""Save and restore a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName
from stepladder.config.options import RunConfig
from stepladder.models.sharded_tensors import is_sharded
from stepladder.optim.state import flatten_state, restore_state
from stepladder.optim.table import spec_of
from stepladder.records import to_json
from stepladder.training.baseline import Against
from stepladder.training.checkpoint.checkpoint import Checkpoints, SavedInfo
from stepladder.training.checkpoint.checkpoint_files import Loaded, serialize
from stepladder.training.course import Position
from stepladder.training.randomness import capture_random_state, restore_random_state
from stepladder.training.training import Training


@dataclass(kw_only=True)
class RunState:
    """State of a run that is saved in addition to its training.

    Attributes:
        facts: JSON values in every checkpoint of the run (task, describe, environment).
        against: the comparison with an earlier run.
        last_loss, last_accuracy: of the last log line.
    """

    facts: dict[str, Any]
    against: Against
    warnings: list[str] = field(default_factory=list)
    last_loss: float = math.nan
    last_accuracy: float | None = None


def save_training(training: Training, state: RunState, checkpoints: Checkpoints) -> SavedInfo:
    """Write the best weights that are only in memory, then the training, then prune.

    Raises:
        ResourceError: if a file cannot be written; older checkpoints are kept.
    """
    frozen, best = training.frozen_weights(), training.rule.best
    for kept in best.uncommitted():
        assert kept.weights is not None
        of_best = {**state.facts, "best": kept.record()}
        checkpoints.save(kept.name, {"model": kept.weights}, to_json(of_best), frozen)
    tensors, values = capture(training, state)
    name = f"step-{training.position.step:09d}"
    saved = checkpoints.save(name, tensors, to_json(values), frozen)
    best.mark_committed()
    checkpoints.prune(best.names())
    return saved


def send_parts(training: Training) -> None:
    """Send this rank's parts of what rank 0 saves by `save_training`, in the same order."""
    best = training.rule.best
    for kept in best.uncommitted():
        assert kept.weights is not None
        _send({"model": kept.weights})
    state = RunState(facts={}, against=Against(None, patience=1, min_frac=0.0))
    _send(capture(training, state)[0])
    best.mark_committed()


def _send(tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    for members in tensors.values():
        for _ in serialize({name: t for name, t in members.items() if is_sharded(t)}):
            pass


def checkpoints_bytes(
    learned: Mapping[str, Tensor],
    frozen: Mapping[str, Tensor],
    *,
    config: RunConfig,
    optimizer: OptimizerName,
    has_hard_links: bool,
) -> int:
    """Return the maximum bytes of a run's checkpoints, including one being written.

    A step has the trained weights and, for the Adam family, two more numbers for each.

    Args:
        learned, frozen: the trained weights, and the others.
    """
    learned_bytes = sum(tensor.numel() * tensor.element_size() for tensor in learned.values())
    frozen_bytes = sum(tensor.numel() * tensor.element_size() for tensor in frozen.values())
    num_last = config.keep_last + (config.mirror is not None)  # one is kept while it is copied
    copies = 1 if has_hard_links else num_last + 2
    numbers = spec_of(optimizer).state_numbers
    state_bytes = sum(numbers(tensor) * tensor.element_size() for tensor in learned.values())
    steps = (num_last + 1) * (learned_bytes + state_bytes)
    return steps + (config.save_top_k + 1) * learned_bytes + copies * frozen_bytes


def capture(
    training: Training, state: RunState
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return the whole state of a run, as tensors by group and JSON values."""
    step, update, rule = training.parts.step, training.parts.update, training.rule
    optimizer_tensors, optimizer_state = flatten_state(update.optimizer, training.model)
    if training.parts.divided is not None:
        optimizer_tensors = training.parts.divided.complete(optimizer_tensors)
    random_tensors, random_state = capture_random_state()
    stopping_arrays, stopping_state = rule.stopping.state()
    window_tensors, window_examples = step.state()
    tensors = {
        "model": training.learned_weights(),
        "optimizer": optimizer_tensors,
        "random": random_tensors,
        "stopping": {name: torch.from_numpy(array) for name, array in stopping_arrays.items()},
        "window": window_tensors,
    }
    host = training.clock.host()
    values = {
        **state.facts,
        "position": training.position.state(),
        "optimizer": optimizer_state,
        "random": random_state,
        "stopping": stopping_state,
        "scaler": update.state(),
        "gain": None if step.gain is None else step.gain.gain.state(),
        "against": state.against.state(),
        "validation_pending": training.is_validation_pending,
        "window_examples": window_examples,
        "last_loss": state.last_loss,
        "last_accuracy": state.last_accuracy,
        "top": rule.best.state(),
        "clock": {"wall_s": host.wall_s, "phases_s": dict(host.phases_s)},
        "warnings": state.warnings,
    }
    return tensors, values


def restore_position(loaded: Loaded) -> Position:
    """Return the position of a checkpoint."""
    values = dict(loaded.state["position"])
    gained = float(values.pop("gained", 0.0))  # checkpoints of earlier versions have none
    return Position(**{key: int(value) for key, value in values.items()}, gained=gained)


def restore(training: Training, state: RunState, loaded: Loaded) -> None:
    """Restore a training from a checkpoint (position and clock are already restored)."""
    training.load_weights(loaded.frozen, loaded.tensors["model"])
    step, update, rule = training.parts.step, training.parts.update, training.rule
    values = loaded.state
    restore_state(
        update.optimizer, training.model, loaded.tensors["optimizer"], values["optimizer"]
    )
    arrays = {name: np.asarray(tensor) for name, tensor in loaded.tensors["stopping"].items()}
    rule.stopping.restore(arrays, values["stopping"])
    if "against" in values:  # checkpoints of earlier versions have none
        state.against.restore(values["against"])
    update.restore(values["scaler"])
    if step.gain is not None and values.get("gain") is not None:
        step.gain.gain.restore(values["gain"])
    step.restore(loaded.tensors["window"], int(values["window_examples"]))
    rule.best.restore(values["top"])
    training.is_validation_pending = bool(values["validation_pending"])
    state.last_loss = float(values["last_loss"])
    accuracy = values["last_accuracy"]
    state.last_accuracy = None if accuracy is None else float(accuracy)
    state.warnings[:] = list(values["warnings"])
    restore_random_state(loaded.tensors["random"], values["random"])


def begin_on_new_data(training: Training, state: RunState) -> None:
    """Reset what was measured on other data: the best so far, and the current epoch."""
    training.rule.reset()
    state.against.reset()
    training.position.offset = 0
