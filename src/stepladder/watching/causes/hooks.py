"""Hooks that are registered again and again, so that each step calls more of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.seen.costs import HooksSeen, SampleSeen

_MIN_SHARE: Final = 0.03
_MIN_COUNTS: Final = 3  # at which there were more than before
_MIN_HOOKS: Final = 8
_MIN_GROWTH: Final = 2.0


def hook_causes(evidence: Evidence) -> list[Cause]:
    """Name hooks of one function of which a layer or a weight has ever more."""
    found = [one for one in evidence.seen.costs.hooks if one.function and _is_growing(one)]
    samples = [one for one in evidence.samples if any(_is_in(one, hooks) for hooks in found)]
    if not samples:
        return []
    most = max(found, key=lambda one: one.counts[-1][1])
    (first_step, first), (last_step, last) = most.counts[0], most.counts[-1]
    per_step = (last - first) / max(last_step - first_step, 1)
    needed = max(1.0, per_step)  # if each were removed after its step
    mean = max(needed, last - per_step * (last_step - 1) / 2)
    part = evidence.share_of(sum(one.seconds for one in samples))
    share = part * (1 - needed / mean)
    if share < _MIN_SHARE:
        return []
    others = len(found) - 1
    more = f" and {others} other{'s' if others > 1 else ''}" if others else ""
    each = " each" if others else ""
    at = f", which {most.registered_at} registers," if most.registered_at else ""
    at = at or f" ({most.file}:{most.first_line})"
    text = (
        f"`{most.name}`{more} had {first:,} {most.kind}{each} after step {first_step:,} and "
        f"{last:,} after step {last_step:,}, as `{most.function}`{at} is not removed, and "
        f"{percent(part)} of the time is spent in them: remove each hook after its use with "
        "handle.remove(), or register it once before the loop"
    )
    return [
        Cause(
            name="removed_hooks",
            share=share,
            text=text,
            replaces=("constant_steps", "fewer_hooks"),
        )
    ]


def _is_growing(one: HooksSeen) -> bool:
    """Return whether there are more and more, and never fewer, as if none were removed."""
    counts = [num for _, num in one.counts]
    changes = [after - before for before, after in pairwise(counts)]
    return (
        bool(changes)
        and min(changes) >= 0
        and sum(change > 0 for change in changes) >= _MIN_COUNTS
        and counts[-1] >= max(_MIN_HOOKS, _MIN_GROWTH * counts[0])
    )


def _is_in(sample: SampleSeen, hooks: HooksSeen) -> bool:
    """Return whether a sample was taken in a hook."""
    for spot in sample.spots:
        file, _, line = spot.where.rpartition(":")
        is_there = file == hooks.file and line.isdigit()
        if is_there and hooks.first_line <= int(line) <= hooks.last_line:
            return True
    return False
