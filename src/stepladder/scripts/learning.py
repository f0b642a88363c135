"""Compare what two runs of a script learn, by the losses of their steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stepladder.records.ladder import Decision, Exactness
from stepladder.stats.estimates import mean_estimate
from stepladder.stats.student import t_quantile

Losses = Sequence[float | None]
_FIRST: Final = 3
"""Steps in which a rounding error cannot have grown yet."""
_ROUNDING: Final = 1e-3
_SMALL: Final = 0.01
"""Share of the loss at the start that counts as no difference."""
_CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """Whether a change learns as well.

    Attributes:
        decision: kept: as well; dropped: worse; undecided: not known.
        found: what was compared, for a table cell.
        reason: why it is not kept; empty if it is.
    """

    decision: Decision
    found: str
    reason: str = ""


def same(before: Losses, after: Losses) -> bool:
    """Return True if all losses are known and equal bit for bit."""
    return bool(before) and None not in before and list(before) == list(after)


def compare_one(before: Losses, after: Losses, exactness: Exactness) -> Learnt:
    """Compare one run of each, with the same seed; for changes that do at most round."""
    pairs = [(b, a) for b, a in zip(before, after, strict=False) if b is not None and a is not None]
    if not pairs:
        return Learnt(
            decision=Decision.UNDECIDED,
            found="",
            reason="the script calls backward on nothing that could be compared",
        )
    if all(b == a for b, a in pairs):
        return Learnt(decision=Decision.KEPT, found="equal")
    at, (b, a) = next((at, pair) for at, pair in enumerate(pairs) if pair[0] != pair[1])
    if exactness is Exactness.BITWISE:
        return Learnt(
            decision=Decision.DROPPED,
            found="",
            reason=f"the loss of step {at + 2} differs: {b:.6g} and {a:.6g}",
        )
    if not math.isfinite(a) and math.isfinite(b):
        return Learnt(decision=Decision.DROPPED, found="", reason="the loss is not finite")
    first = max((_relative(*pair) for pair in pairs[:_FIRST]), default=0.0)
    if first > _ROUNDING:
        return Learnt(
            decision=Decision.DROPPED,
            found="",
            reason=f"the losses of the first steps differ by {first:.1g}, more than rounding",
        )
    return Learnt(decision=Decision.KEPT, found=f"same to {_power(first)}")


def compare_seeds(before: Sequence[Losses], after: Sequence[Losses]) -> Learnt:
    """Compare runs with several seeds, paired, by the mean loss in the second half of the steps.

    A change is as good if the upper bound of the mean difference is at most the noise between
    seeds, or a hundredth of the loss in the first steps.
    """
    firsts = [_late(losses) for losses in before]
    seconds = [_late(losses) for losses in after]
    if None in firsts or None in seconds:
        return Learnt(
            decision=Decision.UNDECIDED, found="", reason="not all losses are known or finite"
        )
    ones = [value for value in firsts if value is not None]
    twos = [value for value in seconds if value is not None]
    differences = [two - one for one, two in zip(ones, twos, strict=True)]
    mean = mean_estimate(differences)
    half = t_quantile(_CONFIDENCE, len(differences) - 1) * mean.sem
    level = sum(ones) / len(ones)
    noise = math.sqrt(sum((one - level) ** 2 for one in ones) / (len(ones) - 1))
    starts = [value for losses in before for value in losses[:_FIRST] if value is not None]
    margin = max(noise, _SMALL * abs(sum(starts) / len(starts)))
    found = f"loss {mean.mean:+.2g} ± {half:.1g} of {level:.3g} ({len(ones)} seeds)"
    if mean.mean + half <= margin:
        return Learnt(decision=Decision.KEPT, found=found)
    if mean.mean - half > margin:
        return Learnt(
            decision=Decision.DROPPED,
            found=found,
            reason=f"worse: the loss rises by {mean.mean:.2g}",
        )
    return Learnt(
        decision=Decision.UNDECIDED,
        found=found,
        reason=f"the loss may rise by {mean.mean + half:.2g}, more than seeds differ ({noise:.2g})",
    )


def _late(losses: Losses) -> float | None:
    """Return the mean loss of the second half of the steps; None if one is unknown."""
    late = losses[len(losses) // 2 :]
    known = [value for value in late if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known and len(known) == len(late) else None


def _relative(before: float, after: float) -> float:
    return abs(after - before) / max(abs(before), 1e-12)


def _power(value: float) -> str:
    return "rounding" if value == 0 else f"1e{math.ceil(math.log10(value)):d}"
