"""`stepladder bench-collectives`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from stepladder.api.collectives import DEVICES, FOLDER, ROUNDS, bench_collectives
from stepladder.cli.parse import Output, Unprefixed, parse

_DIR = tyro.conf.arg(name="run.dir")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Time every way of adding up gradients between devices, beside PyTorch's own.

    Fits the cost of a message, predicts each algorithm from it, and prints which one `--all-reduce
    auto` would use at which size. The page and the numbers are in the run folder:
    collectives.html, collectives.json. Over gloo, on CPUs.

    Examples:
      stepladder bench-collectives --devices 4
      stepladder bench-collectives --devices 4 --sizes 16KB 1MB 64MB
      srun -n 4 stepladder bench-collectives      between the tasks of a Slurm job, or of torchrun
    """

    devices: int = DEVICES
    """Processes to start on this machine; under torchrun, its processes are used."""
    sizes: tuple[int, ...] = ()
    """Sizes of the tensors in bytes, such as 16KB 1MB; by default seven from 16 KB to 64 MB."""
    rounds: int = ROUNDS
    """How often each algorithm is timed, in turn with the others."""
    dir: Annotated[Path, _DIR] = FOLDER
    """Folder for the result."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="bench-collectives", default=Flags())
    found = bench_collectives(
        flags.devices, dir=flags.dir, sizes=flags.sizes, num_rounds=flags.rounds
    )
    if found is not None:
        from stepladder.reporting.pages.collectives_page import COLLECTIVES_PAGE, collectives_text

        page = f"page: {flags.dir / COLLECTIVES_PAGE}"
        flags.output.print_result(found, f"{collectives_text(found)}{page}")
    return 0
