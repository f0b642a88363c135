"""The plan and the times of a block of a recipe's work, and the training time computed from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stepladder.records.profile import TrainingTime

_ALIKE: Final = 2.0  # largest ratio at which two workloads count as similar


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of a block, the same for every block.

    Attributes:
        num_steps, num_val_batches, num_trunk_batches: number of each.
        begins_dry: discard batches prefetched between two blocks, which would make a step that
            waits for data look faster.
        trunk_begins_dry: the same for passes through the trunk.
    """

    num_steps: int = 0
    num_val_batches: int = 0
    num_trunk_batches: int = 0
    begins_dry: bool = False
    trunk_begins_dry: bool = False


@dataclass(frozen=True, kw_only=True)
class BlockTimes:
    """The times of one block, per step.

    Attributes:
        step_s: one full step, including waiting for data and copying.
        num_steps: number of steps measured.
        validation_s: one validation of the whole split; 0 without one.
        trunk_s: reading one training example and running it, or each of its views, through the
            trunk; None unless features are cached.
        held_out_trunk_s: the same for a held-out example, which has no views; None: the same.
        load_s: loading the data into memory, once; None if nothing is loaded, or if it is counted
            elsewhere.
        phases_s: seconds of each phase of one step.
        steps_s: each single step on the CPU; empty if steps are queued on a device.
        wall_s: the whole block.
    """

    step_s: float
    num_steps: int
    validation_s: float
    trunk_s: float | None = None
    held_out_trunk_s: float | None = None
    load_s: float | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict)
    steps_s: tuple[float, ...] = ()
    wall_s: float = 0.0


def align_plans(one: Plan, other: Plan) -> tuple[Plan, Plan]:
    """Use the same numbers of steps and batches for two workloads to compare, if they are similar.

    Fixed costs of a block (opening readers, filling a queue) then affect both equally; otherwise
    the noise of the pilots would affect every pair of blocks. If one workload does far fewer steps
    or batches in the time of a block, both keep their own numbers.
    """
    same: dict[str, Any] = {}
    for name in ("num_steps", "num_val_batches", "num_trunk_batches"):
        low, high = sorted((getattr(one, name), getattr(other, name)))
        if high <= _ALIKE * low:
            same[name] = high
    for name in ("begins_dry", "trunk_begins_dry"):
        same[name] = getattr(one, name) or getattr(other, name)
    return replace(one, **same), replace(other, **same)


def mean_times(blocks: Sequence[BlockTimes]) -> BlockTimes:
    """Return the means over blocks that do the same work; num_steps is their sum."""
    num = len(blocks)

    def mean(name: str) -> float | None:
        known: list[float] = [s for block in blocks if (s := getattr(block, name)) is not None]
        return sum(known) / len(known) if known else None

    return BlockTimes(
        step_s=sum(block.step_s for block in blocks) / num,
        num_steps=sum(block.num_steps for block in blocks),
        validation_s=sum(block.validation_s for block in blocks) / num,
        trunk_s=mean("trunk_s"),
        held_out_trunk_s=mean("held_out_trunk_s"),
        load_s=mean("load_s"),
    )


def training_time(
    times: BlockTimes,
    *,
    batch_size: int,
    num_train: int,
    num_val: int,
    epochs: float,
    num_validations: float,
    one_time_s: Mapping[str, float] | None = None,
    checkpoint_s: float = 0.0,
) -> TrainingTime:
    """Return the training time computed from the times of a block.

    Args:
        batch_size: examples per step.
        num_train: training examples per epoch.
        num_val: validation examples.
        one_time_s: work done once, by name; features, and loading if the block has it, are counted
            from the block.
    """
    one_time = dict(one_time_s or {})
    if times.trunk_s is not None:
        held_out_s = times.held_out_trunk_s
        of_val_s = num_val * (times.trunk_s if held_out_s is None else held_out_s)
        one_time["features"] = num_train * times.trunk_s + of_val_s
    if times.load_s is not None:
        one_time["load"] = times.load_s
    return TrainingTime(
        one_time_s=one_time,
        epochs=epochs,
        steps_per_epoch=num_train / batch_size,
        step_s=times.step_s,
        num_validations=num_validations,
        validation_s=times.validation_s,
        checkpoint_s=checkpoint_s,
    )
