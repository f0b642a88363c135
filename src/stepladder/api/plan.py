"""Plan a training on hardware that is not here, and hold the planner against published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from stepladder.errors import DataError, UsageError

if TYPE_CHECKING:
    from stepladder.config.choices import Precision
    from stepladder.planning.hardware.connections import Connection
    from stepladder.planning.hardware.machines import Machine
    from stepladder.planning.job import PlannedJob
    from stepladder.planning.question import Question
    from stepladder.records.collectives import Collectives
    from stepladder.records.plan import Plan

FOLDER: Final = Path("runs/plan")
MACHINES: Final = ("this",)
HOSTS: Final = (1, 2, 4, 8, 16)
ALL_REDUCES: Final = ("native",)
PROBE_SIZES: Final = (16 * 1024, 1024**2)
PROBE_ROUNDS: Final = 3
_LARGEST: Final = 1e12
T = TypeVar("T")
_YAML: Final = (".yaml", ".yml")


def plan(
    source: Path | str,
    *,
    machines: Sequence[str] = MACHINES,
    hosts: Sequence[int] = HOSTS,
    batches: Sequence[int] = (),
    all_reduce: Sequence[str] = ALL_REDUCES,
    network: str | None = None,
    link: Path | str | None = None,
    prices: Path | str | None = None,
    precisions: Sequence[str] = (),
    parallelism: Sequence[str] = (),
    slow_device: float | None = None,
    slow_network: str | None = None,
    interrupted_every_s: float | None = None,
    deadline_s: float | None = None,
    budget: float | None = None,
    examples: int | None = None,
    epochs: float | None = None,
    noise_scale: float | None = None,
    driver_ms: float | None = None,
    dir: Path | str | None = FOLDER,
) -> Plan:
    """Predict a training on other machines: time, price, and what limits it.

    Writes plan.json and plan.html.

    Args:
        source: a run folder with the profile of a climb, a folder of `watch`, or a YAML file that
            describes a job.
        machines: names of cloud machines, such as p3.16xlarge; machines in words, such as
            `4xA100:nvlink3@100Gbit`; or `this`, for more of the one that was measured.
        hosts: numbers of machines, ascending.
        batches: examples of a step over all devices; empty: that of the job.
        all_reduce: ways of adding up gradients; also `asynchronous` and `backup_workers`, with a
            parameter server that does not wait for all.
        network: replaces the machines' networks, such as 25Gbit.
        link: folder or file of `bench-collectives`; replaces the network by what was measured.
        prices: CSV with prices, as for `ladder.prices`.
        precisions: of the arithmetic, as `device.precision`; empty: that of the measurement.
        parallelism: how devices share the work, each planned: data, sharded, tensor, pipeline;
            empty: copies of the model if they fit, otherwise the fastest way that does.
        slow_device: times by which one of several devices is slower; None: all are alike.
        slow_network: of one of several machines, such as 1Gbit; None: all are alike.
        interrupted_every_s: mean seconds after which a machine fails, or a spot machine is taken
            away; None: never.
        deadline_s, budget: limits; with one of them, the answer is within it.
        examples, epochs: of the training, for a watched script.
        noise_scale: gradient noise scale in examples; None: as measured.
        driver_ms: milliseconds for each example of the process that feeds all devices in
            single-process replication; None: a process for each device.
        dir: folder for the result; None: nothing is written.

    Raises:
        UsageError: if something named is not known or not possible.
        DataError: if the source cannot be read, or has no measured step.
    """
    from dataclasses import replace

    from stepladder.records.profile import Provenance

    for option, value in (
        ("--examples", examples),
        ("--epochs", epochs),
        ("--noise-scale", noise_scale),
        ("--driver-ms", driver_ms),
        ("--budget", budget),
        ("--deadline", deadline_s),
        ("--interrupted-every", interrupted_every_s),
        ("--slow-device", slow_device),
    ):
        _require_number(value, option)
    if slow_device is not None and slow_device < 1:
        raise UsageError(
            f"a device that takes {slow_device:g} times as long is not slower than the others",
            where="--slow-device",
            fix="Type a number above 1, such as --slow-device 2.",
        )
    job = job_from(Path(source), examples=examples, epochs=epochs)
    if noise_scale is not None:
        job = replace(job, noise_scale=noise_scale, noise_source=(Provenance.READ, "--noise-scale"))
    question = _question(
        machines=machines,
        hosts=hosts,
        batches=batches,
        all_reduce=all_reduce,
        network=network,
        link=link,
        prices=prices,
        precisions=precisions,
        parallelism=parallelism,
        slow_device=slow_device,
        slow_network=slow_network,
        interrupted_every_s=interrupted_every_s,
        deadline_s=deadline_s,
        budget=budget,
        driver_ms=driver_ms,
    )
    from stepladder.planning.search import plan as search

    found = search(job, question)
    if dir is not None:
        _write(found, Path(dir))
    return found


def _write(found: Plan, folder: Path) -> None:
    from stepladder.api.call import make_folder
    from stepladder.records import to_json
    from stepladder.records.files import write_json
    from stepladder.records.plan import PLAN_FILE
    from stepladder.reporting.pages.plan_page import write_plan_page

    make_folder(folder)
    write_json(folder / PLAN_FILE, to_json(found))
    write_plan_page(folder)


def job_from(path: Path, *, examples: int | None = None, epochs: float | None = None) -> PlannedJob:
    """Return the job of a run folder, of a watched script, or of a YAML file.

    Raises:
        DataError, UsageError: if it has no job.
    """
    from dataclasses import replace

    from stepladder.planning.described import job_of_watch, job_of_yaml
    from stepladder.planning.job import job_of_profile
    from stepladder.records.from_json import read_record
    from stepladder.records.near_paths import did_you_mean_path
    from stepladder.records.watch import WATCH_FILE, WatchReport

    is_yaml = path.suffix.lower() in _YAML
    if not path.exists():
        raise DataError(
            "there is no such file" if is_yaml else "there is no such folder",
            where=str(path),
            fix=did_you_mean_path(
                path,
                "Use a folder written by `stepladder climb` or `watch`, or a YAML file.",
                fits=Path.is_file if is_yaml else Path.is_dir,
            ),
        )
    is_watch = (path / WATCH_FILE).is_file()
    if not is_watch and (examples is not None or epochs is not None):
        raise UsageError(
            "--examples and --epochs are for a watched script; this job has its own",
            where=str(path),
            fix="Leave them out.",
        )
    if is_yaml:
        return job_of_yaml(path)
    if (path / WATCH_FILE).is_file():
        report = read_record(WatchReport, path / WATCH_FILE)
        return job_of_watch(report, examples=examples, epochs=epochs)
    from stepladder.reporting.ladder.climb_data import read_climb

    climb = read_climb(path, [])
    if climb is None or not climb.profiles:
        raise DataError(
            "there is no profile in this folder",
            where=str(path),
            fix="Use a folder of `stepladder climb` or `stepladder watch`, or describe the job in "
            "a YAML file (docs/planner.md).",
        )
    job = job_of_profile(climb.profiles[-1], name=path.name)
    return replace(job, precision=_precision_of(path))


def _precision_of(folder: Path) -> Precision:
    """Return the precision of the recipe in a run folder."""
    from stepladder.config.choices import Precision
    from stepladder.config.load import load_job
    from stepladder.records.run_files import CONFIG_FILE

    file = folder / CONFIG_FILE
    return load_job(file).recipe.device.precision if file.is_file() else Precision.FP32


def _question(
    *,
    machines: Sequence[str],
    hosts: Sequence[int],
    batches: Sequence[int],
    all_reduce: Sequence[str],
    network: str | None,
    link: Path | str | None,
    prices: Path | str | None,
    precisions: Sequence[str],
    parallelism: Sequence[str],
    slow_device: float | None,
    slow_network: str | None,
    interrupted_every_s: float | None,
    deadline_s: float | None,
    budget: float | None,
    driver_ms: float | None,
) -> Question:
    from stepladder.config.choices import Precision
    from stepladder.parallel.divided.choice import Kind
    from stepladder.planning.hardware.connections import connection_named, fitted_connection
    from stepladder.planning.hardware.gpus import GPUS, read_gpus
    from stepladder.planning.hardware.machines import machine_named
    from stepladder.planning.question import Question
    from stepladder.planning.step.step import Driver

    given = None if network is None else connection_named(network)
    inside = None
    if link is not None:
        measured = _collectives(Path(link))
        line = None if given is None else given.bytes_per_s
        if len(set(measured.hosts)) > 1:
            given = fitted_connection(measured, line_bytes_per_s=line)
        else:  # within a machine, nothing is known of the network
            inside = fitted_connection(measured)
    for option, numbers in (("--hosts", hosts), ("--batch", batches)):
        for number in numbers:
            _require_number(number, option)
    if budget is not None and prices is None:
        raise UsageError(
            "a budget needs prices",
            where="--budget",
            fix="Add --prices FILE.csv (its columns are in docs/planner.md).",
        )
    named = {str(one): one for one in Precision}
    chosen = [_named(one, named, "--precision", "a precision") for one in precisions]
    ways = {one.name.lower(): one for one in Kind}
    kinds = [_named(one, ways, "--parallelism", "a kind of parallelism") for one in parallelism]
    gpus = () if prices is None else read_gpus(Path(prices), option="--prices")
    known = tuple(
        machine_named(one, network=given, inside=inside, gpus=gpus or GPUS) for one in machines
    )
    return Question(
        machines=known,
        hosts=tuple(sorted(set(hosts))),
        batches=tuple(sorted(set(batches))),
        all_reduces=tuple(dict.fromkeys(all_reduce)),
        precisions=tuple(dict.fromkeys(chosen)),
        kinds=tuple(dict.fromkeys(kinds)),
        slow_device=1.0 if slow_device is None else slow_device,
        slow_network=None if slow_network is None else _slow_network(slow_network, known),
        interrupted_every_s=interrupted_every_s,
        deadline_s=deadline_s,
        budget=budget,
        gpus=gpus,
        driver=None if driver_ms is None else Driver(example_s=driver_ms / 1e3),
    )


def _named(name: str, values: Mapping[str, T], option: str, what: str) -> T:
    """Return a value by its name.

    Raises:
        UsageError: if there is no such name.
    """
    if name not in values:
        raise UsageError(
            f"{name!r} is not {what}", where=option, fix=f"Type one of: {', '.join(values)}."
        )
    return values[name]


def _slow_network(text: str, machines: Sequence[Machine]) -> Connection:
    """Return the network of the slowest machine.

    Raises:
        UsageError: if that of a machine is not faster.
    """
    from stepladder.planning.hardware.connections import connection_named

    option = "--slow-network"
    found = connection_named(text, option=option, example=f"{option} 1Gbit")
    slowest = min((machine.network for machine in machines), key=lambda one: one.bytes_per_s)
    if found.bytes_per_s > slowest.bytes_per_s:
        raise UsageError(
            f"{text} is not slower than the network of the other machines, {slowest.name}",
            where=option,
            fix=f"Type {option} with a lower speed, or name another --network.",
        )
    return found


def _collectives(path: Path) -> Collectives:
    from stepladder.records.collectives import COLLECTIVES_FILE, Collectives
    from stepladder.records.from_json import read_record

    file = path / COLLECTIVES_FILE if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            "there is no result of bench-collectives",
            where=str(file),
            fix="Run `stepladder bench-collectives` under torchrun on two machines.",
        )
    return read_record(Collectives, file)


def _require_number(value: float | None, option: str) -> None:
    """Check that a number is above 0, and one that a plan can compute with.

    Raises:
        UsageError: if it is not.
    """
    if value is None or 0 < value <= _LARGEST:
        return
    raise UsageError(
        f"{value:g} is not a number above 0, up to {_LARGEST:g}",
        where=option,
        fix=f"Type {option} with such a number.",
    )
