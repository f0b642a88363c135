"""Join the other processes of a run: logs, process group, cores, and what happens if one fails."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import psutil

from stepladder.machine.activity import be_silent
from stepladder.parallel.failures import (
    LAUNCHED,
    LOGS,
    LOST_CODE,
    RESTARTS,
    Failure,
    attempt_number,
    clear_failures,
    forget_earlier,
    is_loss_of_rank,
    log_file,
    lost,
    record_failure,
    record_loss,
)
from stepladder.parallel.flight_recorder import dump_collectives, record_collectives
from stepladder.parallel.place import Place
from stepladder.parallel.world import ALONE, World
from stepladder.records import read_json, write_json

if TYPE_CHECKING:
    from stepladder.parallel.heartbeat import Heart

TORCHRUN: Final = "TORCHELASTIC_RUN_ID"  # set by torchrun
_AGENTS: Final = "agents.json"
_PARENT_POLL_S: Final = 0.5
_LAST_S: Final = 4.0  # to save the state once the launcher has died


@contextmanager
def joined(
    place: Place | None, folder: Path, *, is_cuda: bool, meet_s: float, stall_s: float
) -> Iterator[World]:
    """Join the other processes for a block, and report the first failure of any of them.

    Other ranks than 0 write what they print into a log in the run folder. The cores of a host are
    divided among its processes.

    Args:
        place: None: this process is alone.
        folder: of the run.
        meet_s: seconds to wait for the other processes, and in the handshake for a rank that makes
            no progress.
        stall_s: seconds to wait for a rank that does not answer, or hangs in its own work.

    Raises:
        ResourceError: if the others do not come, or one of them ends.
    """
    if place is None:
        yield ALONE
        return
    if place.size == 1:
        if TORCHRUN in os.environ:  # as one of several that have not come yet, or have left
            _end_with_launcher()
        yield replace(ALONE, is_restart=_is_restart(ALONE, folder))
        return
    from stepladder.parallel.group import opened_world, store_address

    attempt = attempt_number()
    if place.rank:
        _log_to(folder, place.rank)
    forget_earlier(folder, rank=place.rank, size=place.size, attempt=attempt)
    _end_with_launcher()
    record_collectives(folder)
    hosts: list[str] = []
    try:
        with (
            _grace(),
            opened_world(place, is_cuda=is_cuda, start_s=meet_s, stall_s=stall_s) as world,
        ):
            hosts = world.gather(socket.gethostname())
            world = take_place(world, is_cuda=is_cuda, node=place.node)
            address = store_address(place)
            with _beating(world, address, folder, meet_s=meet_s, stall_s=stall_s) as heart:
                attempt = _agreed(world, folder, attempt)
                if heart is not None:
                    heart.attempt = attempt
                yield replace(world, watcher=heart, is_restart=_is_restart(world, folder))
                world.barrier()  # rank 0 has the store: it stays until all others are done
    except BaseException as error:
        if is_loss_of_rank(error):
            dump_collectives(folder, rank=place.rank, attempt=attempt)
            record_loss(folder, rank=place.rank, attempt=attempt, hosts=hosts)
            if LAUNCHED in os.environ:
                raise SystemExit(LOST_CODE) from error
            raise lost(folder, rank=place.rank, attempt=attempt) from error
        record_failure(folder, Failure.of(error, rank=place.rank, attempt=attempt))
        raise


def _agreed(world: World, folder: Path, attempt: int) -> int:
    """Return the number of rank 0's attempt: torchrun counts on each machine for itself.

    A start after a machine has joined is not counted at all, so records of failures with this
    number may be those of an earlier attempt.
    """
    if world.is_main:
        clear_failures(folder, attempt=attempt)
    return world.from_main(attempt)


def _is_restart(world: World, folder: Path) -> bool:
    """Return on rank 0 whether one of torchrun's agents has started this run before.

    torchrun counts no start after a machine has joined. So the agents are written down, each with
    its host and start, in a file that stays if the run is overwritten.
    """
    if TORCHRUN not in os.environ or RESTARTS in os.environ:  # a new torchrun, on Spark
        return attempt_number() > 0
    agent = psutil.Process(os.getppid())
    agents = set(world.gather(f"{host_name()} {agent.pid} {agent.create_time():.2f}"))
    if not world.is_main:
        return False
    file = folder / LOGS / _AGENTS
    known = set(read_json(file)) if file.exists() else set()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, sorted(agents | (known if known & agents else set())))
    return bool(known & agents)


@contextmanager
def _grace() -> Iterator[None]:
    """Let a SIGTERM end this process some seconds later, so that it can report what happened.

    A launcher sends it to all ranks as soon as one of them has failed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        timer = threading.Timer(_LAST_S, os._exit, [128 + signal.SIGTERM])
        timer.daemon = True
        timer.start()

    before = signal.signal(signal.SIGTERM, end)
    yield
    signal.signal(signal.SIGTERM, before)  # not after an error, which is still to be reported


@contextmanager
def _beating(
    world: World,
    address: tuple[str, int] | None,
    folder: Path,
    *,
    meet_s: float,
    stall_s: float,
) -> Iterator[Heart | None]:
    """Watch during a block that all ranks answer and make progress.

    Args:
        address: of the store; None: nobody watches.
    """
    if address is None:
        yield None
        return
    from stepladder.parallel.heartbeat import Heart

    heart = Heart(
        world=world,
        address=address,
        meet_s=meet_s,
        stall_s=stall_s,
        folder=folder,
        attempt=attempt_number(),
    )
    heart.start()
    try:
        yield heart
    finally:
        heart.stop()


def _log_to(folder: Path, rank: int) -> None:
    """Write what this process and its libraries print to its log."""
    path = log_file(folder, rank)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        sys.stderr.write(f"rank {rank} has no log: {error}\n")
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(file.fileno(), stream.fileno())
    be_silent(is_silent=False)


def _end_with_launcher() -> None:
    """End this process soon after the one that started it has died."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os.kill(os.getpid(), signal.SIGTERM)  # a run saves its state at the next step
        time.sleep(_LAST_S)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="stepladder-launcher", daemon=True).start()


def take_place(world: World, *, is_cuda: bool, node: int = 0) -> World:
    """Return the world with the true place on this host, and take this process's cores.

    Spark gives every process the local rank 0, also on one host.

    Args:
        node: number of this host, by the launcher: two launchers on one machine count as two hosts.
    """
    places = world.gather((host_name(), node, socket.gethostname()))
    numbers = {place: idx for idx, place in enumerate(dict.fromkeys(places))}
    world = replace(
        world,
        hosts=tuple(numbers[place] for place in places),
        host_names=tuple(name for _, _, name in numbers),
    )
    hosts = [name for name, _, _ in places]
    mine = [rank for rank, name in enumerate(hosts) if name == hosts[world.rank]]
    if not is_cuda:
        world = replace(world, local_rank=mine.index(world.rank), local_size=len(mine))
    _take_cores(world)
    return world


def host_name() -> str:
    """Return what distinguishes this host, also from others in network namespaces."""
    try:
        network = str(Path("/proc/self/ns/net").readlink())
    except OSError:
        network = ""
    return f"{socket.gethostname()} {network}"


def _take_cores(world: World) -> None:
    """Use a part of the host's cores that no other rank of this host uses, if there are enough."""
    if not hasattr(os, "sched_getaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    own = len(cores) // world.local_size
    if own >= 1 and world.local_size > 1:
        first = world.local_rank * own
        os.sched_setaffinity(0, cores[first : first + own])
