"""Compare what the ranks have before the first step.

What changes the result is an error: versions, stepladder's own source, options, the Task's source,
data, and weights. What only costs time, or the last bits of a sum, is a warning: devices, cores,
threads, network interfaces, and clocks. Both name the two sides.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

import stepladder
from stepladder.errors import DataError, ResourceError, StepladderError, UsageError
from stepladder.machine.environment import git_state
from stepladder.machine.limits import num_cores
from stepladder.parallel.failures import LOGS
from stepladder.parallel.world import World

_PACKAGES: Final = ("stepladder", "torch", "timm", "numpy")
_SOURCE: Final = "stepladder source"
_DIGITS: Final = 12
_MAX_SHOWN: Final = 5
_MAX_CLOCK_S: Final = 30.0
SHARED_MARK: Final = "shared-"
_SHARED_S: Final = 10.0
_SHARED_POLL_S: Final = 0.1
ABSENT: Final = "none"


def require_same_programs(world: World) -> None:
    """Check that all ranks run the same versions, and the same source of stepladder.

    Versions do not distinguish two checkouts, so its files are hashed; the commit is only shown.

    Raises:
        UsageError: if they do not, with both sides.
    """
    if world.is_alone:
        return
    package = Path(stepladder.__file__).parent
    files = sorted(package.rglob("*.py"))
    _require_equal(
        world,
        {
            "python": ".".join(platform.python_version_tuple()[:2]),
            **{name: _version(name) for name in _PACKAGES},
            _SOURCE: hash_files(files, below=package),
        },
        "have different versions",
        kind=UsageError,
        fix="Install the same versions on all hosts.",
        notes={_SOURCE: _commit(package)},
    )


def require_same_task(world: World, name: str, file: Path | None) -> None:
    """Check that all ranks have the same Task, from the same source.

    Args:
        name: such as `task.py:Digits`; only its last part is compared, as hosts may keep the file
            in different folders.
        file: with its source; None: it is stepladder's own, or has none.

    Raises:
        UsageError: if they do not, with both sides.
    """
    if world.is_alone:
        return
    source = ABSENT if file is None else hash_files([file], below=file.parent)
    _require_equal(
        world,
        {"task": Path(name).name, "source of the Task": source},
        "have different Tasks",
        kind=UsageError,
        fix="Copy the Task's file to all hosts.",
        notes={"source of the Task": str(file or "")},
    )


def hash_files(files: Sequence[Path], *, below: Path) -> str:
    """Return a hash of the names and contents of files.

    Args:
        below: folder to which names are relative.
    """
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(below).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:_DIGITS]


def _commit(package: Path) -> str:
    """Return the commit of a checkout; empty for an installed package."""
    if not any((folder / ".git").exists() for folder in package.parents[:2]):
        return ""
    found = git_state(package)
    if found is None:
        return ""
    return f"commit {found['commit'][:_DIGITS]}{', changed' if found['is_changed'] else ''}"


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


def require_same_tensors(world: World, kinds: Mapping[str, str]) -> None:
    """Check that all ranks have built a model with the same tensors.

    Args:
        kinds: dtype and shape, by name.

    Raises:
        UsageError: if they have not, with both sides.
    """
    digest = hashlib.sha256(repr(sorted(kinds.items())).encode()).hexdigest()
    if len(set(world.gather(digest))) == 1:
        return
    _require_equal(
        world,
        {f"tensor {name}": kind for name, kind in kinds.items()},
        "have built different models",
        kind=UsageError,
        fix="Let build_model of the Task return the same layers in every process.",
    )


def require_same_weights(world: World, digest: str) -> None:
    """Check that all ranks have the weights of rank 0, after it has sent them.

    Args:
        digest: of this rank's weights.

    Raises:
        ResourceError: if they have not.
    """
    all_ranks = world.gather((digest, socket.gethostname()))
    others = [
        f"{rank} ({host})" for rank, (one, host) in enumerate(all_ranks) if one != all_ranks[0][0]
    ]
    if others:
        raise ResourceError(
            f"rank 0 has sent its initial weights, but they differ on rank{'s'[: len(others) > 1]} "
            f"{', '.join(others)}",
            why="The ranks would train different models. Memory, GPU or network of these hosts "
            "may be faulty.",
            fix="Test each of these hosts: stepladder doctor",
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
    """Return a sentence for each difference that slows the ranks down or confuses their logs.

    Args:
        device: of this rank, such as the name of its GPU.
    """
    import torch

    network = None if world.network is None or world.network.interface is None else world.network
    facts = {
        "device": device,
        "number of visible GPUs": str(torch.cuda.device_count()),
        "cores": str(num_cores()),
        "threads": str(torch.get_num_threads()),
        "network interface": "unknown" if world.num_hosts == 1 else str(network or "unknown"),
    }
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
    notes: Mapping[str, str] | None = None,
) -> None:
    """Raise an error on every rank if the facts of any rank differ from those of rank 0.

    Args:
        notes: shown with a fact that differs, but not compared.
    """
    if world.is_alone:
        return
    all_ranks = world.gather((dict(facts), socket.gethostname(), dict(notes or {})))
    first, _, first_notes = all_ranks[0]
    lines: list[str] = []
    for rank, (found, host, its_notes) in enumerate(all_ranks):
        for name in dict.fromkeys([*first, *found]):
            ours, theirs = first.get(name, ABSENT), found.get(name, ABSENT)
            if ours != theirs:
                ours += _in_brackets(first_notes.get(name))
                theirs += _in_brackets(its_notes.get(name))
                lines.append(f"{name}: {ours} on rank 0, {theirs} on rank {rank} ({host})")
    if lines:
        raise kind(
            f"the processes of this run (ranks) {what}",
            why="\n  ".join(_shown(lines)),
            fix=fix,
        )


def _in_brackets(note: str | None) -> str:
    return f" ({note})" if note else ""


def _shown(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MAX_SHOWN
    return [*lines[:_MAX_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ABSENT
