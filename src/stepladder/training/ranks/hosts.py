"""Division of a store's files among the hosts of a run, and what each of them downloads."""

from __future__ import annotations

from collections.abc import Sequence

from stepladder.config.recipe import DataConfig
from stepladder.data.reading.examples import Source
from stepladder.parallel.agreement import sum_of
from stepladder.parallel.world import World


def counts_downloads(source: Source, world: World) -> bool:
    """Return True if the downloads of a source are reported by host."""
    return world.num_hosts > 1 and source.files_stats() is not None


def received_by_host(source: Source | None, world: World) -> list[int]:
    """Return the bytes that the processes of each host have downloaded so far; a collective.

    Args:
        source: the training examples; None: no downloads are counted, and the result is empty.
    """
    if source is None:
        return []
    stats = source.files_stats()
    own = 0 if stats is None else stats.num_bytes
    keys = [f"{host:09d}" for host in range(world.num_hosts)]
    sums = sum_of(world, {key: own * (idx == world.host) for idx, key in enumerate(keys)})
    return [int(sums[key]) for key in keys]


def by_name(received: Sequence[int], world: World) -> dict[str, int]:
    """Return bytes by host, with a number after names that several hosts have."""
    names = world.host_names
    shown = [
        name if names.count(name) == 1 else f"{name} ({idx})" for idx, name in enumerate(names)
    ]
    return dict(zip(shown, received, strict=True))


def hosts_warnings(data: DataConfig, source: Source, world: World) -> list[str]:
    """Return sentences about files that hosts download although others do, too.

    Args:
        data: resolved.
    """
    is_far = source.block_rows is not None and not source.is_near
    if not is_far or world.num_hosts == 1:
        return []
    if data.hosts > 1 and data.hosts != world.even_hosts:
        return [
            f"the files of the store stay divided among {data.hosts} hosts, as when the run began, "
            f"but now there are {world.num_hosts}: the examples of each step are the same, but "
            "hosts may download more than their share of the files"
        ]
    if data.hosts == 1 and world.even_hosts == 1:
        return [
            "every host downloads all files of the store, because the files are divided only among "
            "hosts with the same number of devices, whose ranks follow one another"
        ]
    return []
