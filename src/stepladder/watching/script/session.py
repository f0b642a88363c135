"""Watch one script from its first line to its report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from stepladder.records.files import write_unsynced
from stepladder.records.watch import WATCH_FILE, Replay, WatchReport
from stepladder.watching.ranks.place import RankPlace
from stepladder.watching.ranks.seen import RankRecord, RankSeen
from stepladder.watching.script.own_code import OwnCode
from stepladder.watching.script.script import (
    Ender,
    Ending,
    Leaver,
    TorchImport,
    find_script,
    run_script,
)

if TYPE_CHECKING:
    from stepladder.watching.hooks.names import Names
    from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
    from stepladder.watching.probe.causality import Causality
    from stepladder.watching.probe.copying import Copying
    from stepladder.watching.probe.independence import Independence
    from stepladder.watching.probe.mirrored import Mirrored
    from stepladder.watching.probe.own_backwards import OwnBackwards
    from stepladder.watching.probe.probe import Kept
    from stepladder.watching.ranks.record import RankWatch
    from stepladder.watching.seen.seen import Seen
    from stepladder.watching.watcher import Part, Watcher

_WRITE_EVERY_S: Final = 5.0
_WRITE_LATEST_S: Final = 60.0  # the longest interval, whatever writing takes
_WRITE_STEP_S: Final = 20e-6  # limit for writing, per step, of the promised 200 µs
Publish = Callable[[WatchReport], object]


class Session:
    """Watches from `begin` to `finish`, and writes what was seen every few seconds.

    Args:
        script: as given by the user, for the report.
        args: its arguments.
        own: distinguishes its lines from those of libraries.
        folder: where watch.json is written.
        publish: called once with the final report.
        max_steps: number of optimizer steps after which the script is ended; None: no limit.
        is_probing: replay steps on a copy at the end.
        place: of this process among several ranks; None: it is the only one. If there are several,
            `folder` is that of this rank.
    """

    def __init__(
        self,
        script: str,
        args: Sequence[str],
        own: OwnCode,
        folder: Path,
        publish: Publish,
        *,
        max_steps: int | None = None,
        is_probing: bool = False,
        place: RankPlace | None = None,
    ) -> None:
        self.script = script
        self.args = tuple(args)
        self.folder = folder
        self.report: WatchReport | None = None
        self._own = own
        self._publish = publish
        self._max_steps = max_steps
        self._is_probing = is_probing
        self._pid = os.getpid()
        self._began = self._written = perf_counter()
        self._written_step = 0
        self._write_s = 0.0
        self._watcher: Watcher | None = None
        self._kept: Kept | None = None
        self._rank = (
            RankSeen(rank=place.rank, size=place.size, run=place.run) if place is not None else None
        )
        self._after_last: list[Independence | OwnBackwards | Copying | Causality | Mirrored] = []
        self._report_of: Callable[..., WatchReport]
        self._error: str | None = None

    def begin(self) -> None:
        """Install the watchers, once torch is imported. Errors are reported, not raised."""
        try:
            self._begin()
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"

    def _begin(self) -> None:
        from stepladder.watching.hooks.costs.calls import CallWatch
        from stepladder.watching.hooks.costs.stacks import StackWatch
        from stepladder.watching.hooks.costs.waste import WasteWatch
        from stepladder.watching.hooks.inputs.loaders import LoaderWatch
        from stepladder.watching.hooks.inputs.pairs import PairWatch
        from stepladder.watching.hooks.losses.blanks import BlankWatch
        from stepladder.watching.hooks.losses.comparisons import ComparisonWatch
        from stepladder.watching.hooks.losses.losses import LossWatch
        from stepladder.watching.hooks.losses.lost_terms import LostTermWatch
        from stepladder.watching.hooks.losses.margins import MarginWatch
        from stepladder.watching.hooks.losses.predictions import PredictionWatch
        from stepladder.watching.hooks.models.cuts import CutWatch
        from stepladder.watching.hooks.models.dropout import DropoutWatch
        from stepladder.watching.hooks.models.frozen_norms import FrozenNormWatch
        from stepladder.watching.hooks.models.misnamed import MisnamedWatch
        from stepladder.watching.hooks.models.modules import ModuleWatch
        from stepladder.watching.hooks.models.repeated import RepeatedWatch
        from stepladder.watching.hooks.models.softmaxes import SoftmaxWatch
        from stepladder.watching.hooks.models.statistics import StatisticsWatch
        from stepladder.watching.hooks.names import Names
        from stepladder.watching.hooks.steps.around_step import (
            FileWatch,
            PrecisionWatch,
            ScheduleWatch,
        )
        from stepladder.watching.hooks.steps.backwards import BackwardWatch
        from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
        from stepladder.watching.probe.causality import Causality
        from stepladder.watching.probe.copying import Copying
        from stepladder.watching.probe.independence import Independence
        from stepladder.watching.probe.mirrored import Mirrored
        from stepladder.watching.probe.own_backwards import OwnBackwards
        from stepladder.watching.probe.probe import Kept
        from stepladder.watching.report import report_of
        from stepladder.watching.watcher import Watcher

        watcher = self._watcher = Watcher(self._own)
        self._report_of = report_of
        watcher.began = self._began
        names = Names()
        kept = Kept() if self._is_probing else None
        optimizers = OptimizerWatch(names, self._max_steps)
        losses = LossWatch(names, kept=kept)
        cuts = CutWatch(names, optimizers)
        backwards = BackwardWatch(names, optimizers, losses, cuts)
        modules = ModuleWatch(names, optimizers, backwards, kept=kept)
        precision = PrecisionWatch(optimizers, backwards)
        self._kept = kept
        self._after_last = [Independence(), OwnBackwards(), Copying(), Causality(), Mirrored()]
        watcher.start(
            [
                optimizers,
                cuts,
                backwards,
                modules,
                losses,
                losses.averages,
                losses.constants,
                MarginWatch(),
                LostTermWatch(),
                LoaderWatch(),
                DropoutWatch(names),
                ScheduleWatch(optimizers),
                precision,
                FileWatch(),
                *_of_checkpoints(names, optimizers),
                MisnamedWatch(names, optimizers),
                RepeatedWatch(names),
                PredictionWatch(),
                ComparisonWatch(),
                StatisticsWatch(names),
                FrozenNormWatch(names, optimizers),
                *_of_padding(),
                SoftmaxWatch(),
                BlankWatch(),
                PairWatch(),
                *_of_examples(),
                *_of_source_and_shapes(),
                *self._after_last,
                CallWatch(names, optimizers),
                WasteWatch(names, optimizers),
                StackWatch(),
                *((kept,) if kept is not None else ()),
                *self._of_a_rank(names, optimizers),
            ]
        )
        if kept is not None:
            watcher.rest.forbid()  # the probe replays the inputs of the last step
            kept.optimizers = optimizers.live_optimizers
        watcher.on_step.append(self._write_sometimes)

    def _of_a_rank(self, names: Names, optimizers: OptimizerWatch) -> tuple[RankWatch, ...]:
        if self._rank is None:
            return ()
        from stepladder.watching.ranks.record import RankWatch

        return (RankWatch(self._rank, names, optimizers),)

    @property
    def seen(self) -> Seen | None:
        """Return everything that was seen so far; None: torch was not imported."""
        return self._watcher.seen if self._watcher is not None else None

    def finish(self, ending: Ending) -> WatchReport | None:
        """Remove all wrappers and return the report; None in a forked process."""
        if os.getpid() != self._pid or self.report is not None:
            return self.report
        wall_s = perf_counter() - self._began
        with suppress(Exception):  # the script's own exit and exit code take priority
            self.report = self._final(ending, wall_s)
            self._write_rank(self.report, ending)
            self._publish(self.report)
        return self.report

    def _write_rank(self, report: WatchReport, ending: Ending | None = None) -> None:
        """Write what is compared with the other ranks.

        Args:
            ending: None: the script is still running.
        """
        if self._rank is None:
            return
        from stepladder.watching.ranks.files import rank_report, write_rank

        signal_number = ending.signal_number if ending is not None else 0
        is_complete = ending is not None
        its = rank_report(report, self._rank, signal_number=signal_number, is_complete=is_complete)
        write_rank(self.folder, report, RankRecord(report=its, seen=self._rank))

    def _final(self, ending: Ending, wall_s: float) -> WatchReport:
        from stepladder.watching.report import unwatched

        try:
            report = self._watched(ending, wall_s) if self._watcher is not None else None
        except Exception as error:  # say so, and keep how the script ended
            report, self._error = None, f"{type(error).__name__}: {error}"
        if report is None:
            report = unwatched(
                self.script,
                self.args,
                ending=ending.words,
                exit_code=ending.exit_code,
                wall_s=wall_s,
                error=self._error,
            )
        return self._with_crash(report, ending)

    def _watched(self, ending: Ending, wall_s: float) -> WatchReport:
        watcher = self._watcher
        assert watcher is not None
        watcher.stop()
        for one in self._after_last if not ending.signal_number else ():
            one.replay()
        probe_s: float | None = None
        replays: tuple[Replay, ...] = ()
        if self._kept is not None and not ending.signal_number:
            began = perf_counter()
            replays = self._kept.replay()
            probe_s = perf_counter() - began
        return self._report_of(
            watcher,
            script=self.script,
            args=self.args,
            ending=ending.words,
            exit_code=ending.exit_code,
            is_complete=True,
            probe_s=probe_s,
            replays=replays,
            wall_s=wall_s,
        )

    def _with_crash(self, report: WatchReport, ending: Ending) -> WatchReport:
        where = self._own.innermost(ending.frames)
        return replace(report, crash=ending.crash, crashed_at=where)

    def _write_sometimes(self) -> None:
        """Write what was seen so far, in case the script is killed.

        That is every five seconds if steps are fast. If they are slow, writing that often would be
        most of the overhead: then the interval is longer.
        """
        watcher = self._watcher
        if watcher is not None and watcher.step == 1:  # importing and loading are not counted
            self._written = watcher.phases.ended
            return
        if watcher is None or (since_s := watcher.phases.ended - self._written) < _WRITE_EVERY_S:
            return
        num_steps = watcher.step - self._written_step
        if num_steps * _WRITE_STEP_S < self._write_s and since_s < _WRITE_LATEST_S:
            return
        began = perf_counter()
        report = self._report_of(
            watcher, script=self.script, args=self.args, ending="it is still running, or was killed"
        )
        if self._rank is None:
            write_unsynced(self.folder / WATCH_FILE, report)
        else:
            self._write_rank(report)
        self._written, self._written_step = perf_counter(), watcher.step
        self._write_s = self._written - began


def _of_checkpoints(names: Names, optimizers: OptimizerWatch) -> tuple[Part, ...]:
    """Return the parts that read what is saved and loaded."""
    from stepladder.watching.hooks.models.loading import LoadWatch
    from stepladder.watching.hooks.models.restored import RestoreWatch
    from stepladder.watching.hooks.models.states import StateWatch

    return StateWatch(), LoadWatch(names, optimizers), RestoreWatch(optimizers)


def _of_padding() -> tuple[Part, ...]:
    """Return the parts that read padding."""
    from stepladder.watching.hooks.inputs.long_padding import LongPaddingWatch
    from stepladder.watching.hooks.inputs.packed_ends import PackedEndWatch
    from stepladder.watching.hooks.inputs.padding import PaddingWatch

    return PaddingWatch(), PackedEndWatch(), LongPaddingWatch()


def _of_source_and_shapes() -> tuple[Part, ...]:
    """Return the parts that read targets, counters and options in the source, and first shapes."""
    from stepladder.watching.hooks.losses.bootstraps import BootstrapWatch
    from stepladder.watching.hooks.models.reshapes import ReshapeWatch
    from stepladder.watching.hooks.models.slips import SlipWatch
    from stepladder.watching.hooks.steps.options import OptionWatch
    from stepladder.watching.hooks.steps.patience import PatienceWatch

    return BootstrapWatch(), PatienceWatch(), ReshapeWatch(), OptionWatch(), SlipWatch()


def _of_examples() -> list[Part]:
    """Return the parts that read examples."""
    from stepladder.watching.hooks.inputs.examples import ExampleWatch
    from stepladder.watching.hooks.inputs.masks import MaskWatch
    from stepladder.watching.hooks.inputs.own_scales import OwnScaleWatch
    from stepladder.watching.hooks.inputs.pixels import PixelWatch
    from stepladder.watching.hooks.inputs.repeats import RepeatWatch
    from stepladder.watching.hooks.inputs.shifts import ShiftWatch
    from stepladder.watching.hooks.inputs.stored import StoredWatch
    from stepladder.watching.hooks.inputs.whole_labels import WholeLabelWatch

    readers: list[Part] = [ExampleWatch(), MaskWatch(), ShiftWatch(), PixelWatch()]
    return [*readers, OwnScaleWatch(), WholeLabelWatch(), StoredWatch(), RepeatWatch()]


def watch_script(
    script: str,
    args: Sequence[str],
    *,
    folder: Path,
    publish: Publish,
    is_module: bool = False,
    max_steps: int | None = None,
    is_probing: bool = False,
    place: RankPlace | None = None,
) -> Ending:
    """Run a script as `__main__` in this process, and watch it.

    Returns:
        How it ended; its exit code is to be passed on.

    Raises:
        UsageError: if the script does not exist.
    """
    file = find_script(script, is_module=is_module)
    own = OwnCode(file.parent, None if is_module else str(Path.cwd() / script))
    session = Session(
        script,
        args,
        own,
        folder,
        publish,
        max_steps=max_steps,
        is_probing=is_probing,
        place=place,
    )
    pid = os.getpid()

    def end_by_signal(number: int) -> None:
        words = f"signal {number} ended it"
        session.finish(Ending(exit_code=128 + number, words=words, signal_number=number))

    def finish(ending: Ending) -> None:
        if os.getpid() == pid:
            with suppress(Exception):  # the script may have closed it
                sys.stdout.flush()
            session.finish(ending)

    ender = Ender(end_by_signal)
    with TorchImport(session.begin), ender, Leaver(session.finish):
        ending = run_script(script, args, is_module=is_module)
        if place is not None:  # torchrun ends this rank at once if another one has died
            with ender.held():
                finish(ending)
    finish(ending)
    return ending
