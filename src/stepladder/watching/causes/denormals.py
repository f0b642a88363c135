"""Denormal floats, with which a processor computes slowly."""

from __future__ import annotations

from typing import Final

from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.seen.costs import DenormalsSeen

_MIN_SHARE: Final = 0.03
_MIN_SLOWER: Final = 1.5  # times, of the products that were timed


def denormal_causes(evidence: Evidence) -> list[Cause]:
    """Name denormal floats, if products of a sample were much faster without them.

    What they cost is bounded as if all operations on a tensor were slower by as much.
    """
    costs = evidence.seen.costs
    parts = (
        (costs.computed, evidence.compute, "that layers receive and return"),
        (costs.updated, evidence.shares.get("optimizer", 0.0), "of gradients and optimizer state"),
    )
    known = [(seen, share * (1 - 1 / seen.slower), words) for seen, share, words in parts]
    share = sum(saved for _, saved, _ in known)
    if evidence.has_gpu or share < _MIN_SHARE:
        return []
    seen, _, words = max(known, key=lambda one: one[1])
    if seen.slower < _MIN_SLOWER:
        return []
    text = (
        f"{_of(seen)} of the values {words} at step {seen.step:,} are below 1.2e-38, with which "
        f"this processor computes slowly: a product of them took {seen.slow_s / seen.fast_s:.1f} "
        f"times as long as with zeros instead, and up to {percent(share)} of the time is due to "
        "that: call torch.set_flush_denormal(True) in the first lines of the script, before any "
        "thread starts"
    )
    replaces = ("fused_optimizer", "foreach") if seen is costs.updated else ()  # as slow in these
    return [Cause(name="flush_denormals", share=share, text=text, is_loose=True, replaces=replaces)]


def _of(seen: DenormalsSeen) -> str:
    return f"{100 * seen.num_denormal / seen.num:.2g} %"
