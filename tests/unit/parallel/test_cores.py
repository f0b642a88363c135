"""The cores of a host are divided among its ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest

from stepladder.parallel.join import host_name, take_place
from stepladder.parallel.world import World


@dataclass(frozen=True, kw_only=True)
class Placed(World):
    """A rank whose gathering returns the places of all ranks."""

    places: tuple[tuple[str, int, str], ...]

    def gather(self, value: Any) -> list[Any]:
        """Return the places of all ranks."""
        assert value[0] == self.places[self.rank][0]
        return list(self.places)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The cores that a process takes; its host has eight, of which it may use six."""
    found: list[list[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 4, 5, 7}, raising=False)
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda _, cores: found.append(list(cores)), raising=False
    )
    return found


def placed(rank: int, hosts: str, **how: Any) -> World:
    """Return a rank of several, each on the host with a letter; this one's host is the real one."""
    real = {hosts[rank]: host_name()}
    places = tuple((real.get(host, host), 0, host) for host in hosts)
    world = Placed(rank=rank, size=len(hosts), places=places, **how)
    return take_place(world, is_cuda="local_size" in how)


@pytest.mark.parametrize(
    ("hosts", "cores"),
    [
        ("aa", [[0, 1, 2], [4, 5, 7]]),
        ("aaa", [[0, 1], [2, 4], [5, 7]]),
        ("aaaa", [[0], [1], [2], [4]]),
        ("aabb", [[0, 1, 2], [4, 5, 7]] * 2),
        ("abab", [[0, 1, 2], [0, 1, 2], [4, 5, 7], [4, 5, 7]]),
        ("aaab", [[0, 1], [2, 4], [5, 7], []]),
    ],
)
def test_ranks_of_one_host_use_different_cores(
    taken: list[list[int]], hosts: str, cores: list[list[int]]
) -> None:
    for rank, expected in enumerate(cores):
        taken.clear()
        world = placed(rank, hosts)
        assert taken == ([expected] if expected else [])
        assert world.local_size == hosts.count(hosts[rank])
        assert world.local_rank == hosts[:rank].count(hosts[rank])


def test_more_ranks_than_cores_share_all_of_them(taken: list[list[int]]) -> None:
    for rank in range(7):
        placed(rank, "a" * 7)
    assert taken == []


def test_ranks_with_gpus_divide_cores_by_their_place_from_the_launcher(
    taken: list[list[int]],
) -> None:
    placed(1, "aa", local_rank=1, local_size=2)
    assert taken == [[4, 5, 7]]
