"""The batch of a run that resumes on another number of devices."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stepladder.config.choices import OnWorldChange
from stepladder.config.options import JobConfig
from stepladder.config.recipe import BatchConfig, ScheduleConfig
from stepladder.data.order.order_choice import order_of
from stepladder.optim.schedule import base_lr, horizon_steps, round_lr
from stepladder.training.setup.attempt import Start
from stepladder.training.setup.build import Sources

FIRST_WORLD, BATCH = "first_world_size", "global_batch_size"
"""Keys in a checkpoint: the devices of the run's first attempt, and the batch of its last one."""


@dataclass(frozen=True, kw_only=True)
class WorldChange:
    """Another batch because of another number of devices.

    Attributes:
        devices: before and after.
        batches: before and after; the same if the change has to wait.
        lrs: base learning rates, before and after.
        rule: by which the learning rate follows the batch.
        wanted: the global batch that keeps the batch per device.
    """

    devices: tuple[int, int]
    batches: tuple[int, int]
    lrs: tuple[float, float]
    rule: str
    wanted: int

    def sentence(self) -> str:
        """Return what changed: `1 -> 2 devices: global batch 16 -> 32, learning rate …`."""
        said = "{} -> {} devices: ".format(*self.devices)
        if self.batches[0] == self.batches[1]:
            return (
                f"{said}the global batch stays {self.batches[0]} until a start between two epochs, "
                "because the order of an epoch whose files are divided among hosts depends on it; "
                f"then it becomes {self.wanted}"
            )
        lrs = tuple(map(round_lr, self.lrs))
        rate = f"stays {lrs[0]:g}" if lrs[0] == lrs[1] else "{:g} -> {:g}".format(*lrs)
        said += "global batch {} -> {}, ".format(*self.batches)
        return f"{said}learning rate {rate} (batch.lr_rule {self.rule})"

    def values(self) -> dict[str, float]:
        """Return the numbers of its event."""
        pairs = {
            "world_size": self.devices,
            "global_batch_size": self.batches,
            "base_learning_rate": self.lrs,
        }
        before = {f"{name}_before": pair[0] for name, pair in pairs.items()}
        return {**before, **{name: pair[1] for name, pair in pairs.items()}}


def batch_facts(job: JobConfig, start: Start) -> dict[str, int]:
    """Return what a checkpoint keeps, so that a later attempt knows the batch per device.

    Args:
        job: with the batch of this attempt.
    """
    return {FIRST_WORLD: _first_world(start), BATCH: job.recipe.batch.global_batch_size}


def adapt_to_world(
    job: JobConfig, start: Start, sources: Sources
) -> tuple[JobConfig, Start, WorldChange | None]:
    """Return the job and the start of an attempt with the batch of its number of devices.

    With `run.on_world_change scale_batch`, each device keeps its examples per step, so the global
    batch is that of the config, times the devices of this attempt, over those of the first one. An
    epoch resumes at the same example. The step of the schedule moves, so that the same share of the
    training lies behind it; a warm-up is taken once.

    Returns:
        None without a change of the batch.
    """
    loaded, batch = start.loaded, job.recipe.batch
    if loaded is None:
        return job, start, None
    first, now = _first_world(start), start.conditions.world_size
    scales = job.run.on_world_change is OnWorldChange.SCALE_BATCH
    wanted = max(1, round(batch.global_batch_size * now / first)) if scales else None
    before = int(loaded.state.get(BATCH, batch.global_batch_size))
    after = batch.global_batch_size if wanted is None else wanted
    position = loaded.state["position"]
    waits = (job.recipe.data.hosts or 1) > 1 and int(position["offset"]) > 0 and after != before
    old, new = (replace(batch, global_batch_size=size) for size in (before, after))
    if waits:
        new = old
    recipe = replace(job.recipe, batch=new)
    job = replace(job, recipe=recipe)
    if after == before:
        return job, start, None
    is_second = int(position["stage"]) > 0
    change = WorldChange(
        devices=(int(loaded.state["conditions"]["world_size"]), now),
        batches=(before, new.global_batch_size),
        lrs=(base_lr(old, is_second_stage=is_second), base_lr(new, is_second_stage=is_second)),
        rule=batch.lr_rule.value,
        wanted=after,
    )
    num_samples = order_of(
        recipe.data, sources.train, seed=recipe.seed, batch_size=before
    ).num_samples
    step = moved_step(int(position["stage_step"]), recipe.schedule, (old, new), num_samples)
    moved = {**loaded.state, "position": {**position, "stage_step": step}}
    changed = [one for one in start.changed if not one.startswith("world size")]
    return job, replace(start, loaded=replace(loaded, state=moved), changed=changed), change


def moved_step(
    step: int, schedule: ScheduleConfig, batches: tuple[BatchConfig, BatchConfig], num_samples: int
) -> int:
    """Return the step of a schedule at which the same share of it lies behind, for another batch.

        step' = warmup + (step - warmup) (horizon' - warmup) / (horizon - warmup)

    A step of the warm-up stays, as the warm-up is counted in steps.
    """
    warmup = schedule.warmup_steps
    old, new = (
        horizon_steps(schedule, steps_per_epoch=-(-num_samples // batch.global_batch_size)) - warmup
        for batch in batches
    )
    if step <= warmup or old <= 0:
        return step
    return warmup + round((step - warmup) * max(new, 0) / old)


def _first_world(start: Start) -> int:
    """Return the devices of the run's first attempt; of earlier versions, those of the last."""
    if start.loaded is None:
        return start.conditions.world_size
    state = start.loaded.state
    return int(state.get(FIRST_WORLD, state["conditions"]["world_size"]))
