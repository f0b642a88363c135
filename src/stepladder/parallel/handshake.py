"""Compare what the ranks have before the first step: versions, config, data, devices, clocks."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from stepladder.errors import DataError, ResourceError, StepladderError, UsageError
from stepladder.machine.limits import num_cores
from stepladder.parallel.failures import LOGS
from stepladder.parallel.join import host_name
from stepladder.parallel.world import World

_PACKAGES: Final = ("stepladder", "torch", "timm", "numpy")
_MAX_SHOWN: Final = 5
_MAX_CLOCK_S: Final = 30.0
_SEEN_S: Final = 5.0  # for a network file system
_POLL_S: Final = 0.1
ABSENT: Final = "none"


def require_same_programs(world: World) -> None:
    """Check that all ranks run the same versions.

    Raises:
        UsageError: if they do not, with both sides.
    """
    _require_equal(
        world,
        {name: _version(name) for name in _PACKAGES},
        "have different versions",
        kind=UsageError,
        fix="Install the same versions on all hosts.",
    )


def require_same_config(world: World, values: Mapping[str, object]) -> None:
    """Check that all ranks were given the same options.

    Args:
        values: by dotted name.

    Raises:
        UsageError: if they were not, with both sides.
    """
    _require_equal(
        world,
        {name: str(value) for name, value in values.items()},
        "were given different options",
        kind=UsageError,
        fix="Use the same file and the same flags on all hosts.",
    )


def require_same_data(world: World, fingerprints: Mapping[str, str]) -> None:
    """Check that all ranks read the same data.

    Args:
        fingerprints: by split.

    Raises:
        DataError: if they do not, with both sides.
    """
    _require_equal(
        world,
        {f"data {split}": value[:12] for split, value in fingerprints.items()},
        "read different data",
        kind=DataError,
        fix="Let the Task read the same store, or the same files in the same order, in every "
        "process.",
    )


def require_shared_folder(world: World, folder: Path) -> None:
    """Check that all hosts see the run folder in which rank 0 writes.

    Otherwise a run that starts again with rank 0 on another host begins from scratch, and no host
    finds what another one has reported.

    Raises:
        ResourceError: if one does not, on every rank, with its host.
    """
    if world.is_alone or len(set(world.gather(host_name()))) == 1:
        return
    file: Path | None = None
    if world.is_main:
        file = folder.absolute() / LOGS / f"here-{uuid.uuid4().hex}"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        except OSError:  # is reported when the run is written
            file = None
    name = world.from_main(None if file is None else file.name)
    seen = world.gather((name is None or _is_seen(folder / LOGS / name), socket.gethostname()))
    if file is not None:
        file.unlink(missing_ok=True)
    blind = [rank for rank, (is_seen, _) in enumerate(seen) if not is_seen]
    if blind:
        raise ResourceError(
            f"rank {blind[0]} on {seen[blind[0]][1]} does not see the run folder in which rank 0 "
            f"on {seen[0][1]} writes",
            where=str(folder.absolute()),
            fix="Use a folder on storage that all hosts share, at the same path: --run.dir FOLDER",
        )


def _is_seen(file: Path) -> bool:
    """Return whether a file that another host has just written appears."""
    until = time.monotonic() + _SEEN_S
    while not file.exists():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)
    return True


def network_line(world: World) -> str | None:
    """Return a line about the network of all hosts; None: they are one. A collective."""
    network = world.network
    own = (
        socket.gethostname(),
        world.local_rank == 0,
        None if network is None or network.interface is None else str(network),
    )
    found = [(host, words) for host, is_first, words in world.gather(own) if is_first]
    if len(found) < 2 or all(words is None for _, words in found):
        return None
    hosts: dict[str, list[str]] = {}
    for host, words in found:
        hosts.setdefault(words or "an unknown interface", []).append(host)
    if len(hosts) == 1:
        return f"{len(found)} hosts, connected by {next(iter(hosts))}"
    each = "; ".join(f"{words} on {', '.join(names)}" for words, names in hosts.items())
    return f"{len(found)} hosts, connected by {each}"


def differences_of_hosts(world: World, *, device: str) -> list[str]:
    """Return a sentence for each difference that slows the ranks down or confuses their logs."""
    facts = {"device": device, "cores": str(num_cores())}
    all_facts = world.gather({**facts, "host": socket.gethostname()})
    found = []
    for name in facts:
        values = [one[name] for one in all_facts]
        if len(set(values)) > 1:
            rank = next(rank for rank, value in enumerate(values) if value != values[0])
            found.append(
                f"the machines of this run differ in {name}: {values[0]} for rank 0, "
                f"{values[rank]} for rank {rank} on {all_facts[rank]['host']}; each step takes as "
                "long as the slowest of them"
            )
    return found + _clocks(world)


def _clocks(world: World) -> list[str]:
    world.barrier()
    times = world.gather(time.time())
    worst = max(range(world.size), key=lambda rank: abs(times[rank] - times[0]))
    apart = times[worst] - times[0]
    if abs(apart) < _MAX_CLOCK_S:
        return []
    return [
        f"the clock of the machine of rank {worst} differs from that of rank 0 by {apart:+,.0f} s, "
        "so times in their logs cannot be compared"
    ]


def _require_equal(
    world: World,
    facts: Mapping[str, str],
    what: str,
    *,
    kind: type[StepladderError],
    fix: str,
) -> None:
    """Raise an error on every rank if the facts of any rank differ from those of rank 0."""
    if world.is_alone:
        return
    all_ranks = world.gather((dict(facts), socket.gethostname()))
    first, _ = all_ranks[0]
    lines: list[str] = []
    for rank, (found, host) in enumerate(all_ranks):
        for name in dict.fromkeys([*first, *found]):
            ours, theirs = first.get(name, ABSENT), found.get(name, ABSENT)
            if ours != theirs:
                lines.append(f"{name}: {ours} on rank 0, {theirs} on rank {rank} ({host})")
    if lines:
        raise kind(
            f"the processes of this run (ranks) {what}",
            why="\n  ".join(_shown(lines)),
            fix=fix,
        )


def _shown(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MAX_SHOWN
    return [*lines[:_MAX_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ABSENT
