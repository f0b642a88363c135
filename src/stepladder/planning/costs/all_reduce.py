"""The time of an all-reduce by formula: pure functions of ranks, bytes and the cost of a message.

Each formula counts what a schedule of `parallel/collectives` does, step by step, so that it can be
evaluated for thousands of ranks at once; tests hold it to the schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

import numpy as np

from stepladder.errors import UsageError
from stepladder.parallel.collectives.algorithms import (
    ALGORITHMS,
    BINARY_TREE,
    DOUBLE_TREE,
    Algorithm,
    Shape,
)
from stepladder.parallel.collectives.choice import SEGMENTS
from stepladder.parallel.collectives.cost import schedule_s
from stepladder.parallel.collectives.schedule import Schedule
from stepladder.records.collectives import Link

_MOST_COUNTED: Final = 128  # ranks; a schedule of more takes long to build
_STEPS_A_LEVEL: Final = 4


def parameter_server_s(num_ranks: int, num_bytes: float, link: Link) -> float:
    """Return the seconds of one server: 2 α + 2 (p - 1) n β + (p - 1) n γ.

    All messages of a step share the server's connection.

    Source: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI.
    """
    if num_ranks < 2:
        return 0.0
    others = (num_ranks - 1) * num_bytes
    return 2 * link.alpha_s + 2 * others * link.beta_s + others * link.gamma_s


def ring_s(num_ranks: int, num_bytes: float, link: Link) -> float:
    """Return the seconds of a ring: 2 (p - 1) α + 2 (p - 1) / p n β + (p - 1) / p n γ.

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms", JPDC 69(2).
    """
    if num_ranks < 2:
        return 0.0
    steps, share = num_ranks - 1, num_bytes / num_ranks
    one_s = link.exchange_alpha_s + share * link.exchange_beta_s
    return 2 * steps * one_s + steps * share * link.gamma_s


def sharded_parameter_server_s(num_ranks: int, num_bytes: float, link: Link) -> float:
    """Return the seconds of a server on each rank: as many steps and bytes as a ring.

    Source: Chen et al. 2015, "MXNet", arXiv:1512.01274.
    """
    return ring_s(num_ranks, num_bytes, link)


def recursive_doubling_s(num_ranks: int, num_bytes: float, link: Link) -> float:
    """Return the seconds of recursive doubling: L (α + n β + n γ); folded if p is no power of two.

    Source: Thakur, Rabenseifner and Gropp 2005, IJHPCA 19(1), section 4.1.
    """
    levels = num_ranks.bit_length() - 1
    one_s = link.exchange_alpha_s + num_bytes * (link.exchange_beta_s + link.gamma_s)
    return levels * one_s + _fold_s(num_ranks, num_bytes, link)


def halving_doubling_s(num_ranks: int, num_bytes: float, link: Link) -> float:
    """Return the seconds of halving and doubling: 2 L α + 2 (p - 1) / p n β + (p - 1) / p n γ.

    If p is no power of two, ranks are folded: two more messages of n bytes.

    Source: Rabenseifner 2004, "Optimization of Collective Reduction Operations", ICCS.
    """
    levels = num_ranks.bit_length() - 1
    share = (1 - 2.0**-levels) * num_bytes
    core_s = 2 * levels * link.exchange_alpha_s + 2 * share * link.exchange_beta_s
    return core_s + share * link.gamma_s + _fold_s(num_ranks, num_bytes, link)


def _fold_s(num_ranks: int, num_bytes: float, link: Link) -> float:
    """Return the seconds of a message to another rank before, and one back after."""
    if num_ranks & (num_ranks - 1) == 0:
        return 0.0
    return 2 * (link.alpha_s + num_bytes * link.beta_s) + num_bytes * link.gamma_s


def binary_blocks_s(num_ranks: int, num_bytes: float, link: Link) -> float:
    """Return the seconds of halving and doubling in blocks of powers of two.

    The blocks work side by side, and the longest path counts. A rank of the smaller of two
    neighbouring blocks sends its chunk, n / size, in parts to ranks of the larger one, and gets the
    sums back.

    Source: Rabenseifner and Träff 2004, EuroPVM/MPI, section 3.
    """
    sizes = [1 << bit for bit in range(num_ranks.bit_length()) if num_ranks >> bit & 1]
    now_s = 0.0  # when the sums of a block and of all smaller ones are known
    for place, size in enumerate(sizes):
        now_s = max(now_s, _halving_s(size, num_bytes, link, is_added=True))
        if place:
            sent_s = link.alpha_s + num_bytes / sizes[place - 1] * link.beta_s
            now_s += sent_s + num_bytes / size * link.gamma_s
    end_s = 0.0
    for place in range(len(sizes) - 1, -1, -1):
        rest_s = _halving_s(sizes[place], num_bytes, link, is_added=False)
        sends_s = link.alpha_s + num_bytes / sizes[place] * link.beta_s if place else 0.0
        end_s = max(end_s, now_s + sends_s + rest_s)
        if place:  # the next smaller block has received all of it
            now_s += link.alpha_s + num_bytes / sizes[place - 1] * link.beta_s
    return end_s


def _halving_s(num_ranks: int, num_bytes: float, link: Link, *, is_added: bool) -> float:
    """Return the seconds of a reduce-scatter by halves, or of the all-gather in reverse."""
    levels = num_ranks.bit_length() - 1
    share = (1 - 2.0**-levels) * num_bytes
    one_s = levels * link.exchange_alpha_s + share * link.exchange_beta_s
    return one_s + (share * link.gamma_s if is_added else 0.0)


def reduction_tree_s(num_ranks: int, num_bytes: float, link: Link) -> float:
    """Return the seconds of a binomial tree: 2 ⌈L⌉ (α + n β) + ⌈L⌉ n γ.

    Source: Iandola et al. 2016, "FireCaffe", section 4, arXiv:1511.00175.
    """
    levels = math.ceil(math.log2(num_ranks)) if num_ranks > 1 else 0
    one_s = link.alpha_s + num_bytes * link.beta_s
    return 2 * levels * one_s + levels * num_bytes * link.gamma_s


def binary_tree_s(num_ranks: int, num_bytes: float, link: Link) -> float:
    """Return the seconds of a full binary tree with the best number of segments.

    About 4 (⌊L⌋ + k / 2) messages of n / k bytes follow each other, with k segments. Which of them
    overlap, only the schedule knows; it is counted there, up to 128 ranks.

    Source: Iandola et al. 2016, "FireCaffe", section 4, arXiv:1511.00175.
    """
    return _segmented_s(BINARY_TREE, num_ranks, num_bytes, link)


def double_tree_s(num_ranks: int, num_bytes: float, link: Link) -> float:
    """Return the seconds of two trees with half of the segments each: about 2 L α + 2 n β.

    Counted in the schedule, as for `binary_tree_s`.

    Source: Sanders, Speck and Träff 2009, "Two-Tree Algorithms", Parallel Computing 35(12).
    """
    return _segmented_s(DOUBLE_TREE, num_ranks, num_bytes, link)


@lru_cache(maxsize=65_536)  # a search, and a fit, ask for the same buckets again and again
def _segmented_s(algorithm: Algorithm, num_ranks: int, num_bytes: float, link: Link) -> float:
    """Return the seconds of a tree with the best number of segments that follow each other.

    Each doubling of the ranks adds a level, and so two messages on the way up and two down.
    """
    counted = min(num_ranks, _MOST_COUNTED)
    further = _STEPS_A_LEVEL * math.log2(num_ranks / counted) if num_ranks > counted else 0.0
    times = []
    for num in SEGMENTS:
        share = num_bytes / num
        added_s = link.exchange_alpha_s + share * (link.exchange_beta_s + link.gamma_s / 2)
        known_s = schedule_s(_schedule(algorithm, counted, num), int(num_bytes), link)
        times.append(known_s + further * added_s)
    return min(times)


@cache
def _schedule(algorithm: Algorithm, num_ranks: int, num_segments: int) -> Schedule:
    return algorithm.schedule(Shape(num_ranks=num_ranks, num_segments=num_segments))


Formula = Callable[[int, float, Link], float]
FORMULAS: Final[Mapping[str, Formula]] = {
    "parameter_server": parameter_server_s,
    "sharded_parameter_server": sharded_parameter_server_s,
    "reduction_tree": reduction_tree_s,
    "binary_tree": binary_tree_s,
    "double_tree": double_tree_s,
    "ring": ring_s,
    "recursive_doubling": recursive_doubling_s,
    "halving_doubling": halving_doubling_s,
    "binary_blocks": binary_blocks_s,
}
"""Formulas of flat algorithms, by the name of the algorithm."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Devices that add up gradients: some hosts with as many devices each.

    Attributes:
        hosts, devices: number of hosts, and of devices in each.
        inside: cost of messages between devices of a host; None with one device in each.
        network: cost of messages of one network card; None with one host.
        cards: network cards of each host.
        slow: cost of messages of one of the hosts, the last; None: as of the others.
    """

    hosts: int
    devices: int
    inside: Link | None
    network: Link | None
    cards: int = 1
    slow: Link | None = None

    @property
    def num(self) -> int:
        """Number of devices in total."""
        return self.hosts * self.devices


def all_reduce_s(name: str, group: Group, num_bytes: float) -> float:
    """Return the seconds in which a group adds up some bytes.

    Flat algorithms send between all devices alike. On several hosts, a message between hosts is the
    slowest of a step, so each counts as one of those, and the devices of a host share its cards:
    their bytes, not their fixed times, add up. `native` is what NCCL does: the faster of a ring
    through all devices, and of trees between hosts.

    Raises:
        UsageError: if there is no algorithm of that name.
    """
    if group.num < 2:
        return 0.0
    if group.slow is not None and group.hosts > 1:
        return _mixed_s(name, group, num_bytes, group.slow)
    if name == HIERARCHICAL:
        return hierarchical_s(group, num_bytes)
    if name == NATIVE:
        tree_s = hierarchical_s(group, num_bytes, across="double_tree")
        return min(nccl_ring_s(group, num_bytes), tree_s)
    if name not in FORMULAS:
        raise UsageError(
            f"there is no all-reduce named {name!r}",
            where="--all-reduce",
            fix=f"Type one of: {', '.join(ALL_REDUCES)}.",
        )
    formula = FORMULAS[name]
    if group.hosts == 1:
        return formula(group.num, num_bytes, required(group.inside))
    network = required(group.network)
    sharing = _senders(name, group) / group.cards
    return formula(group.num, num_bytes, slowed(network, max(1.0, sharing)))


@lru_cache(maxsize=65_536)
def _mixed_s(name: str, group: Group, num_bytes: float, slow: Link) -> float:
    """Return the seconds of an all-reduce in which the last host has a slower network.

    All bytes of a ring pass through each host, so it is as slow as if all were. A parameter server
    receives from the others meanwhile. The schedules of the rest are followed message by message,
    if each host has one device and there are not too many; otherwise all hosts count as slow.
    """
    all_slow_s = all_reduce_s(name, replace(group, network=slow, slow=None), num_bytes)
    if name == "parameter_server":
        sharing = max(1.0, group.devices / group.cards)
        message_s = 2 * (slow.alpha_s + sharing * num_bytes * slow.beta_s)
        return max(all_reduce_s(name, replace(group, slow=None), num_bytes), message_s)
    if name not in FORMULAS or group.devices > 1 or group.num > _MOST_COUNTED:
        return all_slow_s
    link = required(group.network)
    slower = np.ones(group.num)
    ratios = (slow.beta_s / link.beta_s, slow.exchange_beta_s / link.exchange_beta_s)
    slower[-1] = max(1.0, min(ratios))
    algorithm = next(one for one in ALGORITHMS if one.name == name)
    segments = SEGMENTS if algorithm in (BINARY_TREE, DOUBLE_TREE) else (1,)
    times = (
        schedule_s(_schedule(algorithm, group.num, num), int(num_bytes), link, slower=slower)
        for num in segments
    )
    return min(all_slow_s, *times)


def hierarchical_s(group: Group, num_bytes: float, *, across: str = "ring") -> float:
    """Return the seconds of a reduce-scatter in each host, an all-reduce between, an all-gather.

        2 (g - 1) (α + n / g β) + (g - 1) n / g γ + T(m, n / K)

    Each of g devices adds up its part of n / g bytes between m hosts, over K network cards, so that
    n / K bytes go through a card, whatever g is.

    Args:
        across: the algorithm between hosts.

    Source: Goyal et al. 2017, section 4, arXiv:1706.02677; Jia et al. 2018, arXiv:1807.11205.
    """
    within_s = 0.0
    if group.devices > 1:
        within_s = ring_s(group.devices, num_bytes, required(group.inside))
    if group.hosts == 1:
        return within_s
    streams = min(group.cards, group.devices)  # a device uses one card
    return within_s + FORMULAS[across](group.hosts, num_bytes / streams, required(group.network))


def nccl_ring_s(group: Group, num_bytes: float) -> float:
    """Return the seconds of NCCL's ring, in which bytes flow through all connections at once.

        2 (p - m) α + 2 (m - 1) α' + 2 (p - 1) / p n max(β, β' / K)

    with m hosts, K network cards, α and β within a host, α' and β' between hosts.

    Source: NCCL 2.1, tuning.cc (its model of a ring).
    """
    steps = 2 * (group.num - 1)
    byte_s, waits_s, across = 0.0, 0.0, 0
    if group.hosts > 1:
        network = required(group.network)
        across = 2 * (group.hosts - 1)
        waits_s += across * network.exchange_alpha_s
        byte_s = network.exchange_beta_s / min(group.cards, group.devices)
    if group.devices > 1:
        inside = required(group.inside)
        waits_s += (steps - across) * inside.exchange_alpha_s
        byte_s = max(byte_s, inside.exchange_beta_s)
    return waits_s + steps / group.num * num_bytes * byte_s


def slowed(link: Link, times: float) -> Link:
    """Return a connection whose bytes take so many times as long, as several share it."""
    return Link(
        alpha_s=link.alpha_s,
        beta_s=times * link.beta_s,
        exchange_alpha_s=link.exchange_alpha_s,
        exchange_beta_s=times * link.exchange_beta_s,
        gamma_s=link.gamma_s,
    )


def _senders(name: str, group: Group) -> float:
    """Return how many devices of a host send to other hosts at the same time.

    Around a ring in which the devices of a host are neighbours, one does. A server's host receives
    from all others anyway.
    """
    return 1.0 if name in ("ring", "parameter_server") else float(group.devices)


def required(link: Link | None) -> Link:
    """Return the cost of messages, which a group of several devices has."""
    assert link is not None, "a group of several devices has a connection between them"
    return link


HIERARCHICAL: Final = "hierarchical"
NATIVE: Final = "native"
ALL_REDUCES: Final = (NATIVE, HIERARCHICAL, *FORMULAS)
"""Names that can be planned with."""
