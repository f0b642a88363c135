"""Measure ways of adding up gradients over several devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepladder.errors import UsageError

if TYPE_CHECKING:
    from stepladder.records.collectives import Collectives

DEVICES: Final = 2
ROUNDS: Final = 7
FOLDER: Final = Path("runs/collectives")
_MEET_S: Final = 120.0
_COPIES: Final = 2  # of a tensor, in each process


def bench_collectives(
    devices: int = DEVICES,
    *,
    dir: Path | str = FOLDER,
    sizes: Sequence[int] = (),
    num_rounds: int = ROUNDS,
) -> Collectives | None:
    """Time every all-reduce algorithm between processes, and fit what their messages cost.

    Writes collectives.json and collectives.html.

    Args:
        devices: processes to start on this machine.
        dir: folder for the result.
        sizes: of the tensors, in bytes; empty: 16 KB to 64 MB.
        num_rounds: repetitions of each time, 1 or more.

    Returns:
        What was measured; None on other ranks than 0 of torchrun, which only take part.

    Raises:
        UsageError: if there are fewer than two devices, or a size is no multiple of 4.
        ResourceError: if a process ends, or the processes do not meet.
    """
    from stepladder.api.call import make_folder
    from stepladder.ladder.summary.machine import this_machine
    from stepladder.measuring.ranks.collectives import SIZES, Member, measure_collectives
    from stepladder.measuring.ranks.team import Team
    from stepladder.parallel.fleet import opened_fleet, serve
    from stepladder.parallel.place import place_of
    from stepladder.records import to_json
    from stepladder.records.collectives import COLLECTIVES_FILE
    from stepladder.records.files import write_json
    from stepladder.reporting.pages.collectives_page import write_collectives_page

    place, folder = place_of(), Path(dir)
    make_folder(folder)
    wanted = tuple(sorted(set(sizes))) or SIZES
    _require(devices if place is None else place.size, wanted, num_rounds)
    if place is not None and place.rank:
        serve(place, meet_s=_MEET_S)
        return None
    with opened_fleet(place, meet_s=_MEET_S) as fleet:
        num = devices if fleet is None else fleet.size
        _require_memory(num if place is None else place.local_size, wanted)
        with (
            _with_other_remedy(),
            Team(num, Member, {}, is_cuda=False, folder=folder / "logs", fleet=fleet) as team,
        ):
            found = measure_collectives(
                team, machine=this_machine(), sizes=wanted, num_rounds=num_rounds
            )
    write_json(folder / COLLECTIVES_FILE, to_json(found))
    write_collectives_page(folder)
    return found


@contextmanager
def _with_other_remedy() -> Iterator[None]:
    """Fit the remedy of a process that ends: here, one device is no way out."""
    from stepladder.errors import ResourceError

    try:
        yield
    except ResourceError as error:
        error.fix = "Use smaller --sizes, or fewer --devices."
        raise


def _require_memory(num_local: int, sizes: Sequence[int]) -> None:
    from stepladder.machine.limits import available_memory_bytes

    needed, free = _COPIES * num_local * max(sizes), available_memory_bytes()
    if needed > free:
        raise UsageError(
            f"{num_local} tensors of {max(sizes):,} bytes and their buffers do not fit into memory",
            where="--sizes",
            why=f"They need {needed / 1e9:,.1f} GB; {free / 1e9:,.1f} GB are free.",
            fix=f"Type --sizes {max(4, int(free / _COPIES / num_local / 2e6))}MB, or less.",
        )


def _require(num: int, sizes: Sequence[int], num_rounds: int) -> None:
    if num < 2:
        raise UsageError(
            "one device has nothing to add up",
            where="--devices",
            fix="Type --devices 2 or more, or start the command with torchrun on several machines.",
        )
    if num_rounds < 1:
        raise UsageError(
            f"{num_rounds} rounds measure nothing", where="--rounds", fix="Type --rounds 7."
        )
    wrong = next((size for size in sizes if size < 4 or size % 4), None)
    if wrong is not None:
        raise UsageError(
            f"{wrong} bytes are not a number of float32 values",
            where="--sizes",
            fix="Use multiples of 4, such as --sizes 16KB 1MB.",
        )
