"""A run on the ranks that do not write it: they train as rank 0 does, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch
from torch import nn

from stepladder.config.choices import TrainMode
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.data.reading.examples import ArrivalSource, Source
from stepladder.errors import DivergedError, InterruptedRun, UsageError
from stepladder.machine.activity import on_its_own
from stepladder.models.features import hash_weights, kind_of, tensors_of
from stepladder.parallel.agreement import Wishes
from stepladder.parallel.handshake import (
    differences_of_hosts,
    require_same_tensors,
    require_same_weights,
)
from stepladder.parallel.place import too_many_devices
from stepladder.parallel.world import World
from stepladder.task.contract import Task
from stepladder.training.baseline import STOP_REASON, Against
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.checkpoint.training_state import (
    RunState,
    begin_on_new_data,
    restore,
    restore_position,
    send_parts,
)
from stepladder.training.clock import Clock
from stepladder.training.course import Position
from stepladder.training.features.feature_stage import go_on_features
from stepladder.training.loop import fit
from stepladder.training.output.display import Display
from stepladder.training.randomness import use_deterministic
from stepladder.training.ranks.hosts import received_by_host
from stepladder.training.ranks.joint_features import serve_features
from stepladder.training.ranks.use import UseMeter
from stepladder.training.session import is_log_due
from stepladder.training.setup.attempt import device_name
from stepladder.training.setup.build import (
    Sources,
    make_held_out_reader,
    make_model,
    make_trunk_pass,
)
from stepladder.training.signals import SignalGuard
from stepladder.training.stage import stages_of
from stepladder.training.training import Training

_TOLD: Final = "Rank 0 has reported it."


class Settled(NamedTuple):
    """What rank 0 has decided before the first step.

    Attributes:
        job: with all choices made.
        loaded: the checkpoint that the run resumes from; None: a fresh run.
        has_new_data: the data differs from that of the checkpoint.
        counts_downloads: downloads are counted by host.
    """

    job: JobConfig
    loaded: Loaded | None
    has_new_data: bool
    counts_downloads: bool


@dataclass(kw_only=True)
class Follower(Training):
    """A training whose run folder is written by rank 0.

    Attributes:
        log_every: as in the run's config, so that all ranks log at the same steps.
        use: how busy the device of this rank is.
    """

    guard: SignalGuard
    log_every: int
    use: UseMeter = field(default_factory=UseMeter)

    def wishes(self) -> Wishes:
        """Return the signal that this process got; what else happens is decided by rank 0."""
        return Wishes(signal=self.guard.requested)

    def is_log_due(self, num_examples: int) -> bool:
        """Return True if rank 0 writes a log line after this step."""
        return is_log_due(self, num_examples, log_every=self.log_every)

    def log(self) -> None:
        """Check for non-finite losses, and send the sums of the log line."""
        self.check_finite()
        self.parts.step.take_window()
        received_by_host(self.downloaded, self.world)
        self.use.shares(self.clock, self.world)

    def diverged(self, step: int, bad_ranks: Mapping[int, str]) -> DivergedError:
        """Return the error of a non-finite step, which rank 0 raises and reports, too."""
        del bad_ranks
        what = f"the loss or its gradient became NaN or infinite at step {step} of the training"
        return DivergedError(what, fix=_TOLD)

    def is_commit_due(self) -> bool:
        """Return True if rank 0 saves a checkpoint now."""
        return self.agreed.is_commit_due

    def commit(self) -> None:
        """Take part in a checkpoint: running statistics and sums of a log line go to rank 0."""
        self.check_finite()
        self.share_buffers()
        self.parts.step.gather_window()
        if self.parts.divided is not None and self.world.from_main(False):
            send_parts(self)

    def reason_to_stop(self) -> str | None:
        """Return why all ranks end the stage now, or None."""
        return self.agreed_reason_to_stop()


def require_parallel(recipe: Recipe, sources: Sources, world: World) -> None:
    """Check that a recipe can be trained by several ranks.

    Raises:
        UsageError: if its data cannot be divided, or some ranks would never have an example.
    """
    if isinstance(sources.train, ArrivalSource):
        raise UsageError(
            "the training data are an IterableDataset, which cannot be divided among several "
            "devices",
            why="Its examples have no index, by which each device could read its own.",
            where="device.count",
            fix="Return a Dataset with __getitem__ from data(Split.TRAIN) of the Task, or train on "
            "one device: --devices 1",
        )
    if recipe.device.divides_model:
        _require_divisible(recipe, world)
    batch = recipe.batch.global_batch_size
    parts = max(recipe.device.tensor_parallel, recipe.device.pipeline_stages)
    num = world.size // parts  # those that share a model compute the same examples
    error = too_many_devices(num, batch=batch, num_train=len(sources.train))
    if error is not None:
        raise error


def _require_divisible(recipe: Recipe, world: World) -> None:
    """Check that a recipe can be trained with a model in parts.

    Raises:
        UsageError: if other options or the number of devices do not go with it.
    """
    device = recipe.device
    where = f"device.{device.division}"
    flag = f"--{where.replace('_', '-')}"
    if recipe.train is not TrainMode.ALL:
        raise UsageError(
            f"{where} divides what is trained, but --train {recipe.train} leaves most weights as "
            "they are",
            where=where,
            fix=f"Type --train all, or leave out {flag}.",
        )
    if device.compile:
        raise UsageError(
            "device.compile has not been tried with a model that is divided among devices",
            where=where,
            fix=f"Leave out device.compile, or {where}.",
        )
    parts = max(device.tensor_parallel, device.pipeline_stages)
    if world.size % parts:
        raise UsageError(
            f"{where} {parts} does not divide the number of devices, which is {world.size}",
            where=where,
            fix=f"Type --devices {-(-world.size // parts) * parts}.",
        )
    if parts > 1 and device.sync_batchnorm:
        raise UsageError(
            f"device.sync_batchnorm has not been tried with {where}",
            where=where,
            fix="Leave out device.sync_batchnorm: the devices of a group share their statistics.",
        )
    if device.pipeline_stages > 1 and device.gradient_checkpointing:
        raise UsageError(
            "device.gradient_checkpointing has not been tried with a pipeline",
            where=where,
            fix=f"Leave out device.gradient_checkpointing, or {where}.",
        )


def share_start(model: nn.Module, world: World) -> list[int]:
    """Use the initial weights and buffers of rank 0 everywhere, and check that they have arrived.

    Returns:
        The ranks whose own weights differed.

    Raises:
        UsageError: if the models have different tensors.
        ResourceError: if weights differ after they were sent.
    """
    if world.is_alone:
        return []
    tensors = tensors_of(model)
    require_same_tensors(world, {name: kind_of(tensor) for name, tensor in tensors.items()})
    hashes = world.gather(hash_weights(model))
    world.copy_from_main(tensors)
    require_same_weights(world, hash_weights(model))
    return [rank for rank, one in enumerate(hashes) if one != hashes[0]]


def follow(
    task: Task,
    sources: Sources,
    *,
    device: torch.device,
    clock: Clock,
    display: Display,
    world: World,
) -> None:
    """Train together with rank 0, which runs `train`.

    Raises:
        DivergedError: if a loss is not finite; rank 0 raises it, too.
        InterruptedRun: after a signal.
        ResourceError: if rank 0 or another rank has ended.
    """
    settled: Settled | None = world.from_main(None)
    if settled is None:  # the run is finished already
        return
    job, loaded = settled.job, settled.loaded
    recipe = job.recipe
    stored = sources.train
    with on_its_own("building the model"):
        model = make_model(recipe, task, device)
    share_start(model, world)
    world.met()
    differences_of_hosts(world, device=device_name(device))
    with SignalGuard() as guard, use_deterministic(recipe.deterministic):
        if recipe.features.cached:
            if loaded is not None:
                model.load_state_dict(loaded.frozen, strict=False)
            way = make_trunk_pass(recipe, task, model, device=device)
            serve_features(way, sources, world)
            task, sources = go_on_features(
                job,
                task,
                sources,
                model=model,
                device=device,
                loaded=loaded,
                display=display,
                guard=guard,
                is_test_wanted=True,
            )
        run = _open(
            settled,
            task,
            sources,
            model=model,
            device=device,
            clock=clock,
            guard=guard,
            world=world,
            downloaded=stored if settled.counts_downloads else None,
        )
        try:
            _train(run, sources)
        finally:
            run.close()


def _open(
    settled: Settled,
    task: Task,
    sources: Sources,
    *,
    model: nn.Module,
    device: torch.device,
    clock: Clock,
    guard: SignalGuard,
    world: World,
    downloaded: Source | None,
) -> Follower:
    job, loaded = settled.job, settled.loaded
    recipe = job.recipe
    position = restore_position(loaded) if loaded is not None else Position()
    run = Follower.open(
        recipe,
        task,
        sources,
        model=model,
        device=device,
        clock=clock,
        stage=stages_of(recipe.train, recipe.batch)[position.stage],
        position=position,
        num_kept=job.run.save_top_k,
        world=world,
        guard=guard,
        downloaded=downloaded,
        log_every=job.run.log_every,
    )
    if loaded is not None:
        state = RunState(
            facts={}, against=Against(None, patience=job.run.baseline_patience, min_frac=0.0)
        )
        restore(run, state, loaded)
        run.parts.step.clear_window()  # rank 0 has the sums of all ranks
        if settled.has_new_data:
            begin_on_new_data(run, state)
    return run


def _train(run: Follower, sources: Sources) -> None:
    num_stages = len(stages_of(run.recipe.train, run.recipe.batch))
    while True:
        reason = fit(run)
        if reason == "signal":
            run.commit()
            what = f"rank {run.world.rank} ended with the run, after a signal"
            raise InterruptedRun(what, signal_number=run.agreed.signal, fix=_TOLD)
        if reason == STOP_REASON or run.position.stage + 1 >= num_stages:
            break
        run.commit()
        run.restore_best()
        run.rule.best.forget_weights()
        run.begin_next_stage()
    run.commit()
    run.restore_best()
    run.close()
    recipe = run.recipe
    for source in (sources.val, sources.test):
        reader = make_held_out_reader(
            source,
            recipe.batch,
            recipe.loader,
            recipe.data.where,
            run.world,
            hosts=recipe.data.hosts,
        )
        if reader is not None:
            run.evaluate(reader)
            reader.close()
    received_by_host(run.downloaded, run.world)
