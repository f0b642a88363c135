"""Loops in Python whose operations are too small to keep a processor busy."""

from __future__ import annotations

import re
from typing import Final

from stepladder.watching.causes.calls import called, usual_calls
from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.causes.lines import (
    heaviest,
    inner_loops,
    is_loss,
    level_of,
    loop_of,
    shown,
    ways_of,
)
from stepladder.watching.causes.overhead import is_overhead
from stepladder.watching.seen.costs import FORWARD, OWN, SampleSeen, Spot
from stepladder.watching.seen.steps import OptimizerSeen

_MIN_SHARE: Final = 0.03
_MIN_LOOP: Final = 0.2  # of forward is spent in a loop over time steps
_MIN_NODES: Final = 300
_TINY_S: Final = 60e-6  # per node of the graph, forward and backward: mostly overhead
_TINY_BATCH: Final = 4
_SMALL_S: Final = 200e-6  # per node: a batch of few examples is hardly faster than one of more
_MIN_MEMBERS: Final = 4  # models of the same shape
_LOOP: Final = re.compile(r"\bin (enumerate|zip|range|torch\.unbind|\w+\.(unbind|split|chunk))\(")
_BY_LAYER: Final = re.compile(r"\bin (enumerate\(|zip\()?(self\.|\w*layers|\w*blocks|\w*modules)")
_BY_INDEX: Final = re.compile(r"self\.\w+\[\w+\]\(")
_OF_EXAMPLES: Final = re.compile(
    r"\bin (enumerate\(|zip\()?\w*"
    r"(batch|examples?|samples?|rows?|idx|ind(ex|ice)s|items|sequences|sentences|words|names|graphs)"
    r"\b"
)


def loop_causes(evidence: Evidence) -> list[Cause]:
    """Name loops over rows, time steps, examples or models that could be one operation."""
    return [
        *_rows(evidence),
        *_steps_in_time(evidence),
        *_members(evidence),
        *_tiny_batch(evidence),
    ]


def _rows(evidence: Evidence) -> list[Cause]:
    """Name modules that are called for one row of a tensor after another."""
    seen = evidence.seen.costs.calls
    calls = usual_calls(evidence, seen.rows.values())
    if not calls or not seen.learned_s:
        return []
    first = calls[0]
    num = first.num_calls / first.num_steps
    part = min(1.0, sum(one.seconds for one in calls) / seen.learned_s)
    share = part * evidence.compute * (1 - 1 / num)
    if share < _MIN_SHARE:
        return []
    text = (
        f"{called(first)} is called {num:.0f} times per step at {first.where}, on one row of a "
        f"tensor each, in a loop that takes up to {percent(share)} of the time: call it once on "
        "the whole tensor instead"
    )
    return [Cause(name="whole_batches", share=share, text=text)]


def _steps_in_time(evidence: Evidence) -> list[Cause]:
    """Name loops over time steps whose operations are tiny."""
    seen, costs = evidence.seen.costs.calls, evidence.seen.costs
    cells = usual_calls(evidence, seen.cells.values())
    if cells and seen.learned_s:
        part = min(1.0, sum(one.seconds for one in cells) / seen.learned_s)
        num = sum(one.num_calls for one in cells) / max(one.num_steps for one in cells)
        share = part * evidence.compute * (1 - 1 / max(num, 1.0))
        first = cells[0]
        layer = first.kind.removesuffix("Cell")
        if num >= 4 and share >= _MIN_SHARE:
            text = (
                f"up to {percent(share)} of the time is spent on {num:.0f} calls of {first.kind} "
                f"per step ({called(first)} at {first.where}), one per time step: pass whole "
                f"sequences to nn.{layer}"
            )
            return [Cause(name="whole_sequences", share=share, text=text, is_loose=True)]
    if costs.num_nodes < _MIN_NODES or not is_overhead(evidence, _TINY_S):
        return []
    loop, ways = loop_of(evidence.samples), ways_of(evidence.samples)
    forward = [
        one
        for one in evidence.samples
        if not one.is_validation
        and (one.part == FORWARD or (one.part == OWN and _is_in_loss(one, ways)))
    ]
    over_time = [one for one in forward if _is_over_time(one, inner_loops(one.spots, loop))]
    by_example = [one for one in forward if _is_by_example(one, loop)]
    is_by_example = _seconds(by_example) > _seconds(over_time)
    inside = by_example if is_by_example else over_time
    total_s = _seconds(forward)
    part = _seconds(inside) / total_s if total_s else 0.0
    share = part * evidence.compute
    if part < _MIN_LOOP or share < _MIN_SHARE:
        return []
    spot, _ = heaviest(inside)
    if is_by_example:
        text = (
            f"up to {percent(share)} of the time is spent in a Python loop over the examples of a "
            f"batch ({costs.num_nodes:,} operations in the graph of a step), mostly at "
            f"{shown(spot)}: pad them to one length, and call the model once for the whole batch"
        )
        return [Cause(name="whole_batches", share=share, text=text, is_loose=True)]
    text = (
        f"up to {percent(share)} of the time is spent in a Python loop of tiny operations "
        f"({costs.num_nodes:,} in the graph of a step), mostly at {shown(spot)}: compute all "
        "of them at once, with operations on the whole tensor or a layer such as nn.LSTM"
    )
    return [Cause(name="whole_sequences", share=share, text=text, is_loose=True)]


def _members(evidence: Evidence) -> list[Cause]:
    """Name models of the same shape that are trained in turn, each by an optimizer of its own."""
    members: dict[tuple[object, ...], list[OptimizerSeen]] = {}
    for one in evidence.seen.optimizers:
        if one.shapes and one.num_steps:
            members.setdefault((one.kind, one.shapes), []).append(one)
    group = max(members.values(), key=len, default=[])
    num = len(group)
    all_steps = sum(one.num_steps for one in evidence.seen.optimizers)
    per_step = max(1.0, all_steps / max(evidence.seen.num_steps, 1))  # that were counted together
    if num < _MIN_MEMBERS or not is_overhead(evidence, per_step * _TINY_S):
        return []
    if max(one.first_step for one in group) > min(one.last_step for one in group):
        return []  # one after the other, not in turn
    part = sum(one.num_steps for one in group) / all_steps
    share = part * (evidence.compute + evidence.shares.get("optimizer", 0.0)) * (1 - 1 / num)
    if share < _MIN_SHARE:
        return []
    text = (
        f"{num} models of the same shape are trained one at a time, each by an optimizer of its "
        f"own ({group[0].stepped_at}), with operations too small to keep a processor busy, in "
        f"{percent(share)} of the time: stack their weights with torch.func.stack_module_state, "
        "call all of them at once with torch.vmap, and update them with one optimizer"
    )
    replaces = ("fused_optimizer", "foreach")  # one optimizer updates all of them
    return [Cause(name="stacked_models", share=share, text=text, is_loose=True, replaces=replaces)]


def _seconds(samples: list[SampleSeen]) -> float:
    return sum(one.seconds for one in samples)


def _is_in_loss(sample: SampleSeen, ways: frozenset[Spot]) -> bool:
    return any(is_loss(spot) for spot in sample.spots if spot not in ways)


def _is_by_example(sample: SampleSeen, loop: Spot | None) -> bool:
    """Return whether a sample is in a loop over examples, or in a comprehension over them."""
    spots = sample.spots[level_of(sample.spots, loop) :]
    headers = [*inner_loops(sample.spots, loop), *(s.text for s in spots if " for " in s.text)]
    return any(_OF_EXAMPLES.search(header.partition("#")[0]) for header in headers)


def _is_over_time(sample: SampleSeen, headers: tuple[str, ...]) -> bool:
    is_by_layer = any(_BY_INDEX.search(spot.text) for spot in sample.spots)
    return not is_by_layer and any(
        _LOOP.search(header) and not _BY_LAYER.search(header) for header in headers
    )


def _tiny_batch(evidence: Evidence) -> list[Cause]:
    """Name batches of very few examples, of which a larger one takes hardly longer."""
    size = evidence.facts.get("batch_size")
    loader = next((one for one in evidence.seen.loaders if one.training), None)
    if not isinstance(size, int) or size > _TINY_BATCH or loader is None:
        return []
    num = loader.num_examples or 0
    if num < 16 * size or not is_overhead(evidence, _SMALL_S):
        return []
    share = (1 - size / 32) * (evidence.compute + evidence.shares.get("optimizer", 0.0))
    text = (
        f"a batch has {size} example{'s' if size > 1 else ''} of {num:,}, and its operations are "
        "too small to keep a processor busy: use 32 or more, scale the learning rate with the "
        "batch, and compare the accuracy"
    )
    return [Cause(name="larger_batch", share=share, text=text, is_loose=True)]
