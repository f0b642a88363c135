"""Faults of speed that the comparison of ranks shows: one rank is slow, or the network is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from stepladder.records.ranks import RankReport
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.ranks.faults import ONE_PROCESS
from stepladder.watching.ranks.seen import Ranks

_MIN_SAMPLES: Final = 8  # steps
_MOSTLY: Final = 0.8  # of them
_CLEARLY: Final = 0.2  # of a step
_LEAST_S: Final = 4e-3  # less may be the operating system's share of cores
_EXPLAINED: Final = 0.5  # of what is lost, by the slow rank's phases
_EXPOSED: Final = 0.3  # of a step
_MIN_READ: Final = 10
_WORDS: Final = {
    "input": "waiting for its loader",
    "compute": "its forward, backward and optimizer",
    "other work": "what it does outside of loader, forward, backward and optimizer",
}
_FIXES: Final = {
    "input": "Give its loader more workers, or move its data to a faster disk; all ranks need the "
    "same rate of batches.",
    "compute": "Give all ranks the same work per step: batches of similar size and length, no "
    "extra computation on one rank, and as many free cores and as fast a device.",
    "other work": "Move logging, saving and other work of this rank out of the loop, or do it less "
    "often.",
}


def slow_rank(ranks: Ranks) -> Answer:
    """The same rank waits least for the others in most steps, and they wait for it.

    What it does meanwhile is the phase in which it spends more time than the median rank.
    """
    common, why_not = _common(ranks)
    if why_not is not None:
        return why_not
    by_rank = {record.seen.rank: record.seen.waits for record in ranks.records}
    fastest = [min(by_rank, key=lambda rank: by_rank[rank][step]) for step in common]
    slow = max(by_rank, key=fastest.count)
    num = fastest.count(slow)
    lost = median(
        median(waits[step] for rank, waits in by_rank.items() if rank != slow) - by_rank[slow][step]
        for step in common
    )
    reports = {record.report.rank: record.report for record in ranks.records}
    step_s = median(one.step_s or 0.0 for one in reports.values())
    is_clear = num >= _MOSTLY * len(common) and lost > max(_LEAST_S, _CLEARLY * step_s)
    others = [report for rank, report in reports.items() if rank != slow]
    cause, more_s = _cause(reports[slow], others)
    if not is_clear or step_s <= 0 or more_s < _EXPLAINED * lost:
        return Sound(f"no rank is waited for in most of {len(common)} steps")
    host = reports[slow].host
    what = _WORDS[cause]
    doing = f"{what} takes {_ms(more_s)} longer per step than on the others"
    return Found(
        evidence=f"the other ranks wait {_ms(lost)} of each {_ms(step_s)} step for rank {slow} "
        f"({host}), in {num} of {len(common)} steps that were timed: {doing}",
        fix=_FIXES[cause],
        numbers={"rank": slow, "cause": cause, "lost_s": lost, "step_s": step_s},
    )


def _common(ranks: Ranks) -> tuple[Sequence[int], Unseen | None]:
    """Return the steps whose waits were read on all ranks."""
    if len(ranks.records) < 2:
        return (), ONE_PROCESS
    if not ranks.is_whole:
        return (), Unseen("not all ranks left a record")
    common = sorted(set.intersection(*(set(one.waits) for one in ranks.seen)))
    if len(common) < _MIN_SAMPLES or any(not r.report.step_s for r in ranks.records):
        return common, Unseen("the communication of too few steps was timed")
    return common, None


def _cause(slow: RankReport, others: Sequence[RankReport]) -> tuple[str, float]:
    """Return what a rank spends more time on than the others, and how much per step."""
    own, rest = _work(slow), [_work(one) for one in others]
    more = {name: value - median(one[name] for one in rest) for name, value in own.items()}
    cause = max(more, key=lambda name: more[name])
    return cause, max(0.0, more[cause])


def _work(one: RankReport) -> Mapping[str, float]:
    return {"input": one.wait_s, "compute": one.compute_s, "other work": one.other_s}


def communication_exposed(ranks: Ranks) -> Answer:
    """On all ranks, a large part of a step is communication without computation.

    That is the time of the collectives, minus their overlap with backward.
    """
    common, why_not = _common(ranks)
    if why_not is not None:
        return why_not
    shares = [
        min(1.0, median(record.seen.waits[step] for step in common) / (record.report.step_s or 1.0))
        for record in ranks.records
    ]
    least = min(shares)
    if least < _EXPOSED:
        return Sound(f"some rank waits for communication in only {100 * least:.0f} % of a step")
    return Found(
        evidence=f"each rank waits for communication in {100 * least:.0f} to "
        f"{100 * max(shares):.0f} % of a step, so it is the network that is slow, not a "
        "rank",
        fix="Communicate less often or less: a larger batch per rank, several backwards per step "
        "inside no_sync(), or gradients in bfloat16 (ddp.register_comm_hook(None, "
        "bf16_compress_hook)).",
        numbers={"least_share": least, "largest_share": max(shares)},
    )


def unused_search(ranks: Ranks) -> Answer:
    """find_unused_parameters=True, although every weight had a gradient in all steps read."""
    seen = ranks.seen
    if len(seen) < 2:
        return ONE_PROCESS
    searching = [one for rank in seen for one in rank.wrappers if one.finds_unused]
    if not searching:
        return Unseen("no DistributedDataParallel with find_unused_parameters=True")
    num = min(one.num_read for one in searching)
    if num < _MIN_READ or any(one.num_with_unused for one in searching):
        return Sound("weights without a gradient were seen, or too few steps were read")
    return Found(
        evidence="DistributedDataParallel(find_unused_parameters=True) searches the graph in every "
        f"step, but on no rank was a weight unused in the {num} steps that were read",
        fix="Remove find_unused_parameters=True, unless later steps leave weights unused.",
        where=searching[0].where,
        numbers={"num_read": num},
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
