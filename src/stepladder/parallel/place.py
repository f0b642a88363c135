"""Where a process stands among the others: read from the environment that a launcher sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stepladder.errors import UsageError

RANK: Final = "RANK"
WORLD_SIZE: Final = "WORLD_SIZE"
LOCAL_RANK: Final = "LOCAL_RANK"
LOCAL_WORLD_SIZE: Final = "LOCAL_WORLD_SIZE"
MASTER_ADDR: Final = "MASTER_ADDR"
MASTER_PORT: Final = "MASTER_PORT"
USES_AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
NODE: Final = "GROUP_RANK"
LISTEN_FD: Final = "STEPLADDER_LISTEN_FD"
OF_LAUNCHERS: Final = (
    *(RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT),
    *(USES_AGENT_STORE, LISTEN_FD, "TORCHELASTIC_RESTART_COUNT"),
)
"""Variables that a launcher sets for one process, and that its children must not inherit."""
_SLURM_PORTS: Final = range(20_000, 30_000)
_MPI_PORTS: Final = range(20_000, 30_000)
_OF_MPI: Final = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of one process.

    Attributes:
        rank, size: of all processes.
        local_rank, local_size: of those on this host.
        address, port: where rank 0, or its launcher, listens.
        has_agent: a launcher's store listens there, and rank 0 publishes its own in it.
        listen_fd: the open socket at which rank 0 listens; None: it opens one.
        node: number of the host, by the launcher; 0 if it does not number them.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    has_agent: bool = False
    listen_fd: int | None = None
    node: int = 0


def too_many_devices(num: int, *, batch: int, num_train: int | None = None) -> UsageError | None:
    """Return the error of more devices than examples at a step, or None if each has one.

    Args:
        num: number of devices.
        batch: number of examples at each step, on all devices.
        num_train: number of training examples; None: not known yet.
    """
    most = batch if num_train is None else min(batch, num_train)
    if num <= most:
        return None
    kind = "a batch of" if most == batch else "the training data of"
    what = f"{kind} {most} example{'' if most == 1 else 's'}"
    return UsageError(
        f"{what} cannot be divided among {num} devices: {num - most} of them would have no example",
        where="device.count",
        fix=f"Type --devices {most}"
        + (f", or --batch-size {num} or more." if most == batch else "."),
    )


def place_of(environ: Mapping[str, str] = os.environ) -> Place | None:
    """Return the place that a launcher such as torchrun gave this process; None: it is alone.

    Slurm's variables count only for a step with several tasks (`srun`): a batch script itself has
    them too, and is one process.

    Raises:
        UsageError: if a variable is missing or is not a number.
    """
    if RANK in environ and WORLD_SIZE in environ:
        if MASTER_ADDR not in environ or MASTER_PORT not in environ:
            raise UsageError(
                f"the environment variables {RANK} and {WORLD_SIZE} say that this is one of "
                f"several processes of a run, but {MASTER_ADDR} and {MASTER_PORT}, the address of "
                "rank 0, are not set",
                where="environment",
                fix="Start the command with torchrun, which sets all four. To train in one "
                f"process: unset {RANK} {WORLD_SIZE}",
            )
        size = _number(environ, WORLD_SIZE)
        return _checked(
            Place(
                rank=_number(environ, RANK),
                size=size,
                local_rank=_number(environ, LOCAL_RANK, default=0),
                local_size=_number(environ, LOCAL_WORLD_SIZE, default=1),
                address=environ[MASTER_ADDR],
                port=_number(environ, MASTER_PORT),
                has_agent=environ.get(USES_AGENT_STORE) == "True",
                listen_fd=_number(environ, LISTEN_FD) if LISTEN_FD in environ else None,
                node=_number(environ, NODE, default=0),
            )
        )
    if int(environ.get("SLURM_STEP_NUM_TASKS", "1") or 1) > 1 and "SLURM_PROCID" in environ:
        return _of_slurm(environ)
    for names in _OF_MPI:
        if names[0] in environ and int(environ.get(names[1]) or 1) > 1:
            return _of_mpi(environ, names)
    return None


def _of_mpi(environ: Mapping[str, str], names: tuple[str, str, str, str]) -> Place:
    """Return the place of a process of `mpirun` or `horovodrun`.

    On one host, the port follows from the process that started all of them.
    """
    rank, size, local_rank, local_size = (_number(environ, name) for name in names)
    if MASTER_ADDR not in environ and local_size < size:
        raise UsageError(
            f"{names[1]} is {size}, but {MASTER_ADDR} and {MASTER_PORT} are not set",
            where="environment",
            fix="Set them to the host of rank 0 and a free port (mpirun -x MASTER_ADDR=HOST -x "
            "MASTER_PORT=29400), or start with torchrun.",
        )
    port = _MPI_PORTS[os.getppid() % len(_MPI_PORTS)]
    return _checked(
        Place(
            rank=rank,
            size=size,
            local_rank=local_rank,
            local_size=local_size,
            address=environ.get(MASTER_ADDR, "127.0.0.1"),
            port=_number(environ, MASTER_PORT, default=port),
        )
    )


def _of_slurm(environ: Mapping[str, str]) -> Place:
    """Return the place of a task of `srun`."""
    size = _number(environ, "SLURM_STEP_NUM_TASKS")
    per_node = environ.get("SLURM_STEP_TASKS_PER_NODE", str(size))
    node = _number(environ, "SLURM_NODEID", default=0)
    job = _number(environ, "SLURM_JOB_ID", default=0)
    address = environ.get(MASTER_ADDR) or first_host(
        environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "localhost"
    )
    port = _SLURM_PORTS[job % len(_SLURM_PORTS)]
    return _checked(
        Place(
            rank=_number(environ, "SLURM_PROCID"),
            size=size,
            local_rank=_number(environ, "SLURM_LOCALID"),
            local_size=tasks_per_node(per_node)[node],
            address=address,
            port=_number(environ, MASTER_PORT, default=port),
            node=node,
        )
    )


def tasks_per_node(words: str) -> list[int]:
    """Return the tasks of each node from Slurm's short form, such as `2(x3),1`."""
    counts: list[int] = []
    for word in words.split(","):
        number, _, times = word.strip().partition("(x")
        counts += [int(number)] * int(times.rstrip(")") or 1)
    return counts


def first_host(nodes: str) -> str:
    """Return the first host of Slurm's short form, such as `gpu[03-07,12]`."""
    head, bracket, rest = nodes.partition("[")
    if not bracket or "," in head:
        return nodes.split(",")[0]
    first = rest.partition("]")[0].split(",")[0].split("-")[0]
    return head + first + rest.partition("]")[2].split(",")[0]


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = environ.get(name)
    if value is None and default is not None:
        return default
    try:
        return int(value or "")
    except ValueError:
        raise UsageError(
            f"the environment variable {name} is {value!r}, which is not a number"
            if value
            else f"the environment variable {name} is not set, although others say that this is "
            "one of several processes of a run",
            where="environment",
            fix="Start with torchrun or srun, which set it.",
        ) from None


def _checked(place: Place) -> Place:
    if not 0 <= place.rank < place.size or not 0 <= place.local_rank < place.local_size:
        raise UsageError(
            f"the environment variables contradict each other: rank {place.rank} of {place.size} "
            f"processes, and local rank {place.local_rank} of {place.local_size} on this machine; "
            "a rank must be from 0 to the number of processes - 1",
            where="environment",
            fix="Start the command with torchrun or srun, which set these variables correctly.",
        )
    return place
