"""What adding up tensors over several ranks costs: as measured, and as fitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

COLLECTIVES_FILE: Final = "collectives.json"


@dataclass(frozen=True, kw_only=True)
class Link:
    """The cost of messages: a message of b bytes takes alpha + b beta seconds.

    A step in which a rank sends and receives at the same time has figures of its own: on a busy
    host both directions share the cores, and over a network both sides have to meet.

    Attributes:
        alpha_s, beta_s: of a message in a step in which its ranks only send or only receive, in
            seconds, and seconds per byte.
        exchange_alpha_s, exchange_beta_s: of a message in other steps; bytes are those of one
            direction.
        gamma_s: to add up one byte, in seconds.

    Source: Hockney 1994, "The Communication Challenge for MPP", Parallel Computing 20(3).
    """

    alpha_s: float
    beta_s: float
    exchange_alpha_s: float
    exchange_beta_s: float
    gamma_s: float = 0.0

    @classmethod
    def plain(cls, *, alpha_s: float, beta_s: float, gamma_s: float = 0.0) -> Link:
        """Return a full-duplex connection, on which an exchange takes as long as one message."""
        return cls(
            alpha_s=alpha_s,
            beta_s=beta_s,
            exchange_alpha_s=alpha_s,
            exchange_beta_s=beta_s,
            gamma_s=gamma_s,
        )


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What all-reduces cost between some ranks.

    Attributes:
        num_ranks: p.
        num_local: ranks on each host.
        link: cost of messages.
        native_sizes, native_s: times of torch's own all-reduce by bytes, in seconds.
    """

    num_ranks: int
    num_local: int
    link: Link
    native_sizes: tuple[int, ...]
    native_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CollectiveTime:
    """An algorithm at one size.

    Attributes:
        num_segments: parts of the tensor that follow each other; 1 if it is sent as a whole.
        times_s: of each repetition, in seconds; the slowest rank counts.
        median_s: of these.
        predicted_s: by the fit; None: torch's own all-reduce.
    """

    name: str
    num_bytes: int
    num_segments: int
    times_s: tuple[float, ...]
    median_s: float
    predicted_s: float | None

    def bus_bytes_per_s(self, num_ranks: int) -> float:
        """Return the bus bandwidth, which no algorithm can raise above that of a connection.

        Source: NVIDIA, nccl-tests, PERFORMANCE.md.
        """
        return self.num_bytes / self.median_s * 2 * (num_ranks - 1) / num_ranks


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """The result of `stepladder bench-collectives`.

    Attributes:
        backend: of torch.distributed.
        hosts: name of the host of each rank.
        times: of each algorithm at each size, by size.
        choice: the algorithms that `auto` chose, each with the largest size in bytes for which it
            did so, ascending; 0: for all that are larger. Chosen before the times were measured, by
            times of its own.
        machine: what the ranks run on.
    """

    backend: str
    hosts: tuple[str, ...]
    fit: Fit
    times: tuple[CollectiveTime, ...]
    choice: tuple[tuple[str, int], ...]
    machine: str

    @property
    def sizes(self) -> list[int]:
        """Return the measured sizes in bytes, ascending."""
        return sorted({time.num_bytes for time in self.times})

    @property
    def names(self) -> list[str]:
        """Return the measured algorithms."""
        return list(dict.fromkeys(time.name for time in self.times))

    def at(self, name: str, num_bytes: int) -> CollectiveTime | None:
        """Return the time of an algorithm at a size; None if it was not measured."""
        found = (one for one in self.times if (one.name, one.num_bytes) == (name, num_bytes))
        return next(found, None)
