"""Compare what the ranks have before the first step: versions, config, data, devices, clocks."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

from stepladder.errors import DataError, ResourceError, StepladderError, UsageError
from stepladder.machine.limits import num_cores
from stepladder.parallel.failures import LOGS
from stepladder.parallel.world import World

_PACKAGES: Final = ("stepladder", "torch", "timm", "numpy")
_MAX_SHOWN: Final = 5
_MAX_CLOCK_S: Final = 30.0
SHARED_MARK: Final = "shared-"
_SHARED_S: Final = 10.0
_SHARED_POLL_S: Final = 0.1
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
    """Check that all hosts see the same run folder: rank 0 writes a file, the others wait for it.

    Raises:
        UsageError: if a host does not see it within some seconds.
        ResourceError: if rank 0 cannot write it.
    """
    if world.num_hosts == 1:
        return
    file = folder / LOGS / f"{SHARED_MARK}{world.from_main(secrets.token_hex(8))}"
    failure = _write_mark(file) if world.is_main else None
    failure = world.from_main(failure)
    until = time.monotonic() + _SHARED_S
    while not failure and not (is_seen := file.exists()) and time.monotonic() < until:
        with suppress(OSError):
            os.listdir(file.parent)  # noqa: PTH208  (NFS asks the server again)
        time.sleep(_SHARED_POLL_S)
    if failure:
        raise ResourceError(failure, where=str(folder), fix="Choose another --run.dir FOLDER.")
    blind = sorted({host for host, seen in world.gather((world.host, is_seen)) if not seen})
    if world.is_main:
        file.unlink(missing_ok=True)
    if blind:
        names = ", ".join(dict.fromkeys(world.host_names[host] for host in blind))
        raise UsageError(
            f"the run folder is not shared by the hosts: {names} did not see within "
            f"{_SHARED_S:g} s the file that {world.host_names[0]} wrote there",
            where=str(folder.absolute()),
            why="Another host could not resume the run from its checkpoints.",
            fix="Keep copies of the checkpoints in an object store: --run.mirror s3://BUCKET/RUN. "
            "Or set --run.dir to a folder that all hosts share.",
        )


def _write_mark(file: Path) -> str:
    """Write a file, and return why this is not possible, or an empty text."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        return f"the run folder cannot be written ({error.strerror or error})"
    return ""


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
