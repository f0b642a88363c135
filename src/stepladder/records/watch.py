"""watch.json: what was seen of a script that knows nothing of us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.climb import NextStep
from stepladder.records.files import Json
from stepladder.records.findings import Finding


class Needs(StrEnum):
    """What it takes to see a fault.

    PASSIVE: looking on while the script runs.
    PROBE: steps of our own, on a copy, after the script's last one.
    """

    PASSIVE = "passive"
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
        why_not: why it was not timed; None: it was.
    """

    name: str
    example_s: float | None = None
    spread: float | None = None
    num_repeats: int = 0
    why_not: str | None = None


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
    facts: Mapping[str, Json] = field(default_factory=dict)
    watcher_error: str | None = None

    @property
    def alarms(self) -> tuple[Finding, ...]:
        """What is to be done something about, the worst first."""
        return tuple(finding for finding in self.findings if finding.is_alarm)
