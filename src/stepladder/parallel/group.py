"""Open and close the process groups of a world."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from stepladder.errors import ResourceError
from stepladder.machine.activity import doing
from stepladder.parallel.place import Place
from stepladder.parallel.world import ALONE, World

_KEY: Final = "stepladder/store"  # of the address of rank 0's store, in the agent's
_MARK: Final = "stepladder/is_here"
_POLL_S: Final = 0.05
_PAUSE_S: Final = 0.1  # between two looks for the other ranks
_MAX_SHOWN: Final = 8
_IN_USE: Final = "EADDRINUSE"
_stores: dict[Place, TCPStore] = {}
_openings = itertools.count()
_FOREVER: Final = timedelta(days=7)  # a rank that does not answer is found by its heartbeat
_TRY_S: Final = 2.0  # for one connection: the address may be that of an attempt that has ended


@contextmanager
def opened_world(place: Place | None, *, is_cuda: bool, start_s: float) -> Iterator[World]:
    """Open the process groups of this process, and close them at the end.

    If a launcher such as Ray has opened a group already, that one is used, and stays open.

    Args:
        place: None: this process is alone.
        is_cuda: gradients are on GPUs.
        start_s: seconds to wait for the other processes.

    Raises:
        ResourceError: if not all processes come within `start_s`.
    """
    if place is None or place.size == 1:
        yield ALONE
        return
    is_own = not dist.is_initialized()
    if is_own:
        try:
            with doing("waiting for the other processes"):
                store = PrefixStore(f"group-{next(_openings)}", _store_of(place, start_s))
                _wait_for_all(store, place, start_s)
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
                    store=store,
                    rank=place.rank,
                    world_size=place.size,
                    timeout=_FOREVER,
                    device_id=torch.device("cuda", place.local_rank) if is_cuda else None,
                )
        except (RuntimeError, ValueError, OSError) as error:
            raise _not_met(place, start_s, error) from error
    try:
        steps = dist.new_group(backend="gloo", timeout=_FOREVER)
        yield World.at(place, steps)
    finally:
        if is_own and dist.is_initialized():
            dist.destroy_process_group()


def _wait_for_all(store: PrefixStore, place: Place, start_s: float) -> None:
    """Wait until all ranks have reached the store.

    Raises:
        ResourceError: if some do not come in time; with their numbers.
    """
    keys = [f"{_MARK}/{rank}" for rank in range(place.size)]
    store.set(keys[place.rank], "1")
    until = time.monotonic() + start_s
    while not store.check(keys):
        if time.monotonic() < until:
            time.sleep(_PAUSE_S)  # not in torch, where a signal would not be handled
            continue
        missing = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
        shown = ", ".join(missing[:_MAX_SHOWN]) + (", …" if missing[_MAX_SHOWN:] else "")
        raise ResourceError(
            f"rank{'s' if missing[1:] else ''} {shown} did not come within {start_s:g} s, but a "
            f"run of {place.size} processes needs all of them",
            where=f"{place.address}:{place.port}",
            why="Its process was not started, ended at once, or cannot reach this address.",
            fix="Start it with the same MASTER_ADDR and MASTER_PORT, or wait longer: --run.meet-s "
            f"{2 * start_s:g}",
        )


def store_address(place: Place) -> tuple[str, int] | None:
    """Return host and port of the store of an open world; None if a launcher opened the group."""
    store = _stores.get(place)
    return None if store is None else (store.host, store.port)


def _store_of(place: Place, start_s: float) -> TCPStore:
    """Return the store of this process, which lives as long as the process.

    A program may train several times: every group of its has a prefix of its own.
    """
    if place not in _stores:
        _stores[place] = _store(place, start_s)
    return _stores[place]


def _store(place: Place, start_s: float) -> TCPStore:
    """Return a store for this attempt.

    A launcher's own store keeps the addresses of an attempt that has died, and connecting to them
    hangs or fails at random. So rank 0 opens a new store, and publishes its address in the other
    one. When a new rank 0 starts, all processes of the attempt before have ended, so that an old
    address refuses connections.
    """
    timeout = timedelta(seconds=start_s)
    is_server = place.rank == 0 and not place.has_agent
    _wait_for_address(place, start_s, is_server=is_server)
    if is_server:
        return TCPStore(
            place.address,
            place.port,
            place.size,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=place.listen_fd,
        )
    if not place.has_agent:
        return _connected(place.address, place.port, start_s)
    agent = TCPStore(place.address, place.port, is_master=False, timeout=timeout)
    if place.rank == 0:
        host = _own_address(place)
        own = TCPStore(host, 0, is_master=True, timeout=timeout, wait_for_workers=False)
        own.set(_MARK, "1")
        agent.set(_KEY, f"{host} {own.port}")
        return own
    until = time.monotonic() + start_s
    while time.monotonic() < until:
        if agent.check([_KEY]):
            host, port = agent.get(_KEY).decode().split()
            store = _reached(host, int(port), timeout)
            if store is not None:
                return store
        time.sleep(_POLL_S)
    raise RuntimeError("rank 0 does not answer")


def _wait_for_address(place: Place, start_s: float, *, is_server: bool) -> None:
    """Wait until something listens at the address, or, for the server, until the name is known.

    torch would wait, too, but answers with fifty lines about its own code.

    Raises:
        OSError: the last one, if this does not happen in time.
    """
    until = time.monotonic() + start_s
    while True:
        try:
            if is_server:
                socket.getaddrinfo(place.address, place.port)
            else:
                socket.create_connection((place.address, place.port), timeout=_TRY_S).close()
        except OSError:
            if time.monotonic() > until:
                raise
        else:
            return
        time.sleep(_PAUSE_S)


def _connected(host: str, port: int, start_s: float) -> TCPStore:
    """Connect to a store.

    Raises:
        RuntimeError: if what listens there is no store: torch would wait for its answer for ever.
    """
    made: list[TCPStore] = []
    errors: list[RuntimeError] = []

    def connect() -> None:
        try:
            made.append(TCPStore(host, port, is_master=False, timeout=timedelta(seconds=start_s)))
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=connect, name="stepladder-connect", daemon=True)
    thread.start()
    thread.join(start_s + _TRY_S)
    if not made:
        raise errors[0] if errors else RuntimeError(f"no store answers at {host}:{port}")
    return made[0]


def _reached(host: str, port: int, timeout: timedelta) -> TCPStore | None:
    """Connect to the store of rank 0; None if nothing, or something else, listens there."""
    try:
        with socket.create_connection((host, port), timeout=_TRY_S):
            pass
        store = _connected(host, port, _TRY_S)
        store.get(_MARK)
    except (RuntimeError, OSError):
        return None
    store.set_timeout(timeout)
    return store


def _own_address(place: Place) -> str:
    """Return the address of this host by which the others reach it.

    Rank 0 need not be on the host of the launcher's store.
    """
    if place.local_size == place.size:
        return "127.0.0.1"
    with socket.create_connection((place.address, place.port), timeout=_TRY_S) as probe:
        host: str = probe.getsockname()[0]
    return host


def _not_met(place: Place, start_s: float, error: Exception) -> ResourceError:
    where = f"{place.address}:{place.port}"
    if _IN_USE in str(error):
        return ResourceError(
            f"the processes of the run cannot connect, because another program uses the port "
            f"{place.port} of rank 0",
            where=where,
            fix="Choose another port, with torchrun --master-port PORT or with MASTER_PORT.",
        )
    if isinstance(error, socket.gaierror):
        what = f"the host name {place.address} of rank 0 cannot be resolved on the host of rank "
        what += str(place.rank)
    elif place.rank and place not in _stores:
        what = f"rank 0 did not come within {start_s:g} s, or rank {place.rank} cannot reach it"
    else:
        what = (
            f"the process of rank {place.rank} could not connect to all {place.size} processes of "
            f"the run within {start_s:g} s"
        )
    return ResourceError(
        what,
        where=where,
        why="Some process did not start, the address or port of rank 0 is wrong, another program "
        "uses this port, or a firewall blocks it.",
        fix="Check that all processes have started and have the same MASTER_ADDR and "
        "MASTER_PORT; on this host, type: stepladder doctor",
    )
