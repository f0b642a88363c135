"""Run the commands `climb` and `advise` on a job."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil
import torch

from stepladder.config.choices import ClimbAim, TrainMode, Where
from stepladder.config.options import JobConfig
from stepladder.data.reading.examples import ArrivalSource
from stepladder.errors import DataError, InterruptedRun, StepladderError, UsageError
from stepladder.ladder.accuracy.remedies import AccuracyClimb, FitRecipe
from stepladder.ladder.advise import Advice, advice_text, advise_on
from stepladder.ladder.climb import Climb
from stepladder.ladder.keys import machine_key, options_key, sources_key, task_facts
from stepladder.ladder.lab import Lab
from stepladder.ladder.ledger import LEDGER_FILE, Ledger, trials_of
from stepladder.ladder.limits.budget import budget_warning
from stepladder.ladder.revisit import anew_words, more_to_try
from stepladder.ladder.scaling import Layout, measure_scaling
from stepladder.ladder.summary.climb_summary import end_line
from stepladder.ladder.summary.final_training import Launch, summary_in, train_kept
from stepladder.ladder.summary.machine import machine_line
from stepladder.ladder.summary.result import (
    CLIMB_FILE,
    measure_baseline,
    refuse_end_by_clock,
    result_of,
    with_accuracy,
)
from stepladder.ladder.summary.wording import (
    baseline_row,
    header,
    not_here_row,
    row,
    row_json,
    time_range,
)
from stepladder.ladder.timing.epoch_range import time_bounds_s
from stepladder.machine import Usage, cores_missing_since, disk_free_bytes
from stepladder.machine.activity import doing
from stepladder.parallel.fleet import Fleet
from stepladder.records import Json, read_json, to_json, write_json
from stepladder.records.climb import Baseline, ClimbSummary, PhaseLoad
from stepladder.records.from_json import from_json
from stepladder.records.ladder import Decision, Trial
from stepladder.records.profile import Provenance
from stepladder.records.scaling import SCALING_FILE, Scaling
from stepladder.rungs import GPUS, REMEDIES, RUNGS, Rung, read_gpus, rungs_with
from stepladder.task.contract import Task
from stepladder.training.features.feature_task import features_folder
from stepladder.training.output.display import Display
from stepladder.training.setup.automatic import settled
from stepladder.training.setup.build import Sources, open_device, resolve_auto, use_threads
from stepladder.training.setup.run_folder import RunFolder, beside
from stepladder.training.setup.table_version import name_table_version, open_at_version

_CACHE: Final = ".ladder-"
_SCALING_S: Final = 60.0  # for each number of devices
_CLIMBS: Final = {
    ClimbAim.TIME: Climb,
    ClimbAim.ACCURACY: AccuracyClimb,
    ClimbAim.FIT: FitRecipe,
}
_OTHER_GROUND: Final = (
    "the ladder's options, the code or the machine have changed since the last climb, so its "
    "verdicts are not reused"
)


def climb(
    job: JobConfig,
    task: Task,
    *,
    task_name: str,
    display: Display,
    is_fresh: bool = False,
    may_overwrite: bool = False,
    check: Callable[[], None] | None = None,
    launch: Launch | None = None,
    fleet: Fleet | None = None,
) -> dict[str, Any]:
    """Try the rungs on a job, train with those that are kept, and write climb.json.

    Args:
        launch: trains a job on several devices; None: the climb uses only one.
        fleet: other hosts, under a launcher; None: this machine is alone.
        check: called once the folder is locked, to check the job; may raise.

    Returns:
        The content of climb.json.

    Raises:
        UsageError: if the job or the folder cannot be climbed.
        StepladderError: if the measured times do not add up, or as `train` raises.
        InterruptedRun: after a signal; verdicts are saved, and the same command resumes.
    """
    ledger = Ledger(job.run.dir)
    device, sources, job, key = _open(
        job, task, task_name, ledger, goes_on=not (is_fresh or may_overwrite)
    )
    folder = RunFolder(job.run.dir)
    with ExitStack() as until_end:
        with folder.lock():
            if not may_overwrite:
                _refuse_other_run(folder, ledger, key)
            _remove_left(folder.path)
            lab = until_end.enter_context(
                _lab(job, task, sources, device, job.run.dir, fleet=fleet)
            )
            is_again = ledger.job() == key and not is_fresh
            goes_on = ledger.begin(
                job=key,
                machine=machine_key(),
                options=options_key(job.ladder),
                commit=lab.commit,
                is_fresh=is_fresh,
                where=job.recipe.data.where,
                table_version=job.recipe.data.table_version,
            )
            done = _finished(folder.path) if goes_on else None
            if not goes_on:  # it belongs to the previous climb
                (folder.path / CLIMB_FILE).unlink(missing_ok=True)
            if is_again and not goes_on:
                display.message(_OTHER_GROUND)
            if done is not None:
                left = more_to_try(done, list(trials_of(ledger.path)), job.ladder)
                if left is None:
                    what = f"{folder.path} already holds a finished climb of this job"
                    display.message(f"{what}; {anew_words(done)}.")
                    _show_end(done, display)
                    return done
                display.message(f"resuming with {left}")
            with _ending_signals(folder.path, again=_same_command(is_fresh=is_fresh)):
                started = time.monotonic()
                usage = Usage.now()
                if check is not None:
                    check()
                climbing = _climb(lab, ledger, display, key, reads_ledger=not is_fresh)
                climbing.disk = _least_room(job.run.dir, features_folder(job, task))
                try:
                    baseline = _show_baseline(climbing, display)
                    recipe = climbing.run()
                    display.table(not_here_row(climbing.trials), {})
                finally:
                    ledger.spent(time.monotonic() - started)
                loads = [_load("trials", usage)]
        display.message(f"training with the kept rungs{_beyond_budget(climbing)} …")
        again = _same_command(is_fresh=is_fresh, may_overwrite=may_overwrite)
        usage = Usage.now()
        found_s = train_kept(
            replace(job, recipe=recipe),
            task,
            task_name=task_name,
            display=display,
            is_new=is_fresh or may_overwrite,
            ledger=ledger,
            again=again,
            launch=launch,
        )
        loads.append(_load("training", usage))
        display.message("timing the original job and the result in turn …")
        with _ending_signals(folder.path, again=again), doing("timing both in turn"):
            summary = result_of(
                lab,
                climbing,
                baseline,
                folder.path,
                climb_s=ledger.spent_s(),
                found_features_s=found_s,
                loads=tuple(loads),
            )
    result: dict[str, Any] = to_json(summary)
    write_json(folder.path / CLIMB_FILE, result)
    _show_end(result, display)
    return result


def _show_end(climb: Mapping[str, Any], display: Display) -> None:
    """Show the result of a climb, and the machine on which it was measured."""
    display.table(end_line(climb), {"event": "end", **climb})
    display.table(machine_line(climb), {})


def _load(name: str, start: Usage) -> PhaseLoad:
    """Return how much of the machine other processes used since the start of a phase."""
    seconds = time.monotonic() - start.wall_s
    return PhaseLoad(name=name, seconds=seconds, cores_missing=cores_missing_since(start))


def advise(job: JobConfig, task: Task, *, task_name: str, display: Display) -> tuple[Advice, str]:
    """Measure a job and choose the next rung, without trying it or writing a run.

    Returns:
        The advice, and its text.
    """
    device, sources, job = _prepare(job, task)
    with (
        tempfile.TemporaryDirectory(prefix="stepladder-advise-") as folder,
        _lab(job, task, sources, device, Path(folder)) as lab,
    ):
        climbing = _climb(lab, Ledger(Path(folder)), display, task_name, reads_ledger=False)
        climbing.disk = _least_room(job.run.dir, features_folder(job, task))
        climbing.measure()
        climbing.measure_devices()
        profile = climbing.profile
        if lab.expected_epochs(job.recipe)[2] is not Provenance.ASSUMED:
            refuse_end_by_clock(job.recipe, profile.time)
        advice = advise_on(profile, job.recipe, job.ladder, rungs=climbing.rungs)
    return advice, advice_text(advice, profile)


def scale(
    job: JobConfig,
    task: Task,
    *,
    name: str,
    counts: Sequence[int],
    layouts: Sequence[Layout],
    display: Display,
) -> Scaling:
    """Measure a job on several numbers of devices, and write scaling.json into its folder.

    Args:
        name: of the job, as it is shown.
        counts, layouts: see `measure_scaling`.
    """
    device, sources, job = _prepare(job, task)
    job.run.dir.mkdir(parents=True, exist_ok=True)
    budget_s = job.ladder.budget_s
    with _lab(job, task, sources, device, job.run.dir) as lab, doing("measuring several devices"):
        found = measure_scaling(
            job,
            job.recipe,
            lab.material(job.recipe).task,
            name=name,
            counts=counts,
            layouts=layouts,
            device=device,
            folder=lab.cache,
            copies=lab.copies,
            budget_s=_SCALING_S if budget_s is None else budget_s / len({1, *counts}),
            message=display.message,
        )
    write_json(job.run.dir / SCALING_FILE, to_json(found))
    return found


def _open(
    job: JobConfig, task: Task, task_name: str, ledger: Ledger, *, goes_on: bool
) -> tuple[torch.device, Sources, JobConfig, str]:
    """Prepare a job and return its key; a job that resumes reads the same version of its table."""
    data = job.recipe.data
    version = ledger.table_version() if goes_on and data.table_version is None else None
    if version is not None:
        at = replace(job, recipe=replace(job.recipe, data=replace(data, table_version=version)))
        with suppress(StepladderError):  # it may be the ledger of another job
            found = _keyed(at, task, task_name, ledger)
            if found[-1] == ledger.job():
                return found
    return _keyed(job, task, task_name, ledger)


def _keyed(
    job: JobConfig, task: Task, task_name: str, ledger: Ledger
) -> tuple[torch.device, Sources, JobConfig, str]:
    is_auto = job.recipe.data.where is Where.AUTO
    device, sources, job = _prepare(job, task)
    facts = task_facts(task, job.recipe)
    job = _as_before(job, sources, ledger, task_name, facts) if is_auto else job
    return device, sources, job, sources_key(task_name, job.recipe, sources, facts)


def _prepare(job: JobConfig, task: Task) -> tuple[torch.device, Sources, JobConfig]:
    if job.recipe.train is TrainMode.HEAD_THEN_ALL:
        raise UsageError(
            "train: head_then_all means two trainings, first of the head and then of all weights, "
            "but a climb can speed up only one",
            where="train",
            fix="Climb once with --train head, then once with --train all.",
        )
    _rungs(job)  # raises now if the list of prices cannot be read
    device = open_device(job.recipe)
    use_threads(job.recipe)
    sources = open_at_version(task, job.recipe.data.table_version)
    for source in vars(sources).values():
        if isinstance(source, ArrivalSource):
            raise UsageError(
                "a climb cannot train on an IterableDataset, because its trials read examples by "
                "their index",
                where=type(task).__name__,
                fix="Return a Dataset with __getitem__ from data() of the Task, or train without a "
                "climb: stepladder train",
            )
    recipe = settled(job.recipe, task, sources, device=device, folder=features_folder(job, task))
    job = resolve_auto(replace(job, recipe=recipe), sources)
    return device, sources, name_table_version(job, sources)


def _as_before(
    job: JobConfig, sources: Sources, ledger: Ledger, task_name: str, facts: Mapping[str, Json]
) -> JobConfig:
    """Hold pictures where the earlier climb of this job in the same folder did."""
    where = ledger.where()
    if where is None:
        return job
    data = replace(job.recipe.data, where=where)
    before = replace(job, recipe=replace(job.recipe, data=data))
    return before if sources_key(task_name, before.recipe, sources, facts) == ledger.job() else job


@contextmanager
def _lab(
    job: JobConfig,
    task: Task,
    sources: Sources,
    device: torch.device,
    folder: Path,
    *,
    fleet: Fleet | None = None,
) -> Iterator[Lab]:
    """Open a lab with its artefacts in a folder; they are removed when it closes."""
    with (
        tempfile.TemporaryDirectory(
            prefix=_CACHE,
            suffix=f".{os.getpid()}.tmp",  # as for a save, so that `clean` knows the process
            dir=folder,
        ) as cache,
        Lab(
            job=job,
            task=task,
            sources=sources,
            device=device,
            cache=Path(cache),
            seed=job.recipe.seed,
            fleet=fleet,
        ) as lab,
    ):
        yield lab


def _least_room(*folders: Path) -> Path:
    """Return the folder whose disk has the least free space, or its closest existing parent."""
    there = [next(p for p in (f.absolute(), *f.absolute().parents) if p.is_dir()) for f in folders]
    return min(there, key=disk_free_bytes)


def _remove_left(folder: Path) -> None:
    """Remove cache folders of killed climbs; requires the lock.

    The last but one part of a name is the process id. Our own id belonged to an earlier process.
    """
    for path in folder.glob(f"{_CACHE}*"):
        pid = path.name.split(".")[-2]
        if not pid.isdigit() or int(pid) == os.getpid() or not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _climb(lab: Lab, ledger: Ledger, display: Display, key: str, *, reads_ledger: bool) -> Climb:
    def show(trial: Trial) -> None:
        is_folded = trial.verdict.decision is Decision.NOT_HERE  # in one line at the end
        line = "" if is_folded else row(trial)
        display.table(line, {"event": "trial", **row_json(trial)})

    fleet = lab.fleet
    machines = 1 if fleet is None else max(1, fleet.size // fleet.place.local_size)
    return _CLIMBS[lab.job.ladder.aim](
        lab=lab,
        ledger=ledger,
        display=display,
        show=show,
        job=key,
        machine=machine_key(),
        recipe=lab.job.recipe,
        rungs=_rungs(lab.job, machines=machines),
        reads_ledger=reads_ledger,
    )


def _rungs(job: JobConfig, *, machines: int = 1) -> tuple[Rung, ...]:
    """Return the rungs for the job's aim, with the user's list of GPUs and network."""
    if job.ladder.aim is not ClimbAim.TIME:
        return REMEDIES
    prices, network_gbit_s = job.ladder.prices, job.ladder.network_gbit_s
    if prices is None and network_gbit_s is None and machines == 1:
        return RUNGS
    gpus = GPUS if prices is None else read_gpus(prices)
    return rungs_with(gpus, network_gbit_s=network_gbit_s, machines=machines)


def _show_baseline(climbing: Climb, display: Display) -> Baseline:
    too_short = budget_warning(climbing.lab, time_bounds_s(climbing.measure()))
    if too_short is not None:
        display.message(too_short)
    earlier = climbing.ledger.find_baseline() if climbing.reads_ledger else None
    with doing("timing the original job"):
        baseline = earlier or measure_baseline(climbing)
        if earlier is None:
            baseline = with_accuracy(climbing, baseline)
    if earlier is None:
        climbing.ledger.baseline(baseline)
    display.table(header(), {})
    values = to_json(baseline)
    display.table(baseline_row(values), {"event": "baseline", **values})
    return baseline


def _beyond_budget(climbing: Climb) -> str:
    """Return a remark on the time of the final training if the budget reserves less for it."""
    bounds_s = time_bounds_s(climbing.profile)
    if climbing.options.budget_s is None or bounds_s[1] <= climbing.lab.reserve_s:
        return ""
    return f" (about {time_range(*bounds_s)}; this may exceed the budget)"


def _refuse_other_run(folder: RunFolder, ledger: Ledger, job: str) -> None:
    if not folder.holds_run or ledger.job() == job:
        return
    raise UsageError(
        "the folder contains another run, which this climb would replace",
        where=str(folder.path),
        why="That run is not a climb, or was a climb with other options, or with other code or "
        "data of the Task. (A Task that splits at random needs a fixed seed.)",
        fix=f"Add --overwrite to replace it, or {beside(folder.path)} to keep both.",
    )


def _finished(folder: Path) -> dict[str, Any] | None:
    """Return the content of climb.json if its training is finished; None if it cannot be read."""
    try:
        done: dict[str, Any] = read_json(folder / CLIMB_FILE)
        from_json(ClimbSummary, done)
        summary = summary_in(folder)
    except DataError:
        return None
    return done if summary is not None and summary.get("status") == "finished" else None


def _same_command(*, is_fresh: bool, may_overwrite: bool = False) -> str:
    """Return which command resumes after a signal: without flags that start from scratch."""
    flags = [name for name, has in (("fresh", is_fresh), ("overwrite", may_overwrite)) if has]
    without = " without " + " and ".join(f"--{name}" for name in flags) if flags else ""
    return f"The same command{without} resumes from there."


@contextmanager
def _ending_signals(folder: Path, *, again: str) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into InterruptedRun: the ledger already holds every verdict.

    Args:
        again: what to type to resume.
    """
    number = signal.SIGINT

    def end(caught: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal number
        number = signal.Signals(caught)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if is_main else None
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRun(
            f"{number.name} stopped the climb; all verdicts so far are in {folder / LEDGER_FILE}",
            signal_number=int(number),
            fix=again,
        ) from None
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
