"""Compare two versions of a script over several seeds, by their losses or by their own metric."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepladder.errors import UsageError
from stepladder.records.ladder import Decision
from stepladder.scripts.arm import Arm, Block, ScriptEndedError, opened
from stepladder.scripts.inside.spec import Mode
from stepladder.scripts.learning import Learnt, Losses, compare_seeds
from stepladder.scripts.metric import Metric
from stepladder.scripts.options import ScriptOptions
from stepladder.scripts.settings import Settings
from stepladder.scripts.workplace import Workplace
from stepladder.stats.estimates import mean_estimate
from stepladder.stats.student import t_quantile

_MIN_STEPS: Final = 30
_MAX_STEPS: Final = 200
_LONG_S: Final = 10.0
_SEEDS_APART: Final = 1009
_CONFIDENCE: Final = 0.95
_MARGIN: Final = 0.01


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version of the script.

    Attributes:
        settings: applied from outside.
        instead: texts that replace files, by absolute path.
    """

    settings: Settings
    instead: Mapping[Path, str] | None = None


def num_compared(step_s: float, num_steps: int | None) -> int:
    """Return the steps over which losses of several seeds are compared."""
    wanted = int(min(_MAX_STEPS, max(_MIN_STEPS, _LONG_S / max(step_s, 1e-6))))
    return wanted if num_steps is None else max(1, min(wanted, num_steps - 2))


def compare_over_seeds(
    workplace: Workplace,
    before: Version,
    after: Version,
    *,
    options: ScriptOptions,
    steps: int,
    say: Callable[[str], None],
) -> Learnt:
    """Run both versions with several seeds, and compare what they learn.

    Args:
        steps: of each run, without a metric.
        say: prints progress.

    Raises:
        UsageError: if the script fails, or leaves no metric.
    """
    if options.metric is not None:
        return _compare_metric(
            workplace, before, after, metric=options.metric, options=options, say=say
        )
    firsts: list[Losses] = []
    seconds: list[Losses] = []
    for idx in range(options.num_seeds):
        say(f"comparing losses, seed {idx + 1} of {options.num_seeds} …")
        arms = [
            workplace.arm(one.settings, instead=one.instead, seed=idx * _SEEDS_APART)
            for one in (before, after)
        ]
        with opened(arms, wait_s=options.max_wait_s, what="starting the script twice"):
            try:
                one = arms[0].block(steps, wait_s=options.max_wait_s)
                two = _block_of_changed(arms[1], steps, wait_s=options.max_wait_s)
            except ScriptEndedError:
                if steps >= 2 * _MIN_STEPS:
                    break
                return Learnt(
                    decision=Decision.UNDECIDED,
                    found="",
                    reason=f"with another seed, the script takes fewer than {steps} steps",
                )
        if isinstance(two, Learnt):
            return two
        firsts.append(one.losses)
        seconds.append(two.losses)
    else:
        return compare_seeds(firsts, seconds)
    return compare_over_seeds(  # the script has fewer steps than it seemed
        workplace, before, after, options=options, steps=steps // 2, say=say
    )


def _block_of_changed(arm: Arm, steps: int, *, wait_s: float) -> Block | Learnt:
    """Run a block of steps of the changed version; if it fails, the change is dropped."""
    try:
        return arm.block(steps, wait_s=wait_s)
    except UsageError as error:
        return Learnt(decision=Decision.DROPPED, found="", reason=f"with it, {error.what}")


def _compare_metric(
    workplace: Workplace,
    before: Version,
    after: Version,
    *,
    metric: Metric,
    options: ScriptOptions,
    say: Callable[[str], None],
) -> Learnt:
    """Run both versions to their end with several seeds, and compare their metric."""
    values: tuple[list[float], list[float]] = ([], [])
    for idx in range(options.num_seeds):
        say(f"training to the end, seed {idx + 1} of {options.num_seeds} …")
        for one, found in zip((before, after), values, strict=True):
            began = time.time()
            arm = workplace.arm(
                one.settings, instead=one.instead, seed=idx * _SEEDS_APART, mode=Mode.RUN
            )
            try:
                with arm:
                    arm.wait_for_success(wait_s=options.max_wait_s)
                found.append(
                    metric.value(output=arm.output(), folder=arm.cwd, began=began, env=arm.env)
                )
            except UsageError as error:
                if one is before:
                    raise
                return Learnt(decision=Decision.DROPPED, found="", reason=f"with it, {error.what}")
    return judge_metric(*values, is_higher_better=options.is_higher_better)


def judge_metric(before: list[float], after: list[float], *, is_higher_better: bool) -> Learnt:
    """Return whether a metric is as good: its loss is within the noise of seeds, or a hundredth."""
    sign = 1.0 if is_higher_better else -1.0
    losses = [sign * (one - two) for one, two in zip(before, after, strict=True)]
    mean = mean_estimate(losses)
    half = t_quantile(_CONFIDENCE, len(losses) - 1) * mean.sem
    level = sum(before) / len(before)
    noise = (sum((one - level) ** 2 for one in before) / (len(before) - 1)) ** 0.5
    margin = max(noise, _MARGIN * abs(level))
    found = f"metric {-sign * mean.mean:+.2g} ± {half:.1g} of {level:.4g} ({len(losses)} seeds)"
    if mean.mean + half <= margin:
        return Learnt(decision=Decision.KEPT, found=found)
    if mean.mean - half > margin:
        reason = f"worse: {abs(mean.mean):.2g} on average"
        return Learnt(decision=Decision.DROPPED, found=found, reason=reason)
    reason = f"the metric may be worse by {mean.mean + half:.2g}; seeds differ by {noise:.2g}"
    return Learnt(decision=Decision.UNDECIDED, found=found, reason=reason)
