"""The job's demands are within the machine's limits: cores, memory, files, driver, clock."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from stepladder.checks.contract import Answer, Check, Tier, found, passed
from stepladder.checks.examples import Example, sound_recipe
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import DeviceChoice, Where
from stepladder.data.reading.examples import PictureSource
from stepladder.data.reading.memory import decoded_bytes
from stepladder.machine import available_memory_bytes, disk_free_bytes, gpus, num_cores
from stepladder.machine.network import (
    is_free,
    network_facts,
    network_problems,
    source_address,
)
from stepladder.measuring.probe import untouched
from stepladder.measuring.reading.disk import measure_disk
from stepladder.optim.table import spec_of
from stepladder.records.findings import Severity

_MANY_READERS: Final = 8  # threads per core
_FEW_FILES: Final = 256
_EPOCH_OF_PLAUSIBLE_TIME: Final = 1_704_067_200  # 2024-01-01
_COARSE_S: Final = 1e-3
_SHM: Final = Path("/dev/shm")
_SHM_BYTES_A_RANK: Final = (
    64_000_000  # the default of a whole Docker container: too little for several ranks
)


def machine_limits(job: CheckedJob) -> Answer:
    """Compare the resources of this process (by its cgroup) with what the job needs."""
    problems = [
        *_core_problems(job),
        *_memory_problems(job),
        *_gpu_problems(job),
        *_system_problems(),
        *rank_problems(os.environ, shm_bytes=_shm_bytes()),
        *_disk_problems(job),
    ]
    facts = _facts()
    if problems:
        what, fix = problems[0]
        more = "".join(f"; {other}" for other, _ in problems[1:])
        return found("machine_limit", f"{what}{more} ({facts})", fix=fix)
    return passed(facts)


def _facts() -> str:
    words = [f"{num_cores()} cores", f"{available_memory_bytes() / 1e9:.1f} GB of memory free"]
    if _SHM.is_dir():
        words.append(f"{_shm_bytes() / 1e6:,.0f} MB in /dev/shm")
    if (limit := _open_files()) is not None:
        words.append(f"{limit:,} open files")
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        words += network_facts()["interfaces"]
    return ", ".join(words)


def _core_problems(job: CheckedJob) -> list[tuple[str, str]]:
    cores, wanted = num_cores(), job.recipe.device.threads
    found_here = []
    if wanted > cores:
        what = f"device.threads is {wanted}, but the process may use {cores} cores"
        found_here.append((what, "Omit --device.threads: the default is one thread per core."))
    if job.recipe.loader.num_threads > _MANY_READERS * cores:
        what = (
            f"loader.threads is {job.recipe.loader.threads}, but the process may use {cores} cores"
        )
        found_here.append((what, "Omit --loader.threads: the default is one thread per core."))
    return found_here


def _memory_problems(job: CheckedJob) -> list[tuple[str, str]]:
    free = available_memory_bytes()
    train = job.sources.train
    held = 0
    if job.recipe.data.where is Where.MEMORY and isinstance(train, PictureSource):
        held = decoded_bytes(train, fraction=job.recipe.data.fraction)
    numbers = spec_of(job.recipe.optimizer.name).state_numbers
    weights = sum(  # trainable ones: with a gradient and optimizer state
        weight.nbytes * 2 + weight.itemsize * numbers(weight)
        if weight.requires_grad
        else weight.nbytes
        for weight in job.model().parameters()
    )
    on_host = weights if job.device.type == "cpu" else 0
    if held + on_host <= free:
        return []
    what = (
        f"pictures ({held / 1e9:.1f} GB) and weights with optimizer state "
        f"({on_host / 1e9:.1f} GB) do not fit into {free / 1e9:.1f} GB of free memory"
    )
    return [(what, "Stream the data (--data.where stream), or use a smaller model.")]


def _gpu_problems(job: CheckedJob) -> list[tuple[str, str]]:
    if torch.cuda.is_available() or job.recipe.device.kind is DeviceChoice.CPU:
        return []
    there = gpus()
    if not there:
        return []
    driver = f" (driver {there[0].driver})" if there[0].driver else ""
    if torch.version.cuda is None:
        why, fix = "torch is built without CUDA", "Install a CUDA build of torch: pytorch.org."
    else:
        why = f"torch, built for CUDA {torch.version.cuda}, cannot use it"
        fix = "Update the driver, or install a torch built for an older CUDA."
    return [
        (f"this machine has a {there[0].name}{driver}, but {why}: training would use the CPU", fix)
    ]


def _system_problems() -> list[tuple[str, str]]:
    found_here = []
    limit = _open_files()
    if limit is not None and limit < _FEW_FILES:
        found_here.append((f"the limit of open files is {limit}", "Raise it: ulimit -n 4096."))
    if time.get_clock_info("perf_counter").resolution > _COARSE_S:
        found_here.append(("the clock is too coarse to time steps", "Measure on another machine."))
    if time.time() < _EPOCH_OF_PLAUSIBLE_TIME:
        what = f"the system date is {time.strftime('%Y-%m-%d')}"
        found_here.append((what, "Set the date: file ages and certificates depend on it."))
    return found_here


def rank_problems(environ: Mapping[str, str], *, shm_bytes: float) -> list[tuple[str, str]]:
    """Find what keeps ranks from working: a full /dev/shm, a used port, a host out of reach.

    Args:
        environ: environment variables; without WORLD_SIZE there is one rank, which needs nothing.
        shm_bytes: free in /dev/shm; infinite if it does not exist.
    """
    if int(environ.get("WORLD_SIZE") or 1) < 2:
        return []
    found_here = []
    num_ranks = int(environ.get("LOCAL_WORLD_SIZE") or environ["WORLD_SIZE"])
    needed = num_ranks * _SHM_BYTES_A_RANK
    if num_ranks > 1 and shm_bytes < needed:
        what = (
            f"{shm_bytes / 1e6:,.0f} MB are free in /dev/shm, but {num_ranks} ranks may need "
            f"{needed / 1e6:,.0f} MB"
        )
        found_here.append((what, "Increase it for the container: docker run --shm-size 1g."))
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT", "")
    has_met = torch.distributed.is_available() and torch.distributed.is_initialized()
    is_host = environ.get("RANK", "0") == "0" and not has_met
    is_launched = "TORCHELASTIC_RUN_ID" in environ  # torchrun holds the port itself
    if port.isdigit() and is_host and not is_launched and not is_free(int(port)):
        found_here.append(
            (f"MASTER_PORT {port} is already in use", "Set MASTER_PORT to a free port.")
        )
    if host and port.isdigit() and source_address(host, int(port)) is None:
        what = f"MASTER_ADDR is {host}, but this machine does not know a way to that host"
        found_here.append((what, "Set MASTER_ADDR to the host of rank 0, by name or address."))
    for problem in network_problems(network_facts(environ), {}, num_gpus=0):
        what, _, fix = problem.partition(". Type: ")
        found_here.append((what, f"Type: {fix}"))
    return found_here


def _shm_bytes() -> float:
    return disk_free_bytes(_SHM) if _SHM.is_dir() else math.inf


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _disk_problems(job: CheckedJob) -> list[tuple[str, str]]:
    rate = measure_disk(job.task)
    store = getattr(job.task, "store", None)
    if rate is None or store is None or job.recipe.data.where is Where.MEMORY:
        return []
    num_rows = sum(info.num_rows for info in store.manifest.shards)
    num_bytes = sum((store.path / info.name).stat().st_size for info in store.manifest.shards)
    example_bytes = num_bytes / max(num_rows, 1)
    num_examples, step_s = _forward_rate(job)
    return disk_problem(rate, needed=example_bytes * num_examples / step_s)


def disk_problem(rate: float, *, needed: float) -> list[tuple[str, str]]:
    """Return a problem if the disk is slower than the forward pass needs, else an empty list.

    Args:
        rate: bytes per second that the disk reads, uncached.
        needed: bytes per second that the model consumes.
    """
    if rate >= needed:
        return []
    what = f"the disk reads {rate / 1e6:,.0f} MB/s, but the model consumes {needed / 1e6:,.0f} MB/s"
    return [(what, "Store smaller pictures (prepare --encoding jpeg), or use a faster disk.")]


def _forward_rate(job: CheckedJob) -> tuple[int, float]:
    """Time one forward pass: return examples and seconds."""
    batch, model = job.augmented(job.train_batches(1)[0]), job.model()
    with untouched(), torch.no_grad():
        job.loss(model, batch)
        started = time.perf_counter()
        job.loss(model, batch)
        return len(batch.ids), max(time.perf_counter() - started, 1e-6)


def broken() -> Example:
    """A thousand compute threads for a few cores."""
    recipe = sound_recipe()
    return Example(recipe=replace(recipe, device=replace(recipe.device, threads=1000)))


CHECK = Check(
    name="machine_limits",
    reason="A job that needs more than its container may use is slow, or is killed without a "
    "message.",
    source="cgroup v2 limits; DataLoader and CUDA faults of the field",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("machine_limit",),
    run=machine_limits,
    broken=broken,
)
