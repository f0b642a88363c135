"""Train on several devices: start the processes, or join them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepladder.config.choices import DeviceChoice, Launcher
from stepladder.config.options import JobConfig
from stepladder.config.schema import values_of
from stepladder.config.show import dump_job
from stepladder.data.remote.places import is_address
from stepladder.errors import ResourceError, UsageError
from stepladder.machine.activity import paused
from stepladder.parallel.failures import LOGS, log_file
from stepladder.parallel.place import Place, place_of, too_many_devices
from stepladder.parallel.world import World

if TYPE_CHECKING:
    from stepladder.parallel.fleet import Fleet
    from stepladder.task.contract import Task
    from stepladder.training.output.display import Display

_JOB: Final = "job.yaml"


def launch(
    job: JobConfig,
    task: Task | str | None,
    *,
    dry_run: bool,
    overwrite: bool,
    accept_new_data: bool,
    fleet: Fleet | None = None,
) -> None:
    """Train in `device.count` processes, and wait for them.

    Args:
        fleet: other hosts on which a climb was started; used if this one has too few devices.

    Raises:
        UsageError: if other processes cannot make the Task, the launcher is not installed, or the
            batch has too few examples.
        ResourceError: if there are fewer GPUs, or a process died too often.
    """
    del dry_run  # one process tries two steps
    num, name = job.recipe.device.count, _name_for_others(task)
    error = too_many_devices(num, batch=job.recipe.batch.global_batch_size)
    if error is not None:
        raise error
    launcher, kind = job.run.launch, job.recipe.device.kind
    is_wide = fleet is not None and num > fleet.place.local_size
    is_local = launcher is Launcher.PROCESSES and not is_wide
    if is_local:
        _require_gpus(num, kind)
    if name is not None and not is_local:
        name = _with_absolute_file(name)
    words = ["--task", name] if name is not None else []
    words += ["--overwrite"] if overwrite else []
    words += ["--accept-new-data"] if accept_new_data else []
    folder, restarts = job.run.dir.absolute(), job.run.restarts
    with _written(job, folder, is_local=is_local) as file:
        words = ["train", "--config", str(file), *words]
        if fleet is not None and is_wide:
            from stepladder.parallel.launch.ranks import run_on_ranks

            with paused():
                run_on_ranks(fleet, words, folder=folder)
            return
        uses_gpus = None if kind is DeviceChoice.AUTO else kind is DeviceChoice.CUDA
        if launcher is Launcher.RAY:
            from stepladder.parallel.launch.ray import run_on_ray

            run_on_ray(num, words, folder=folder, uses_gpus=uses_gpus, restarts=restarts)
        elif launcher is Launcher.SPARK:
            from stepladder.parallel.launch.spark import run_on_spark

            with paused():  # rank 0 prints
                run_on_spark(num, words, folder=folder, uses_gpus=uses_gpus, restarts=restarts)
        else:
            from stepladder.parallel.launch.processes import run_processes

            with paused():
                run_processes(num, words, folder=folder, restarts=restarts, env={})


@contextmanager
def _written(job: JobConfig, folder: Path, *, is_local: bool) -> Iterator[Path]:
    """Write the job for its processes, with absolute paths if they run elsewhere.

    On other machines it is in the logs of the run, which all of them see.
    """
    if is_local:
        with tempfile.TemporaryDirectory(prefix="stepladder-") as there:
            file = Path(there) / _JOB
            file.write_text(dump_job(job), encoding="utf-8")
            yield file
        return
    store = job.recipe.data.store
    if not is_address(store):
        data = replace(job.recipe.data, store=store.absolute())
        job = replace(job, recipe=replace(job.recipe, data=data))
    job = replace(job, run=replace(job.run, dir=folder))
    file = folder / LOGS / _JOB
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dump_job(job), encoding="utf-8")
    yield file


def for_ladder(job: JobConfig, place: Place | None = None) -> JobConfig:
    """Return a job as a climb starts it: on one device, with the others for `more_gpus`.

    Args:
        place: of this process under a launcher, which has one process for each device.

    Raises:
        UsageError: if Spark or Ray should start the processes.
        ResourceError: if this machine has fewer GPUs.
    """
    num = max(job.recipe.device.count, job.ladder.devices)
    if place is not None:
        num = place.local_size
    if num > 1 and job.run.launch is not Launcher.PROCESSES:
        raise UsageError(
            f"a climb measures devices of this machine, not those of {job.run.launch.title()}",
            where="run.launch",
            fix="Type --launch processes, or start the climb with torchrun on several machines; "
            f"then train the resulting config with --launch {job.run.launch}.",
        )
    if num > 1:
        _require_gpus(num, job.recipe.device.kind)
    recipe = replace(job.recipe, device=replace(job.recipe.device, count=1))
    return replace(job, recipe=recipe, ladder=replace(job.ladder, devices=num))


def prints_result(job: JobConfig) -> bool:
    """Return True if this process prints what a command has made: rank 0, or a process alone."""
    place = place_of()
    return place.rank == 0 if place is not None else job.recipe.device.count == 1


def is_main() -> bool:
    """Return True in rank 0 of a launcher, and in a process that none has started."""
    place = place_of()
    return place is None or place.rank == 0


@contextmanager
def joined_for(job: JobConfig, place: Place | None) -> Iterator[World]:
    """Join the other processes of a job.

    Raises:
        ResourceError: if they do not come, or one of them ends.
    """
    from stepladder.parallel.join import joined

    with joined(
        place,
        job.run.dir,
        is_cuda=_num_gpus(job.recipe.device.kind) > 0,
        meet_s=job.run.meet_s,
        stall_s=job.run.stall_s,
    ) as world:
        yield world


@contextmanager
def log_of_main(job: JobConfig, world: World, display: Display) -> Iterator[None]:
    """Copy what rank 0 prints into its log."""
    if world.is_alone or not world.is_main:
        yield
        return
    path = log_file(job.run.dir, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", buffering=1) as file:
        display.out.copy = file
        try:
            yield
        finally:
            display.out.copy = None


def shake_hands(job: JobConfig, world: World) -> str | None:
    """Check that all ranks run the same programs with the same options, and share the run folder.

    Returns:
        A line about the network of several hosts; None: all ranks are on one.

    Raises:
        UsageError: if they do not, with both sides.
        ResourceError: if the run folder cannot be written.
    """
    from stepladder.parallel.handshake import (
        network_line,
        require_same_config,
        require_same_programs,
        require_shared_folder,
    )

    require_same_programs(world)
    require_same_config(world, values_of(job))
    if job.run.mirror is None:  # otherwise its checkpoints are there
        require_shared_folder(world, job.run.dir)
    return None if world.is_alone else network_line(world)


def require_same_source(world: World, task: Task, name: str) -> None:
    """Check that all ranks have the same Task, from the same source.

    Raises:
        UsageError: if they do not, with both sides.
    """
    if world.is_alone:
        return
    from stepladder.parallel.handshake import require_same_task
    from stepladder.task.load import source_of

    require_same_task(world, name, source_of(task))


def of_world(job: JobConfig, world: World) -> JobConfig:
    """Return the job with the number of devices that really train it."""
    if world.is_alone:
        return job
    device = replace(job.recipe.device, count=world.size)
    return replace(job, recipe=replace(job.recipe, device=device))


def log_display() -> Display:
    """Return a display for the ranks that write into a log: lines, also from a terminal."""
    from stepladder.training.output.display import PlainDisplay

    return PlainDisplay(sys.stderr)


def _name_for_others(task: Task | str | None) -> str | None:
    """Return the name by which another process makes the task; None: the built-in one."""
    from stepladder.task.load import BUILT_IN, name_for_others

    if task is None or isinstance(task, str):
        return task
    name = name_for_others(task)
    return None if name == BUILT_IN else name


def _with_absolute_file(name: str) -> str:
    """Return the name of a Task with the absolute path of its file, if it has one."""
    file, colon, attribute = name.rpartition(":")
    return f"{Path(file).absolute()}:{attribute}" if colon and Path(file).is_file() else name


def _num_gpus(kind: DeviceChoice) -> int:
    """Return the number of GPUs that a choice of device uses."""
    if kind is DeviceChoice.CPU:
        return 0
    import torch

    return torch.cuda.device_count()


def _require_gpus(num: int, kind: DeviceChoice) -> None:
    """Check that each process on this machine has a GPU of its own, if it has any.

    Raises:
        ResourceError: if there are too few.
    """
    there = _num_gpus(kind)
    if 0 < there < num:
        raise ResourceError(
            f"{num} devices were requested, but this machine has {there} "
            f"GPU{'s' if there > 1 else ''}",
            where="device.count",
            fix=f"Train on all of them: --devices {there}. Or train on the CPU, with {num} "
            "processes: --device.kind cpu",
        )
