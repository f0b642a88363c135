"""Compare the ranks of a launcher: data, devices, clocks, GPU links, and how fast they exchange."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from stepladder.errors import StepladderError
from stepladder.machine.gpu_links import gpu_links
from stepladder.measuring.ranks.exchange import exchange_s
from stepladder.measuring.sweep import fit_line
from stepladder.parallel.handshake import differences_of_hosts
from stepladder.parallel.world import World
from stepladder.training.output.wording import byte_rate
from stepladder.training.setup.attempt import device_name

_SIZES: Final = (4096, 16 * 1024**2)  # bytes
_SHOWN_DIGITS: Final = 12  # of a fingerprint


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What was found on the ranks together.

    Attributes:
        num, num_hosts: ranks, and machines.
        latency_s, bytes_per_s: an all-reduce of n bytes takes latency_s + n / bytes_per_s.
        links: of each host that has GPUs, how they are connected.
        problems: because of which a training would stop.
        warnings: because of which it would be slower, or harder to follow.
    """

    num: int
    num_hosts: int
    latency_s: float
    bytes_per_s: float
    links: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def compare_ranks(
    world: World, device: torch.device, read: Callable[[], Mapping[str, str]]
) -> Compared:
    """Compare all ranks; each of them calls this.

    Args:
        read: opens the data on this rank, and returns the fingerprint of each split.
    """
    mine: Mapping[str, str] = {}
    why: str | None = None
    try:
        mine = read()
    except StepladderError as error:
        at = f" ({error.where})" if error.where else ""
        why = f"{error.what}{at}"
    except Exception as error:  # of a Task
        why = f"{type(error).__name__}: {error}"
    found = world.gather((socket.gethostname(), dict(mine), why, tuple(gpu_links())))
    seconds = [max(world.gather(exchange_s(world, device, size))) for size in _SIZES]
    fixed_s, byte_s = fit_line(_SIZES, seconds)
    return Compared(
        num=world.size,
        num_hosts=world.num_hosts,
        latency_s=fixed_s,
        bytes_per_s=1 / max(byte_s, 1e-15),
        links={host: links for host, _, _, links in found if links},
        problems=tuple(_problems([(host, data, error) for host, data, error, _ in found])),
        warnings=tuple(differences_of_hosts(world, device=device_name(device))),
    )


def compared_lines(found: Compared) -> list[str]:
    """Return the result as lines: what was measured, then warnings and problems."""
    hosts = f"{found.num_hosts} host{'s' if found.num_hosts > 1 else ''}"
    lines = [
        f"{found.num} ranks on {hosts}: an all-reduce takes {1e3 * found.latency_s:.2g} ms, and "
        f"adds up {byte_rate(found.bytes_per_s)}"
    ]
    lines += [f"GPU links of {host}: {', '.join(links)}" for host, links in found.links.items()]
    lines += [f"warning: {sentence}" for sentence in found.warnings]
    return [*lines, *(f"problem: {sentence}" for sentence in found.problems)]


def _problems(ranks: list[tuple[str, dict[str, str], str | None]]) -> list[str]:
    """Return a sentence for each rank that cannot read the data, or reads other data.

    Args:
        ranks: host, fingerprints by split, and why the data cannot be read, of each rank.
    """
    problems = [
        f"rank {rank} on {host} cannot read the data: {why}"
        for rank, (host, _, why) in enumerate(ranks)
        if why is not None
    ]
    able = [(rank, host, data) for rank, (host, data, why) in enumerate(ranks) if why is None]
    for rank, host, data in able[1:]:
        first, first_host, expected = able[0]
        for split in dict.fromkeys([*expected, *data]):
            ours, theirs = (one.get(split, "none")[:_SHOWN_DIGITS] for one in (expected, data))
            if ours != theirs:
                problems.append(
                    f"data {split}: {ours} on rank {first} ({first_host}), {theirs} on rank {rank} "
                    f"({host})"
                )
    return problems
