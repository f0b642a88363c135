"""`stepladder plan`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from stepladder.api.collectives import bench_collectives
from stepladder.api.plan import (
    ALL_REDUCES,
    FOLDER,
    HOSTS,
    MACHINES,
    PROBE_ROUNDS,
    PROBE_SIZES,
    plan,
)
from stepladder.cli.job_flags import seconds_of
from stepladder.cli.parse import Output, Unprefixed, parse
from stepladder.errors import UsageError
from stepladder.records import to_json

_DIR = tyro.conf.arg(name="run.dir")
_FROM = tyro.conf.arg(name="from")
VALIDATE = "validate"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Predict a training on hardware that is not here: its time, its price, and what limits it.

    From the profile of a climb, a watched script, or a job described in YAML. The page and the
    numbers are in the run folder: plan.html, plan.json. With `validate`, the planner is held
    against published measurements instead.

    Examples:
      stepladder plan runs/demo                               more machines like this one
      stepladder plan runs/demo --machines p3.2xlarge p3.16xlarge --prices prices.csv
      stepladder plan job.yaml --batch 1024 --all-reduce ring parameter_server
      stepladder plan --from watch-train --machines 4xA100:nvlink3@100Gbit
      stepladder plan runs/demo --all-reduce native asynchronous --slow-device 2
      stepladder plan validate                                predicted beside published
      stepladder plan validate --points points.csv            other published points
    """

    source: Positional[str] = ""
    """Run folder of a climb or of `watch`, or a YAML file; or validate."""
    from_: Annotated[str, _FROM] = ""
    """The same, as an option."""
    machines: tuple[str, ...] = MACHINES
    """Cloud machines by name, machines in words such as 4xA100:nvlink3@100Gbit, or this."""
    hosts: tuple[int, ...] = HOSTS
    """Numbers of machines."""
    batch: tuple[int, ...] = ()
    """Examples of a step over all devices; by default as in the job."""
    all_reduce: tuple[str, ...] = ALL_REDUCES
    """Ways of adding up gradients, such as native ring parameter_server halving_doubling; also
    asynchronous and backup_workers, with a parameter server that does not wait for all."""
    network: str | None = None
    """Network between machines, such as 25Gbit, in place of their own."""
    link: Path | None = None
    """Folder of bench-collectives, run under torchrun: the network as it was measured."""
    probe: bool = False
    """Measure messages first: between two processes of this machine, or those of torchrun."""
    prices: Path | None = None
    """CSV with prices, as for --ladder.prices."""
    precision: tuple[str, ...] = ()
    """Of the arithmetic, such as fp32 bf16; by default that of the measurement."""
    parallelism: tuple[str, ...] = ()
    """How devices share the work, each planned: data sharded tensor pipeline; by default, copies of
    the model if they fit, otherwise the fastest way that does."""
    slow_device: float | None = None
    """Times by which one of several devices is slower, such as 2."""
    slow_network: str | None = None
    """Network of one of several machines, such as 1Gbit."""
    interrupted_every: str | None = None
    """Mean time after which a machine fails, or a spot machine is taken away, such as 12h."""
    deadline: str | None = None
    """Limit of the whole training, such as 90m or 6h: the cheapest within it is named."""
    budget: float | None = None
    """Limit of its price: the fastest within it is named."""
    examples: int | None = None
    """Of an epoch, for a watched script."""
    epochs: float | None = None
    """Until training ends, for a watched script."""
    noise_scale: float | None = None
    """Gradient noise scale in examples: how many more examples a larger batch needs."""
    driver_ms: float | None = None
    """Milliseconds for each example of the one process that feeds all devices; by default, each
    device has a process."""
    points: Path | None = None
    """For validate: published points of your own, with the columns of docs/planner.md."""
    dir: Annotated[Path, _DIR] = FOLDER
    """Folder for the result."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="plan", default=Flags())
    source = flags.source or flags.from_
    if flags.source and flags.from_:
        raise UsageError(
            f"two jobs were named: {flags.source} and {flags.from_}",
            where="--from",
            fix="Name only one.",
        )
    if flags.points is not None and source != VALIDATE:
        raise UsageError(
            "published points are for validate",
            where="--points",
            fix=f"Type stepladder plan validate --points {flags.points}",
        )
    if source == VALIDATE:
        from stepladder.planning.published.points import points_of
        from stepladder.planning.published.validation import validate
        from stepladder.planning.published.words import summary_lines, validation_text

        found = validate(None if flags.points is None else points_of(flags.points))
        flags.output.print_result(
            to_json({"summary": summary_lines(found), **found.summary()}), validation_text(found)
        )
        return 0
    if not source:
        raise UsageError(
            "nothing to plan was named",
            where="stepladder plan",
            fix="Type stepladder plan FOLDER with one of `stepladder climb` or `watch`.",
        )
    link = flags.link
    if flags.probe:
        link = flags.dir / "collectives"
        if bench_collectives(dir=link, sizes=PROBE_SIZES, num_rounds=PROBE_ROUNDS) is None:
            return 0  # another rank than 0 of torchrun
    result = plan(
        source,
        machines=flags.machines,
        hosts=flags.hosts,
        batches=flags.batch,
        all_reduce=flags.all_reduce,
        network=flags.network,
        link=link,
        prices=flags.prices,
        precisions=flags.precision,
        parallelism=flags.parallelism,
        slow_device=flags.slow_device,
        slow_network=flags.slow_network,
        deadline_s=None
        if flags.deadline is None
        else seconds_of(flags.deadline, where="--deadline"),
        interrupted_every_s=None
        if flags.interrupted_every is None
        else seconds_of(flags.interrupted_every, where="--interrupted-every"),
        budget=flags.budget,
        examples=flags.examples,
        epochs=flags.epochs,
        noise_scale=flags.noise_scale,
        driver_ms=flags.driver_ms,
        dir=flags.dir,
    )
    from stepladder.reporting.pages.plan_page import PLAN_PAGE, plan_text

    flags.output.print_result(result, f"{plan_text(result)}page: {flags.dir / PLAN_PAGE}")
    return 0
