"""Steps that become slower with their number, as with a list or a graph that grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from statistics import median
from typing import Final

from stepladder.machine.contention import MAX_CORES_MISSING
from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.causes.lines import heaviest, level_of, loop_of, shown
from stepladder.watching.seen.costs import OWN, SampleSeen, Spot, StacksSeen

_MIN_BLOCKS: Final = 9
_MIN_TAU: Final = 0.6
_MIN_TAU_OF_LINES: Final = 0.7
_MIN_SAMPLES_OF_LINES: Final = 150
_MIN_GROWTH: Final = 1.4
_MIN_GROWTH_OF_LINES: Final = 2.0
_CLEAR_GROWTH: Final = 3.0  # beside other processes
_CLEAR_TAU: Final = 0.8
_MIN_SHARE: Final = 0.1  # of a line that grows
_NUM_BLOCKS: Final = 9
_FEWEST_BLOCKS: Final = 6
_SAMPLES_OF_BLOCK: Final = 20
_MIN_LARGER: Final = 1.2  # inputs at the end, over those at the beginning
_FIX: Final = (
    "look for a list, a tensor or a graph that grows with each step; keep a fixed number of "
    "entries, and losses as loss.detach()"
)
_Groups = Mapping[str, Sequence[SampleSeen]]


def growth_causes(evidence: Evidence) -> list[Cause]:
    """Name what makes later steps slower than earlier ones.

    Other processes can make all later steps slower. If these used the cores, steps must become
    three times as slow, or the time of a line must grow in relation to the rest of the step.
    """
    if inputs_grow(evidence):
        return []
    groups = _groups(evidence)
    growing = {where: first for where in groups if (first := _first_share(evidence, groups[where]))}
    found = slower_steps(evidence)
    if found is None and not growing:
        return []
    grown = [one for where in growing for one in groups[where]] or _most_grown(evidence, groups)
    at = shown(_grown_spot(evidence, grown)) if grown else ""
    if found is not None:
        ratio, share = found
        head = f"the last steps take {ratio:.1f} times as long as the first ones"
        head += f"; most of the increase is at {at}" if at else ""
    else:
        first = min(sum(growing.values()), 0.99)
        share = evidence.share_of(sum(one.seconds for one in grown))
        share = max(0.0, share - first / (1 - first) * (1 - share))  # the rest takes as long
        head = f"{at} takes an ever larger part of a step, {percent(first)} at the beginning"
    return [Cause(name="constant_steps", share=share, text=f"{head}: {_FIX}", lines=tuple(growing))]


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


def slower_steps(evidence: Evidence) -> tuple[float, float] | None:
    """Return what `growth_of` does, or None if other processes may be the reason."""
    found = growth_of(evidence.block_s)
    if found is not None and _is_disturbed(evidence):
        is_clear = found[0] >= _CLEAR_GROWTH and _tau(evidence.block_s) >= _CLEAR_TAU
        found = found if is_clear else None
    return found


def _is_disturbed(evidence: Evidence) -> bool:
    """Return whether other processes used the cores: steps may be slower because of them."""
    missing = evidence.facts.get("cores_missing")
    return isinstance(missing, float) and missing > MAX_CORES_MISSING


def _groups(evidence: Evidence) -> dict[str, list[SampleSeen]]:
    """Return samples by their line in the training loop, without that line's callers."""
    loop = loop_of(evidence.samples)
    groups: dict[str, list[SampleSeen]] = {}
    for one in evidence.samples:
        if one.spots and one.part == OWN and not one.is_validation:
            spots = one.spots[level_of(one.spots, loop) :]
            groups.setdefault(spots[0].where, []).append(replace(one, spots=spots))
    return groups


def _first_share(evidence: Evidence, group: Sequence[SampleSeen]) -> float | None:
    """Return a line's share of the first steps, if it grows in relation to the rest."""
    found = growth_in_steps(evidence, group)
    return None if found is None else max(found[0], 1e-3)


def growth_in_steps(evidence: Evidence, group: Sequence[SampleSeen]) -> tuple[float, float] | None:
    """Return a line's share of the first and the last steps, if it grows in relation to the rest.

    Returns:
        None if it does not, or if there are too few samples.
    """
    whole, seconds = _in_blocks(evidence, evidence.samples), _in_blocks(evidence, group)
    shares = [s / w for s, w in zip(seconds, whole, strict=True) if w > 0]
    third = len(shares) // 3
    has_few = evidence.seen.costs.stacks.num < _MIN_SAMPLES_OF_LINES
    if has_few or third < 2 or evidence.share_of(sum(seconds)) < _MIN_SHARE:
        return None
    first, last = median(shares[:third]), median(shares[-third:])
    is_larger = last * (1 - first) >= _MIN_GROWTH_OF_LINES * first * (1 - last)
    return (first, last) if is_larger and _tau(shares) >= _MIN_TAU_OF_LINES else None


def _most_grown(evidence: Evidence, groups: _Groups) -> Sequence[SampleSeen]:
    stacks = evidence.seen.costs.stacks
    best = max(groups.values(), key=lambda group: _increase(group, stacks), default=())
    return best if best and _increase(best, stacks) > 0 else ()


def _grown_spot(evidence: Evidence, samples: Sequence[SampleSeen]) -> Spot:
    stacks = evidence.seen.costs.stacks
    return heaviest(samples, lambda one: max(0.0, _increase([one], stacks)))[0]


def _in_blocks(evidence: Evidence, samples: Sequence[SampleSeen]) -> list[float]:
    """Return the seconds of samples in a few equal blocks of steps."""
    stacks = evidence.seen.costs.stacks
    first, last = (step // stacks.steps_of_block for step in (stacks.first_step, stacks.last_step))
    enough = max(stacks.num // _SAMPLES_OF_BLOCK, _FEWEST_BLOCKS)
    num = min(_NUM_BLOCKS, last - first + 1, enough)
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


def inputs_grow(evidence: Evidence) -> bool:
    """Return whether the model's inputs become larger, as with longer sequences or images."""
    sizes = [prod(one.shape) for one in evidence.seen.inputs]
    sizes = (
        sizes
        if len(set(sizes)) > 1
        else [prod(one.sizes) for one in evidence.seen.backward_calls if one.sizes]
    )
    third = len(sizes) // 3
    return third > 0 and median(sizes[-third:]) > _MIN_LARGER * median(sizes[:third])


def _increase(group: Sequence[SampleSeen], stacks: StacksSeen) -> float:
    """Return by how many seconds per step the second half is slower than the first."""
    first, second = halves_of(group, stacks)
    return second - first


def halves_of(group: Sequence[SampleSeen], stacks: StacksSeen) -> tuple[float, float]:
    """Return the seconds of samples in the first and the second half of the steps."""
    middle = (stacks.first_step + stacks.last_step) / 2 / stacks.steps_of_block
    halves = [0.0, 0.0]
    for one in group:
        for block, seconds in dict(one.by_block).items():
            halves[block + 0.5 >= middle] += seconds
    return halves[0], halves[1]
