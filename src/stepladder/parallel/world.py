"""The ranks that train together, and the small values that they exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from stepladder.machine.activity import waiting_for_others
from stepladder.parallel.place import Place

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import Tensor, nn

    from stepladder.parallel.network import Network

T = TypeVar("T")
Pulse = Callable[[], tuple[int, str]]
"""Returns the step, and the phase that is open."""
_BROADCAST_BYTES: Final = 32 * 1024**2  # of tensors that are sent in one message


class Watcher(Protocol):
    """Finds a rank that hangs."""

    def met(self) -> None:
        """Note that the handshake of this rank is over."""

    def watch(self, pulse: Pulse) -> None:
        """Report what this rank does from now on."""


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among those that train together.

    The methods are collectives: every rank has to call them in the same order. A world of one
    process needs no process group, and the methods return at once.

    Attributes:
        rank, size: of all processes.
        local_rank, local_size: of those on this host.
        steps: the process group for small values within a step, so that they never wait for
            gradients; None: the world is one process.
        hosts: number of the host of each rank, from 0 in the order of ranks; empty: one host.
        host_names: name of each host.
        watcher: finds a rank that hangs; None: nobody watches.
        network: what this process uses to reach the others; None: it is not known.
        is_restart: the launcher has started the processes of this run before.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    steps: dist.ProcessGroup | None = None
    hosts: tuple[int, ...] = ()
    host_names: tuple[str, ...] = ()
    watcher: Watcher | None = None
    network: Network | None = None
    is_restart: bool = False

    @classmethod
    def at(cls, place: Place, steps: dist.ProcessGroup, *, network: Network | None = None) -> World:
        """Return the world of a process whose groups are open."""
        return cls(
            rank=place.rank,
            size=place.size,
            local_rank=place.local_rank,
            local_size=place.local_size,
            steps=steps,
            network=network,
        )

    @property
    def is_alone(self) -> bool:
        """Whether this is the only process."""
        return self.size == 1

    @property
    def is_main(self) -> bool:
        """Whether this process prints, and writes the run folder."""
        return self.rank == 0

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return max(self.hosts, default=0) + 1

    @property
    def host(self) -> int:
        """Number of this host."""
        return self.hosts[self.rank] if self.hosts else 0

    @property
    def even_hosts(self) -> int:
        """Number of hosts if all have as many ranks, which follow one another; else 1."""
        num = self.num_hosts
        if self.size % num:
            return 1
        even = tuple(rank // (self.size // num) for rank in range(self.size))
        return num if num > 1 and self.hosts == even else 1

    def met(self) -> None:
        """End the handshake of this rank: from now on, only work with a name is limited."""
        if self.watcher is not None:
            self.watcher.met()

    def from_main(self, value: T | None = None) -> T:
        """Return the value that rank 0 passes, on every rank; it is pickled.

        Args:
            value: on rank 0, the value; ignored elsewhere.
        """
        if self.is_alone:
            return value  # type: ignore[return-value]
        import torch.distributed as dist

        box: list[Any] = [value if self.is_main else None]
        with waiting_for_others():
            dist.broadcast_object_list(box, src=0)
        result: T = box[0]
        return result

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order, on every rank; they are pickled."""
        if self.is_alone:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        with waiting_for_others():
            dist.all_gather_object(values, value)
        return values

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over all ranks, in place."""
        if not self.is_alone:
            import torch.distributed as dist

            with waiting_for_others():
                dist.all_reduce(tensor)
        return tensor

    def barrier(self) -> None:
        """Wait until every rank is here, however long that takes."""
        if not self.is_alone:
            import torch.distributed as dist

            with waiting_for_others():
                dist.barrier(group=self.steps)  # not NCCL, which has a time-out

    def copy_from_main(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite tensors with those of rank 0; names, shapes and types are equal on all ranks.

        Tensors are sent in groups of one type, as thousands of small messages would take seconds.
        """
        if self.is_alone:
            return
        import torch
        import torch.distributed as dist

        with torch.no_grad(), waiting_for_others():
            for group in _groups(tensors):
                flat = torch.cat([tensor.detach().reshape(-1) for tensor in group])
                dist.broadcast(flat, src=0)
                if self.is_main:
                    continue
                parts = torch.split(flat, [tensor.numel() for tensor in group])
                for tensor, part in zip(group, parts, strict=True):
                    tensor.copy_(part.view(tensor.shape))

    def share_buffers(self, model: nn.Module, frozen: set[str]) -> None:
        """Use the buffers of rank 0 everywhere, such as the running statistics of BatchNorm.

        Args:
            frozen: names of buffers that cannot differ.
        """
        if not self.is_alone:
            own = {name: buf for name, buf in model.named_buffers() if name not in frozen}
            self.copy_from_main(own)


def _groups(tensors: Mapping[str, Tensor]) -> list[list[Tensor]]:
    """Group tensors by type, each group up to the bytes of one message."""
    groups: list[list[Tensor]] = []
    by_type: dict[Any, list[Tensor]] = {}
    for name in sorted(tensors):
        by_type.setdefault((tensors[name].dtype, tensors[name].device), []).append(tensors[name])
    for some in by_type.values():
        num_bytes = _BROADCAST_BYTES
        for tensor in some:
            if num_bytes >= _BROADCAST_BYTES:
                groups.append([])
                num_bytes = 0
            groups[-1].append(tensor)
            num_bytes += tensor.nbytes
    return groups


ALONE: Final = World()
