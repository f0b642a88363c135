"""The processes of a script written for Horovod: who they are, and the groups they reduce in."""

from __future__ import annotations

import atexit
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from stepladder.errors import UsageError
from stepladder.parallel.group import opened_world, store_address
from stepladder.parallel.join import host_name
from stepladder.parallel.place import Place, place_of

MEET_S: Final = 300.0  # to wait for the other processes
_FOREVER: Final = timedelta(days=7)
_JOIN_POLL_S: Final = 0.1
_END_S: Final = 5.0


class HorovodInternalError(RuntimeError):
    """A collective failed, usually because another process has ended."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """A reduction, so that a rank that has joined can take part in it with neutral values."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    op: str


@dataclass(kw_only=True)
class Channel:
    """A process group in which reductions run in one order on all ranks.

    Attributes:
        group: None: the default group.
        next_idx: position of the next reduction.
        pending: reductions that have begun and are not known to be complete.
        is_told: each reduction is written to the store, because a rank has joined.
    """

    key: int
    group: dist.ProcessGroup | None
    store: Any = None
    prefix: str = ""
    next_idx: int = 0
    pending: dict[int, Described] = field(default_factory=dict)
    is_told: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, tensor: torch.Tensor, op: str) -> tuple[int, Any]:
        """Begin to reduce a tensor in place; returns the position, and torch's work."""
        described = Described(
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=tensor.device.type,
            op=op,
        )
        with self.lock:
            idx = self.next_idx
            self.next_idx += 1
            self.pending[idx] = described
            if self.is_told:
                self._tell(idx)
        try:
            return idx, dist.all_reduce(
                tensor, op=getattr(dist.ReduceOp, op), group=self.group, async_op=True
            )
        except RuntimeError as error:
            raise HorovodInternalError(str(error)) from error

    def complete(self, idx: int) -> None:
        """Forget a reduction, and those before it."""
        with self.lock:
            for done in [other for other in self.pending if other <= idx]:
                del self.pending[done]

    def tell(self) -> None:
        """Write the pending reductions to the store, and from now on each one that begins."""
        with self.lock:
            self.is_told = True
            for idx in self.pending:
                self._tell(idx)

    def key_of(self, idx: int) -> str:
        """Return the key of a reduction in the store."""
        return f"{self.prefix}/{self.key}/{idx}"

    def _tell(self, idx: int) -> None:
        one = self.pending[idx]
        words = [one.dtype, one.device, one.op, *map(str, one.shape)]
        self.store.set(self.key_of(idx), " ".join(words))


@dataclass(kw_only=True)
class Session:
    """This process among the others, from `init` to `shutdown`.

    Attributes:
        num_exchanges: collectives other than reductions since all ranks joined.
        is_broken: one of them was refused after it had begun.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    place: Place | None = None
    opened: ExitStack = field(default_factory=ExitStack)
    channels: list[Channel] = field(default_factory=list)
    joins: int = 0
    num_exchanges: int = 0
    is_broken: bool = False
    prefix: str = ""
    store: Any = None
    watcher: threading.Thread | None = None
    is_closing: threading.Event = field(default_factory=threading.Event)

    def add_channel(self) -> Channel:
        """Open one more channel; all ranks do it in the same order."""
        group = dist.new_group(timeout=_FOREVER) if self.channels else None
        channel = Channel(
            key=len(self.channels), group=group, store=self.store, prefix=f"{self.prefix}/reduced"
        )
        self.channels.append(channel)
        return channel


class _State:
    session: Session | None = None
    num_sessions = 0
    num_channels = 1  # of the reductions a script calls, and one for each optimizer


def init(*_args: Any, **_kwargs: Any) -> None:
    """Join the other processes; under no launcher, this process is alone (size 1).

    Launchers are torchrun, Slurm's `srun`, Spark, Ray, and `mpirun` or `horovodrun`. Horovod's
    arguments are accepted, and have no effect.

    Raises:
        ResourceError: if the others do not come.
        UsageError: if the launcher's variables are incomplete.
    """
    if _State.session is not None:
        return
    place = place_of()
    session = Session(place=place)
    if place is not None and place.size > 1:
        is_cuda = torch.cuda.is_available() and torch.cuda.device_count() >= place.local_size
        session.opened.enter_context(opened_world(place, is_cuda=is_cuda, start_s=MEET_S))
        session.rank, session.size = place.rank, place.size
        _find_hosts(session)
        session.prefix = f"horovod-{_State.num_sessions}"
        session.store = _own_store(place)
        for _ in range(_State.num_channels):
            session.add_channel()
        watch_joins(session)
        dist.barrier()  # rank 0 has the store: it stays until all have read it
    _State.num_sessions += 1
    _State.session = session


def _find_hosts(session: Session) -> None:
    """Find the places on this host, and of this host: Spark gives every process local rank 0."""
    hosts: list[str] = [""] * session.size
    dist.all_gather_object(hosts, host_name())
    mine = [rank for rank, name in enumerate(hosts) if name == hosts[session.rank]]
    session.local_rank, session.local_size = mine.index(session.rank), len(mine)
    locals_ = [hosts[:idx].count(name) for idx, name in enumerate(hosts)]
    across = [rank for rank in range(session.size) if locals_[rank] == session.local_rank]
    session.cross_rank, session.cross_size = across.index(session.rank), len(across)


def join_key(session: Session) -> str:
    """Return the key that a rank sets in the store when it joins."""
    return f"{session.prefix}/join-{session.joins}"


def exchanges_key(session: Session) -> str:
    """Return the key of how many exchanges the rank that joined first had taken part in."""
    return f"{join_key(session)}/exchanges"


def watch_joins(session: Session) -> None:
    """Begin to watch whether a rank joins, on a connection that nothing else waits for."""
    if session.store is None or session.place is None:
        return
    store, key = _own_store(session.place), join_key(session)

    def wait() -> None:
        try:
            while not store.check([key]):
                if session.is_closing.wait(_JOIN_POLL_S):
                    return
        except RuntimeError:
            return  # rank 0 has ended
        for channel in list(session.channels):
            channel.tell()

    session.watcher = threading.Thread(target=wait, name="horovod-join", daemon=True)
    session.watcher.start()


def _own_store(place: Place) -> Any:
    """Return a connection of its own to the store of rank 0; None if a launcher has opened it."""
    address = store_address(place)
    if address is None:
        return None
    return TCPStore(*address, is_master=False, timeout=_FOREVER)


def shutdown() -> None:
    """Leave the other processes."""
    session, _State.session = _State.session, None
    if session is not None:
        session.is_closing.set()
        if session.watcher is not None:
            session.watcher.join(_END_S)  # a thread in torch at the end of Python aborts it
        session.opened.close()


atexit.register(shutdown)


def is_initialized() -> bool:
    """Return True between `init` and `shutdown`."""
    return _State.session is not None


def current() -> Session:
    """Return the session.

    Raises:
        UsageError: if `init` was not called.
    """
    if _State.session is None:
        raise UsageError("Horovod is not initialized", fix="Call hvd.init() first.")
    return _State.session


def new_channel() -> Channel | None:
    """Open a channel that is opened again after every reset; None: this process is alone."""
    session = current()
    if session.size == 1:
        return None
    _State.num_channels += 1
    return session.add_channel()


def channel_at(key: int) -> Channel:
    """Return a channel of the current session."""
    return current().channels[key]


def rank() -> int:
    """Return the rank of this process, from 0."""
    return current().rank


def size() -> int:
    """Return the number of processes."""
    return current().size


def local_rank() -> int:
    """Return the rank of this process among those of its host."""
    return current().local_rank


def local_size() -> int:
    """Return the number of processes on this host."""
    return current().local_size


def cross_rank() -> int:
    """Return the position of this host among the hosts that have this local rank."""
    return current().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have this local rank."""
    return current().cross_size


def is_homogeneous() -> bool:
    """Return True if all hosts have as many processes."""
    session = current()
    return session.local_size * session.cross_size == session.size


def mpi_built() -> bool:
    """Return False: processes exchange values by torch.distributed."""
    return False


def mpi_enabled() -> bool:
    """Return False: processes exchange values by torch.distributed."""
    return False


def mpi_threads_supported() -> bool:
    """Return False: processes exchange values by torch.distributed."""
    return False


def gloo_built() -> bool:
    """Return True if torch has gloo."""
    return dist.is_gloo_available()


def gloo_enabled() -> bool:
    """Return True if torch has gloo."""
    return dist.is_gloo_available()


def nccl_built() -> bool:
    """Return True if torch has NCCL."""
    return dist.is_nccl_available()


def cuda_built() -> bool:
    """Return True if torch is built for CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Return True if torch is built for ROCm."""
    return torch.version.hip is not None


def ddl_built() -> bool:
    """Return False: IBM's DDL is not used."""
    return False


def ccl_built() -> bool:
    """Return False: Intel's oneCCL is not used."""
    return False
