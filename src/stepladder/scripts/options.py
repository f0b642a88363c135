"""How a script is climbed."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.scripts.metric import Metric


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """How `stepladder climb train.py` tries speed-ups.

    Attributes:
        budget_s: no trial is started after so many seconds; None: no limit.
        min_gain: smallest gain of a step for which a rung is tried and kept.
        num_seeds: runs of each version, where the losses of several seeds are compared.
        num_blocks: pairs of blocks of a trial, 8 or more.
        num_steps: that the script takes in all; None: they are counted where that matters, for at
            most three minutes.
        metric: by which versions that round more are compared at the end of training; None: by
            their losses.
        is_higher_better: of that number.
        max_wait_s: seconds that the script may take to its first step, and for `metric` to its end.
        allows_writes: let the script write where it does, each time that it is run.
        is_fresh: try every rung, whatever earlier climbs found.
        try_all: try every rung, whatever its predicted gain.
        only: names of the rungs that are tried; empty: all.
    """

    budget_s: float | None = None
    min_gain: float = 0.03
    num_seeds: int = 5
    num_blocks: int = 8
    num_steps: int | None = None
    metric: Metric | None = None
    is_higher_better: bool = True
    max_wait_s: float = 600.0
    allows_writes: bool = False
    is_fresh: bool = False
    try_all: bool = False
    only: tuple[str, ...] = ()
