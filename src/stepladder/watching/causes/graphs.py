"""Backwards that go through the graphs of earlier ones again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.seen.costs import RetainedSeen

_MIN_SHARE: Final = 0.05
_MIN_CALLS: Final = 4  # in a row, each with a larger graph
_MIN_STEPS: Final = 2
_MIN_GROWTH: Final = 2.0
_MIN_KNOWN: Final = 0.5  # of the nodes of the last graph
_EVEN: Final = 3.0  # times the smallest increase of a row, the largest one
_Graphs = Sequence[tuple[int, int]]  # nodes, and those in an earlier graph


def graph_causes(evidence: Evidence) -> list[Cause]:
    """Name backwards with `retain_graph=True` whose graphs contain those of all earlier ones.

    That is so if most of a graph is in the next one as well, which is larger, call by call or step
    by step. Several losses of one graph have graphs of about the same size.
    """
    backward = evidence.shares.get("backward", 0.0)
    causes = [
        cause
        for one in evidence.seen.costs.retained.values()
        if (cause := _within_steps(one, backward) or _across_steps(one, backward)) is not None
    ]
    return [cause for cause in causes if cause.share >= _MIN_SHARE]


def _within_steps(one: RetainedSeen, backward: float) -> Cause | None:
    """Name the calls of a step if each goes through the graph of the last one."""
    rows = [row for row in one.nodes.values() if len(row) >= _MIN_CALLS]
    if len(rows) < _MIN_STEPS or not all(map(_is_even, rows)):
        return None
    first, last, num = rows[-1][0][0], rows[-1][-1][0], len(rows[-1])
    mean = first + (last - first) / (num - 1) * (one.num_calls - 1) / 2
    text = (
        f"{percent(backward)} of the time is spent in backward, and each of {one.num_calls} calls "
        f"in a step with retain_graph=True at {one.where} goes through the graphs of all earlier "
        f"ones again, {first:,} operations in the first call and {last:,} in call {num}"
    )
    return _cause(one, backward * (1 - first / mean), text)


def _across_steps(one: RetainedSeen, backward: float) -> Cause | None:
    """Name the call of each step if it goes through the graph of the step before."""
    row = [graphs[0] for graphs in one.nodes.values()]
    if len(row) <= _MIN_CALLS or one.num_calls > 1 or not _contain_others(row):
        return None
    first, last = row[0][0], row[-1][0]
    mean = sum(num for num, _ in row) / len(row)
    steps = list(one.nodes)
    text = (
        f"{percent(backward)} of the time is spent in backward, and with retain_graph=True at "
        f"{one.where} it goes through the graphs of all earlier steps again, {first:,} operations "
        f"in step {steps[0] + 1:,} and {last:,} in step {steps[-1] + 1:,}"
    )
    return _cause(one, backward * (1 - first / mean), text)


def _cause(one: RetainedSeen, share: float, text: str) -> Cause | None:
    added = "add the losses and call backward once, which gives the same gradients"
    is_sum = one.num_calls > 1 and not one.is_cleared
    if one.follows_models:
        name = "detached_state"
        fix = "detach the state in between (state = state.detach()) and leave out retain_graph=True"
        fix += f", or {added}" if is_sum else ""
    elif is_sum:
        name, fix = "one_backward", added
    else:
        return None
    return Cause(name=name, share=share, text=f"{text}: {fix}", replaces=("constant_steps",))


def _contain_others(row: _Graphs) -> bool:
    """Return whether each graph contains the last one and is larger, in the end twice as large."""
    return row[-1][0] >= _MIN_GROWTH * row[0][0] and all(
        before < num and known >= _MIN_KNOWN * before for (before, _), (num, known) in pairwise(row)
    )


def _is_even(row: _Graphs) -> bool:
    """Return whether graphs contain each other, and become larger by about as many nodes each."""
    changes = [num - before for (before, _), (num, _) in pairwise(row)]
    return _contain_others(row) and max(changes) <= _EVEN * min(changes)
