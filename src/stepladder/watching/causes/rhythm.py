"""Causes in what happens every few steps, and in steps that become slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from statistics import median
from typing import Final

from stepladder.machine.contention import MAX_CORES_MISSING
from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.causes.lines import heaviest, level_of, loop_of, shown
from stepladder.watching.seen_costs import OWN, SampleSeen, Spot, StacksSeen

_MIN_SHARE: Final = 0.03
_MIN_BLOCKS: Final = 9
_MIN_TAU: Final = 0.6
_MIN_GROWTH: Final = 1.4
_MIN_GROWING: Final = 0.1  # share of a line that grows
_NUM_BLOCKS: Final = 9
_GROWING: Final = (
    "look for a list, a tensor or a graph that grows with each step; keep a fixed number of "
    "entries, and losses as loss.detach()"
)
_MIN_LARGER: Final = 1.2  # inputs at the end, over those at the beginning
_RARE: Final = 1.05  # validations per epoch
_LEFT: Final = 0.1  # of validations or checkpoints that remain


def rhythm_causes(evidence: Evidence) -> list[Cause]:
    """Name validations and checkpoints that come too often, and steps that become slower."""
    return [*_validations(evidence), *_checkpoints(evidence), *_growth(evidence)]


def _validations(evidence: Evidence) -> list[Cause]:
    held = evidence.shares.get("validation", 0.0)
    if not 0 < held < 1:
        return []
    num, epochs = evidence.num_validations, _num_epochs(evidence)
    samples = [one for one in evidence.samples if one.is_validation]
    at = f" ({shown(_step_line(evidence, samples))})" if samples else ""
    head = f"validation takes {percent(held)} of the time{at}"
    every = evidence.num_steps / num if num else 0.0
    often = _often(every)
    if epochs is not None and num > _RARE * epochs + 1:
        share = held * (1 - epochs / num)
        text = f"{head}, {often}: validate once per epoch"
        return [Cause(name="fewer_validations", share=share, text=text)]
    if epochs is None and num and every <= 10:
        text = f"{head}, {often}: validate a tenth as often"
        return [Cause(name="fewer_validations", share=held * (1 - _LEFT), text=text)]
    return [
        Cause(
            name="fewer_validations",
            share=held / 2,
            text=f"{head}: validate half as often",
            is_loose=True,
        )
    ]


def _often(every: float) -> str:
    return "in each step" if every < 1.5 else f"every {every:.3g} steps"


def _num_epochs(evidence: Evidence) -> float | None:
    """Return the epochs of the steps that were timed; None if no loader has a length."""
    loader = next((one for one in evidence.seen.loaders if one.training), None)
    if loader is None or not loader.num_batches or len(loader.passes) > evidence.num_steps / 2:
        return None
    return max(evidence.num_steps / loader.num_batches, 1.0)


def _checkpoints(evidence: Evidence) -> list[Cause]:
    share, saved = evidence.shares.get("checkpoint", 0.0), evidence.seen.saved
    if share < _MIN_SHARE or not saved:
        return []
    first = saved[-1]
    every = max(evidence.seen.num_steps / len(saved), 1.0)
    epochs = _num_epochs(evidence)
    often = f" {_often(every)}" if epochs is None or len(saved) > epochs + 1 else ""
    text = (
        f"{percent(share)} of the time is spent on saving files{often} ({first.where}): save once "
        "every few epochs or minutes, and the optimizer's state only where training resumes from it"
    )
    return [Cause(name="fewer_checkpoints", share=share * (1 - _LEFT), text=text)]


def growth_of(block_s: Sequence[float]) -> tuple[float, float] | None:
    """Return how steps become slower: last over first, and the share of the time due to it.

    The medians of the first and the last third of the blocks are compared, if Kendall's rank
    correlation of time and number is 0.6 or more over all blocks: single slow ones decide nothing.

    Returns:
        None if they do not become slower.
    Source: Kendall 1938, "A New Measure of Rank Correlation", Biometrika 30.
    """
    num = len(block_s)
    if num < _MIN_BLOCKS:
        return None
    first, last = median(block_s[: num // 3]), median(block_s[-(num // 3) :])
    if _tau(block_s) < _MIN_TAU or first <= 0 or last < _MIN_GROWTH * first:
        return None
    mean_s = sum(block_s) / num
    return last / first, max(0.0, 1 - first / mean_s)


def _growth(evidence: Evidence) -> list[Cause]:
    if _inputs_grow(evidence):
        return []
    found = growth_of(evidence.block_s) if not _is_disturbed(evidence) else None
    if found is not None:
        ratio, share = found
        at = f"; most of the increase is at {spot}" if (spot := _grown_line(evidence)) else ""
        text = f"the last steps take {ratio:.1f} times as long as the first ones{at}: {_GROWING}"
        return [Cause(name="constant_steps", share=share, text=text)]
    return _growing_lines(evidence)


def _is_disturbed(evidence: Evidence) -> bool:
    """Return whether other processes used the cores: steps may be slower because of them."""
    missing = evidence.facts.get("cores_missing")
    return isinstance(missing, float) and missing > MAX_CORES_MISSING


def _growing_lines(evidence: Evidence) -> list[Cause]:
    """Name a line whose share of a step grows, even if other processes disturb the steps."""
    loop = loop_of(evidence.samples)
    groups: dict[str, list[SampleSeen]] = {}
    for one in evidence.samples:
        if one.spots and one.part == OWN and not one.is_validation:
            groups.setdefault(one.spots[level_of(one.spots, loop)].where, []).append(one)
    whole = _in_blocks(evidence, evidence.samples)
    found = []
    for group in groups.values():
        seconds = _in_blocks(evidence, group)
        shares = [s / w for s, w in zip(seconds, whole, strict=True) if w > 0]
        share = evidence.share_of(sum(seconds))
        third = len(shares) // 3
        if share < _MIN_GROWING or third < 2 or _tau(shares) < _MIN_TAU:
            continue
        first, last = median(shares[:third]), median(shares[-third:])
        if last < 2 * first:
            continue
        spot, _ = heaviest(replace(o, spots=o.spots[level_of(o.spots, loop) :]) for o in group)
        text = (
            f"{shown(spot)} takes {percent(first)} of the first steps and {percent(last)} of the "
            f"last ones: {_GROWING}"
        )
        found.append(Cause(name="constant_steps", share=max(0.0, share - first), text=text))
    return sorted(found, key=lambda cause: -cause.share)[:1]


def _in_blocks(evidence: Evidence, samples: Sequence[SampleSeen]) -> list[float]:
    """Return the seconds of samples in a few equal blocks of steps."""
    stacks = evidence.seen.costs.stacks
    first, last = (step // stacks.steps_of_block for step in (stacks.first_step, stacks.last_step))
    num = min(_NUM_BLOCKS, last - first + 1)
    seconds = [0.0] * max(num, 1)
    for one in samples:
        for block, some in dict(one.by_block).items():
            seconds[min(max((block - first) * num // (last - first + 1), 0), num - 1)] += some
    return seconds


def _tau(values: Sequence[float]) -> float:
    """Return Kendall's rank correlation of values with their number."""
    pairs = [(i, j) for i in range(len(values)) for j in range(i + 1, len(values))]
    signs = sum((values[j] > values[i]) - (values[j] < values[i]) for i, j in pairs)
    return signs / len(pairs) if pairs else 0.0


def _inputs_grow(evidence: Evidence) -> bool:
    """Return whether the model's inputs become larger, as with longer sequences or images."""
    sizes = [prod(one.shape) for one in evidence.seen.inputs]
    sizes = (
        sizes
        if len(set(sizes)) > 1
        else [prod(one.sizes) for one in evidence.seen.backward_calls if one.sizes]
    )
    third = len(sizes) // 3
    return third > 0 and median(sizes[-third:]) > _MIN_LARGER * median(sizes[:third])


def _grown_line(evidence: Evidence) -> str:
    """Return the line whose time per step grows most."""
    stacks, loop = evidence.seen.costs.stacks, loop_of(evidence.samples)
    groups: dict[str, list[SampleSeen]] = {}
    for one in evidence.samples:
        if one.spots:
            groups.setdefault(one.spots[level_of(one.spots, loop)].where, []).append(one)
    if not groups:
        return ""
    best = max(groups.values(), key=lambda group: _increase(group, stacks))
    if _increase(best, stacks) <= 0:
        return ""
    trimmed = [replace(one, spots=one.spots[level_of(one.spots, loop) :]) for one in best]
    spot, _ = heaviest(trimmed, lambda one: max(0.0, _increase([one], stacks)))
    return shown(spot)


def _increase(group: Sequence[SampleSeen], stacks: StacksSeen) -> float:
    """Return by how many seconds per step the second half is slower than the first."""
    middle = (stacks.first_step + stacks.last_step) / 2 / stacks.steps_of_block
    halves = [0.0, 0.0]
    for one in group:
        for block, seconds in dict(one.by_block).items():
            halves[block + 0.5 >= middle] += seconds
    return halves[1] - halves[0]


def _step_line(evidence: Evidence, samples: Sequence[SampleSeen]) -> Spot:
    """Return the line of the training loop that led to samples."""
    loop = loop_of(evidence.samples)
    seconds: dict[Spot, float] = {Spot(where="?", function="", text=""): 0.0}
    for one in samples:
        if one.spots:
            spot = one.spots[level_of(one.spots, loop)]
            seconds[spot] = seconds.get(spot, 0.0) + one.seconds
    return max(seconds, key=lambda spot: seconds[spot])
