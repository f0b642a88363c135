"""A session to a checkpoint and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName
from stepladder.config.options import RunConfig
from stepladder.optim.state import flatten_state, restore_state
from stepladder.optim.table import spec_of
from stepladder.records import to_json
from stepladder.training.best import BestWeights
from stepladder.training.checkpoint.checkpoint import SavedInfo
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.position import Position
from stepladder.training.randomness import capture_random_state, restore_random_state
from stepladder.training.stopping import EarlyStopping

if TYPE_CHECKING:
    from stepladder.training.session import Session


def save_session(run: Session) -> SavedInfo:
    """Write the best weights that are only in memory, then the session, then prune.

    Raises:
        ResourceError: if a file cannot be written; older checkpoints stay.
    """
    frozen = run.frozen_weights()
    for kept in run.best.uncommitted():
        assert kept.weights is not None
        state = {**run.facts, "best": kept.record()}
        run.checkpoints.save(kept.name, {"model": kept.weights}, to_json(state), frozen)
    tensors, state = capture(run)
    name = f"step-{run.position.step:09d}"
    saved = run.checkpoints.save(name, tensors, to_json(state), frozen)
    run.best.mark_committed()
    run.checkpoints.prune(run.best.names())
    return saved


def forecast_bytes(run: Session) -> int:
    """Give the bytes that the run's checkpoints will need at most, one in the making included.

    A step holds the weights that learn and what the optimiser keeps for them.
    """
    return checkpoints_bytes(
        run.learned_weights(),
        run.frozen_weights(),
        config=run.config,
        optimizer=run.recipe.optimizer.name,
        has_hard_links=run.checkpoints.has_hard_links,
    )


def checkpoints_bytes(
    learned: Mapping[str, Tensor],
    frozen: Mapping[str, Tensor],
    *,
    config: RunConfig,
    optimizer: OptimizerName,
    has_hard_links: bool,
) -> int:
    """Give the bytes that checkpoints of these weights need at most, as `forecast_bytes`."""
    learned_bytes = sum(tensor.numel() * tensor.element_size() for tensor in learned.values())
    frozen_bytes = sum(tensor.numel() * tensor.element_size() for tensor in frozen.values())
    num_last = config.keep_last + (config.mirror is not None)  # one stays while it is copied
    copies = 1 if has_hard_links else num_last + 2
    numbers = spec_of(optimizer).state_numbers
    state_bytes = sum(numbers(tensor) * tensor.element_size() for tensor in learned.values())
    steps = (num_last + 1) * (learned_bytes + state_bytes)
    return steps + (config.save_top_k + 1) * learned_bytes + copies * frozen_bytes


def capture(run: Session) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Give everything that the rest of the run depends on: (tensors by group, JSON values)."""
    optimizer_tensors, optimizer_state = flatten_state(run.update.optimizer, run.model)
    random_tensors, random_state = capture_random_state()
    stopping_arrays, stopping_state = run.stopping.state()
    window_tensors, window_examples = run.step.state()
    tensors = {
        "model": run.learned_weights(),
        "optimizer": optimizer_tensors,
        "random": random_tensors,
        "stopping": {name: torch.from_numpy(array) for name, array in stopping_arrays.items()},
        "window": window_tensors,
    }
    host = run.clock.host()
    state = {
        **run.facts,
        "position": run.position.state(),
        "optimizer": optimizer_state,
        "random": random_state,
        "stopping": stopping_state,
        "scaler": run.update.state(),
        "against": run.against.state(),
        "validation_pending": run.is_validation_pending,
        "window_examples": window_examples,
        "last_loss": run.last_loss,
        "last_accuracy": run.last_accuracy,
        "top": run.best.state(),
        "clock": {"wall_s": host.wall_s, "phases_s": dict(host.phases_s)},
        "warnings": run.warnings,
    }
    return tensors, state


def restore_position(loaded: Loaded) -> Position:
    """Give the position of a checkpoint."""
    return Position(**{key: int(value) for key, value in loaded.state["position"].items()})


def load_weights(run: Session, *groups: Mapping[str, Tensor]) -> None:
    """Put tensors by name into the model; those not named stay.

    Those that are equal are not written: what was folded or compiled from them then stays true.
    """
    state = run.model.state_dict()
    with torch.no_grad():
        for group in groups:
            for name, tensor in group.items():
                there = state[name]
                if not torch.equal(there, tensor.to(there.device, there.dtype)):
                    there.copy_(tensor)


def restore(run: Session, loaded: Loaded) -> None:
    """Put a session into the state of a checkpoint (position and clock are already there)."""
    load_weights(run, loaded.frozen, loaded.tensors["model"])
    state = loaded.state
    restore_state(run.update.optimizer, run.model, loaded.tensors["optimizer"], state["optimizer"])
    arrays = {name: np.asarray(tensor) for name, tensor in loaded.tensors["stopping"].items()}
    run.stopping.restore(arrays, state["stopping"])
    if "against" in state:  # checkpoints of earlier versions have none
        run.against.restore(state["against"])
    run.update.restore(state["scaler"])
    run.step.restore(loaded.tensors["window"], int(state["window_examples"]))
    run.best.restore(state["top"])
    run.is_validation_pending = bool(state["validation_pending"])
    run.last_loss = float(state["last_loss"])
    accuracy = state["last_accuracy"]
    run.last_accuracy = None if accuracy is None else float(accuracy)
    run.warnings[:] = list(state["warnings"])
    run.committed_step = run.position.step
    restore_random_state(loaded.tensors["random"], state["random"])


def begin_on_new_data(run: Session) -> None:
    """Forget what was measured or counted on other data: the best so far, the open epoch."""
    run.stopping = EarlyStopping(run.recipe.stopping)
    run.best = BestWeights(run.config.save_top_k)
    run.against.reset()
    run.position.offset = 0
