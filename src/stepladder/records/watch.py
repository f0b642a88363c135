"""watch.json: what was seen of a script that knows nothing of us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from stepladder.records.climb import NextStep
from stepladder.records.files import Json
from stepladder.records.findings import Finding

WATCH_FILE: Final = "watch.json"


class Needs(StrEnum):
    """What it takes to see a fault.

    PASSIVE: looking on while the script runs.
    EITHER: looking on sees most of it, the probe the rest.
    PROBE: steps of our own, on a copy, after the script's last one.
    """

    PASSIVE = "passive"
    EITHER = "either"
    PROBE = "probe"


@dataclass(frozen=True, kw_only=True)
class PhaseTime:
    """One part of the time from the script's first steps to its last.

    Attributes:
        name: data_wait, forward, backward, optimizer, validation, checkpoint, unexplained.
        total_s: by the host's clock.
        share: of the whole, in [0, 1].
        device_s: seconds a step by CUDA events, from the sampled steps; None: no GPU.
    """

    name: str
    total_s: float
    share: float
    device_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One way of taking steps that the probe timed on a copy.

    Attributes:
        name: what was changed, such as `as_is` or `mixed_precision`.
        example_s: seconds an example, the median over the repeats.
        spread: largest over smallest repeat.
        num_repeats: how often it was timed.
        why_not: why it was not timed, or its time says nothing; None: it does.
        gain: how many times as fast as steps as they are, by rounds that timed both; None: of those
            themselves, and where it is not known.
    """

    name: str
    example_s: float | None = None
    spread: float | None = None
    num_repeats: int = 0
    why_not: str | None = None
    gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class Clearing:
    """How a script clears gradients, and what that does to those of one batch on a copy.

    Attributes:
        optimizer: the optimiser's class.
        stepped_at: the script's line that steps it.
        how: what clears them, such as `optimizer.zero_grad()`; None: no such call was seen.
        where: the script's line that calls it.
        num_looked: pairs of steps, one after the other, that were looked at.
        num_uncleared: those of them between which gradients stayed what they were.
        num_weights: weights whose gradients were followed.
        uncleared: names of those whose gradients stayed more often than not.
        num_backwards: calls of backward for each step.
        norms: of one batch's gradient in five calls, with weights held and cleared as the script
            does; where some are not cleared, of these alone. Empty: see `why_not`.
        loss: the script's own, of torch.nn.functional; None: another, for which a weighted
            mean of the outputs was taken.
        why_not: why there are no norms.
        took_s: seconds that the test took.
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
    """watch.json: the whole of it.

    Attributes:
        script: as it was given.
        args: what the script was given.
        is_complete: the script ended, in whatever way; False: it still runs, or it was killed.
        ending: how it ended, in words.
        exit_code: of the script; None: it has not ended.
        num_steps: optimiser steps that were seen; where several take turns, those of one of them.
        wall_s: seconds from the script's first line to its end.
        watched_s: seconds that the parts in `times` add up to.
        times: where a step's time goes.
        step_s: mean seconds a step, all of `times` included, what watching took not.
        overhead_s: processor time that watching took, in seconds.
        probe_s: seconds that the probe took after the last step; None: it was not asked for.
        next: the one next step; its gain is an upper bound where `is_bound`.
        is_bound: the gain of `next` is at most that, not measured.
        findings: one for each detector, alarms first.
        not_seen: what could not be looked at, a sentence each.
        loss_steps, loss_values: the loss handed to backward by step, thinned.
        replays: what the probe timed.
        clearing: what the probe found of how gradients are cleared; None: it was not asked for,
            or no two steps in a row were seen.
        facts: batch size, devices, optimisers and versions, by name.
        watcher_error: why the watcher switched itself off; None: it did not.
    """

    script: str
    args: tuple[str, ...] = ()
    is_complete: bool = False
    ending: str = ""
    exit_code: int | None = None
    num_steps: int = 0
    wall_s: float = 0.0
    watched_s: float = 0.0
    times: tuple[PhaseTime, ...] = ()
    step_s: float | None = None
    overhead_s: float = 0.0
    probe_s: float | None = None
    next: NextStep | None = None
    is_bound: bool = True
    findings: tuple[Finding, ...] = ()
    not_seen: tuple[str, ...] = ()
    loss_steps: tuple[int, ...] = ()
    loss_values: tuple[float, ...] = ()
    replays: tuple[Replay, ...] = ()
    clearing: Clearing | None = None
    facts: Mapping[str, Json] = field(default_factory=dict)
    watcher_error: str | None = None

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """What is to be done something about, the worst first."""
        return tuple(finding for finding in self.findings if finding.is_alarm)
