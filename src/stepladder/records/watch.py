"""watch.json: observations of an unmodified training script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from stepladder.records.climb import NextStep
from stepladder.records.files import Json
from stepladder.records.findings import Finding
from stepladder.records.ladder import Interval
from stepladder.records.ranks import RankReport

WATCH_FILE: Final = "watch.json"


class Needs(StrEnum):
    """What is needed to detect a fault.

    PASSIVE: observing the script while it runs.
    EITHER: mostly observation, completed by the probe.
    PROBE: extra steps on a copy, after the script's last step.
    """

    PASSIVE = "passive"
    EITHER = "either"
    PROBE = "probe"


@dataclass(frozen=True, kw_only=True)
class PhaseTime:
    """One part of the time from the script's first step to its last.

    Attributes:
        name: data_wait, forward, backward, optimizer, validation, checkpoint, own_code (lines of
            the script between these), unexplained.
        total_s: seconds of wall time.
        share: fraction of the total, in [0, 1].
        device_s: seconds per step by CUDA events, from the sampled steps; None: no GPU.
    """

    name: str
    total_s: float
    share: float
    device_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A variant of the training step that the probe timed on a copy.

    Attributes:
        name: the variant, such as `as_is` or `mixed_precision`.
        example_s: seconds per example, the median over the repeats.
        spread: largest divided by smallest repeat.
        num_repeats: number of timings.
        why_not: why it was not timed or its time is not usable; None: it is.
        gain: speed-up over the unmodified step, from rounds that timed both; None: for that step
            itself, or not known.
    """

    name: str
    example_s: float | None = None
    spread: float | None = None
    num_repeats: int = 0
    why_not: str | None = None
    gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class Clearing:
    """How a script clears gradients, and the effect on the gradient of one batch on a copy.

    Attributes:
        optimizer: the optimizer's class.
        stepped_at: the script's line that steps it.
        how: the call that clears them, such as `optimizer.zero_grad()`; None: there was none.
        where: the script's line of that call.
        num_looked: pairs of consecutive steps that were checked.
        num_uncleared: pairs between which gradients were not cleared.
        num_weights: weights whose gradients were checked.
        uncleared: names of weights whose gradients were not cleared in most pairs.
        num_backwards: calls of backward per step.
        norms: norm of one batch's gradient in five calls, with fixed weights, cleared as in the
            script; if some gradients are not cleared, only of those. Empty: see `why_not`.
        loss: the script's loss in torch.nn.functional; None: another one, replaced by a weighted
            mean of the outputs.
        why_not: why there are no norms.
        took_s: duration of the test in seconds.
    """

    optimizer: str
    stepped_at: str | None = None
    how: str | None = None
    where: str | None = None
    num_looked: int = 0
    num_uncleared: int = 0
    num_weights: int = 0
    uncleared: tuple[str, ...] = ()
    num_backwards: int = 1
    norms: tuple[float, ...] = ()
    loss: str | None = None
    why_not: str | None = None
    took_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WatchReport:
    """watch.json: the report of `stepladder watch`.

    Attributes:
        script: path of the script, as given by the user.
        args: arguments of the script.
        is_complete: whether the script has ended; False: it is still running, or was killed.
        ending: how it ended, in words.
        exit_code: exit code of the script; None: it has not ended.
        crash: type and message of the exception that ended the script; None: none did.
        crashed_at: the script's line, such as `train.py:12`, where it was raised or that led to it.
        num_steps: observed optimizer steps; with several optimizers, those of one of them.
        wall_s: seconds from the script's first line to its end.
        watched_s: total seconds of the parts in `times`.
        times: breakdown of a step's time.
        step_s: mean seconds per step, including all of `times`, without the watcher's overhead.
        block_s: mean seconds per step in up to 64 equal blocks of steps, in order, for the spread;
            with the overhead.
        overhead_s: CPU seconds of the watcher.
        probe_s: seconds of the probe after the last step; None: it was off.
        next: the recommended next step; its gain is an upper bound if `is_bound`.
        is_bound: whether the gain of `next` is an upper bound, not measured.
        others: further steps, by their bound.
        findings: one for each detector, alarms first.
        not_seen: what could not be observed, one sentence each.
        loss_steps, loss_values: the loss passed to backward by step, subsampled.
        replays: variants that the probe timed.
        clearing: how gradients are cleared according to the probe; None: it was off, or there were
            no two consecutive steps.
        facts: batch size, devices, optimizers and versions, by name.
        watcher_error: why the watcher was disabled after an error of its own; None: it was not.
        ranks: one for each process of a script with several; the rest of the report is then that of
            rank 0, with the findings of all. Empty: a single process.
        dead_rank: the rank that died first; None: none did.
    """

    script: str
    args: tuple[str, ...] = ()
    is_complete: bool = False
    ending: str = ""
    exit_code: int | None = None
    crash: str | None = None
    crashed_at: str | None = None
    num_steps: int = 0
    wall_s: float = 0.0
    watched_s: float = 0.0
    times: tuple[PhaseTime, ...] = ()
    step_s: float | None = None
    block_s: tuple[float, ...] = ()
    overhead_s: float = 0.0
    probe_s: float | None = None
    next: NextStep | None = None
    is_bound: bool = True
    others: tuple[NextStep, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_seen: tuple[str, ...] = ()
    loss_steps: tuple[int, ...] = ()
    loss_values: tuple[float, ...] = ()
    replays: tuple[Replay, ...] = ()
    clearing: Clearing | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)
    watcher_error: str | None = None
    ranks: tuple[RankReport, ...] = ()
    dead_rank: int | None = None

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """The findings that failed or warned, the worst first."""
        return tuple(finding for finding in self.findings if finding.is_alarm)


@dataclass(frozen=True, kw_only=True)
class Regression:
    """What became worse in a script since an earlier run.

    Attributes:
        slower: seconds of a step over those of the earlier run; None: not comparable.
        allowed: the largest ratio that is accepted.
        is_slower: the ratio is above that, beyond noise.
        new_faults: names of findings that the earlier run did not have.
        why_not: why the times were not compared; None: they were.
    """

    slower: Interval | None
    allowed: float
    is_slower: bool
    new_faults: tuple[str, ...]
    why_not: str | None = None

    @property
    def is_worse(self) -> bool:
        """Whether the run is to be refused."""
        return self.is_slower or bool(self.new_faults)
