"""Open and close the process groups of a world."""

from __future__ import annotations

import ipaddress
import itertools
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from stepladder.errors import ResourceError
from stepladder.machine.activity import doing
from stepladder.machine.gpu import gpu_of_rank
from stepladder.machine.network import network_facts, network_problems, source_address
from stepladder.parallel.network import use_network
from stepladder.parallel.place import Place
from stepladder.parallel.world import ALONE, World

_KEY: Final = "stepladder/store"  # of the address of rank 0's store, in the agent's
_MARK: Final = "stepladder/is_here"
_HELLO: Final = "stepladder/hello/{rank}"  # a word that rank 0 repeats
_WELCOME: Final = "stepladder/welcome/{word}"
_KIND: Final = "kind/{rank}"
_KIND_READ: Final = "kind-read/{rank}"
_PEER: Final = "stepladder/peer"
_POLL_S: Final = 0.05
_PAUSE_S: Final = 0.1  # between two looks for the other ranks
_IN_USE: Final = "EADDRINUSE"
_SAME_GPU: Final = "Duplicate GPU detected"  # by NCCL
_stores: dict[Place, TCPStore] = {}
_openings = itertools.count()
_FOREVER: Final = timedelta(days=7)  # a rank that does not answer is found by its heartbeat
_TRY_S: Final = 2.0  # for one connection: the address may be that of an attempt that has ended
_NCCL_S: Final = 600.0  # least time-out of NCCL: PyTorch's default
_MAX_SHOWN: Final = 8


class _Missing(RuntimeError):  # noqa: N818  (it is about the ranks)
    """Some ranks have not come.

    Attributes:
        ranks: those that rank 0 has not seen.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"ranks {ranks} have not come")
        self.ranks = tuple(ranks)


@contextmanager
def opened_world(
    place: Place | None, *, is_cuda: bool, start_s: float, stall_s: float = 0.0
) -> Iterator[World]:
    """Open the process groups of this process, and close them at the end.

    If a launcher such as Ray has opened a group already, that one is used, and stays open.

    Args:
        place: None: this process is alone.
        is_cuda: gradients are on GPUs.
        start_s: seconds to wait for the other processes.
        stall_s: seconds after which a rank that does not answer is reported. A rank that hangs in
            NCCL still answers, so an exchange on GPUs ends after five times as long, or 10 minutes.

    Raises:
        ResourceError: if not all processes come within `start_s`.
    """
    if place is None or place.size == 1:
        yield ALONE
        return
    is_own, network = not dist.is_initialized(), None
    if is_own:
        try:
            with doing("waiting for the other processes"):
                own = _store_of(place, start_s)
                network = use_network(place, peer=_peer(own, place), is_cuda=is_cuda)
                store = PrefixStore(f"group-{next(_openings)}", own)
                require_same_kind(store, place, is_cuda=is_cuda)
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
                    store=store,
                    rank=place.rank,
                    world_size=place.size,
                    timeout=_FOREVER,
                    device_id=gpu_of_rank(place.local_rank) if is_cuda else None,
                )
        except (RuntimeError, ValueError, OSError) as error:
            raise _not_met(place, start_s, error) from error
        if is_cuda:
            nccl = dist.group.WORLD._get_backend(torch.device("cuda"))  # type: ignore[union-attr]
            nccl._set_default_timeout(timedelta(seconds=max(_NCCL_S, 5 * stall_s)))
    try:
        steps = dist.new_group(backend="gloo", timeout=_FOREVER)
        yield World.at(place, steps, network=network)
    finally:
        if is_own and dist.is_initialized():
            dist.destroy_process_group()


def require_same_kind(store: Store, place: Place, *, is_cuda: bool) -> None:
    """Check that all ranks have a GPU, or none: connecting those that have one would never end.

    Raises:
        ResourceError: if only some of them have one.
    """
    own = f"{'a GPU' if is_cuda else 'no GPU'} {socket.gethostname()}"
    store.set(_KIND.format(rank=place.rank), own)
    found = store.multi_get([_KIND.format(rank=rank) for rank in range(place.size)])
    store.set(_KIND_READ.format(rank=place.rank), "")
    if place.rank == 0:  # which has the store, and may end only after the others have read
        store.wait([_KIND_READ.format(rank=rank) for rank in range(place.size)])
    kinds = [kind.decode().rpartition(" ") for kind in found]
    first, _, first_host = kinds[0]
    other = next((rank for rank, (kind, _, _) in enumerate(kinds) if kind != first), None)
    if other is None:
        return
    kind, _, host = kinds[other]
    raise ResourceError(
        f"rank 0 ({first_host}) has {first}, but rank {other} ({host}) has {kind}",
        why="Gradients are added up either on GPUs or in the memory of the hosts.",
        fix="Use only hosts where `stepladder doctor` shows a GPU.\n"
        'Or hide the GPUs from all processes: export CUDA_VISIBLE_DEVICES=""',
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
    """Return a store for this attempt, in which rank 0 has seen all others.

    A launcher's own store keeps the addresses of an attempt that has died, and connecting to them
    hangs or fails at random. So rank 0 opens a new store, and publishes its address in the other
    one. The address that another rank reads there may be an old one, and on a machine whose
    launcher was killed, an old rank 0 may still be ending. So a rank uses a store only if rank 0
    has answered in it: it answers only while it waits for others.
    """
    timeout, until = timedelta(seconds=start_s), time.monotonic() + start_s
    is_server = place.rank == 0 and not place.has_agent
    _wait_for_address(place, start_s, is_server=is_server)
    if is_server:
        store = TCPStore(
            place.address,
            place.port,
            place.size,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=place.listen_fd,
        )
        _welcome_all(store, place, until)
        return store
    if not place.has_agent:
        store = _connected(place.address, place.port, start_s)
        if not _is_welcome(store, place, until):
            raise RuntimeError("rank 0 does not answer")
        return store
    agent = TCPStore(place.address, place.port, is_master=False, timeout=timeout)
    if place.rank == 0:
        host = _own_address(place)
        own = TCPStore(host, 0, is_master=True, timeout=timeout, wait_for_workers=False)
        own.set(_MARK, "1")
        agent.set(_KEY, f"{host} {own.port}")
        _welcome_all(own, place, until)
        return own
    while time.monotonic() < until:
        if agent.check([_KEY]):
            host, port = agent.get(_KEY).decode().split()
            found = _reached(host, int(port), timeout)
            if found is not None and _is_welcome(found, place, time.monotonic() + _TRY_S):
                return found
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


def _welcome_all(store: TCPStore, place: Place, until: float) -> None:
    """Wait on rank 0 until all others have said hello, and answer each.

    A rank whose answer took too long says hello again, with another word.
    """
    words: dict[int, str] = {}
    peers = []
    while True:
        for rank in range(1, place.size):
            key = _HELLO.format(rank=rank)
            if not store.check([key]):
                continue
            word, _, address = store.get(key).decode().partition(" ")
            if words.get(rank) != word:
                words[rank] = word
                peers += [address] if address and not _is_loopback(address) else []
                store.set(_WELCOME.format(word=word), "1")
        missing = [rank for rank in range(1, place.size) if rank not in words]
        if not missing:
            store.set(_PEER, peers[0] if peers else "")
            return
        if time.monotonic() > until:
            raise _Missing(missing)
        time.sleep(_POLL_S)


def _is_welcome(store: TCPStore, place: Place, until: float) -> bool:
    """Greet rank 0, and return whether it has answered in time."""
    word = uuid.uuid4().hex
    address = source_address(place.address, place.port) or ""
    try:
        store.set(_HELLO.format(rank=place.rank), f"{word} {address}")
        while not store.check([_WELCOME.format(word=word)]):
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_S)
    except RuntimeError:  # it has ended meanwhile
        return False
    return True


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
    """Return the name or address of this host by which the others reach it.

    Rank 0 need not be on the host of the launcher's store. If it is, the others reach it as they
    reach the launcher, also if that name leads to the loopback here.
    """
    if place.local_size == place.size:
        return "127.0.0.1"
    with socket.create_connection((place.address, place.port), timeout=_TRY_S) as probe:
        host: str = probe.getsockname()[0]
    return place.address if _is_loopback(host) else host


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _peer(store: TCPStore, place: Place) -> str | None:
    """Return the address of a rank on another host than rank 0; None: all are on its host."""
    if place.local_size == place.size:
        return None
    return store.get(_PEER).decode() or None


def _not_met(place: Place, start_s: float, error: Exception) -> ResourceError:
    where = f"{place.address}:{place.port}"
    if _IN_USE in str(error):
        return ResourceError(
            f"the processes of the run cannot connect, because another program uses the port "
            f"{place.port} of rank 0",
            where=where,
            fix="Choose another port, with torchrun --master-port PORT or with MASTER_PORT.",
        )
    if _SAME_GPU in str(error):
        return ResourceError(
            "two processes of the run would use the same GPU",
            where="device.count",
            why=f"The process of rank {place.rank} is number {place.local_rank} of "
            f"{place.local_size} on its host and sees {torch.cuda.device_count()} GPUs.",
            fix="Start one process for each GPU of a host, or train on CPUs: --device.kind cpu",
        )
    if isinstance(error, _Missing):
        num = len(error.ranks)
        names = ", ".join(str(rank) for rank in error.ranks[:_MAX_SHOWN])
        more = f" and {num - _MAX_SHOWN} more" if num > _MAX_SHOWN else ""
        return ResourceError(
            f"rank{'' if num == 1 else 's'} {names}{more} did not come within {start_s:g} s, but "
            f"a run of {place.size} processes needs all of them",
            where=where,
            why="They did not start, use another address or port, or a firewall blocks it.",
            fix="Start all processes with the same MASTER_ADDR and MASTER_PORT; to wait longer, "
            "type --run.meet-s SECONDS",
        )
    problems = network_problems(network_facts(), {}, num_gpus=0)
    for problem in problems if not isinstance(error, socket.gaierror) else []:
        what, _, fix = problem.partition(". Type: ")
        return ResourceError(
            f"the process of rank {place.rank} could not connect to the others",
            where=where,
            why=what + ".",
            fix=f"Type: {fix}",
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


def store_of_launcher(place: Place, start_s: float) -> TCPStore:
    """Return the store of rank 0, for a process that exchanges words but no tensors.

    Raises:
        ResourceError: if rank 0 does not come within `start_s` seconds.
    """
    try:
        return _store_of(place, start_s)
    except (RuntimeError, ValueError) as error:
        raise _not_met(place, start_s, error) from error
