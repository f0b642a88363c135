"""Faults that only the comparison of ranks shows: different weights, the same data, padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isnan
from typing import Final

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.ranks.seen import HeldBy, Ranks, RankSeen, RateSeen

_APART: Final = 1e-5  # of the size of the weights: more than rounding on different processors
_AVERAGED: Final = 0.5  # of the trained weights per step: less cannot average all gradients
_ONCE: Final = 1.0  # of them in all steps: less cannot average weights even once
_MIN_SAME: Final = 4  # steps
_MIN_INPUTS: Final = 3
_MIN_STEPS: Final = 20
_NEAR: Final = 0.1
_MANY: Final = 1e-3  # of a validation set
_SUMMED: Final = frozenset({"all_reduce", "reduce"})
_GATHERED: Final = frozenset(
    {
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_gather_single",
        "gather",
        "gather_object",
    }
)
_WRAP: Final = "Wrap the model before the first step: model = DistributedDataParallel(model)."
ONE_PROCESS: Final = Unseen("fewer than two ranks left a record")


class _Apart:
    """Weights that differ between ranks, at the first step at which some do.

    Attributes:
        step: number of steps until then; None: they are equal at all compared steps.
        at: positions of the weights that differ.
        is_always: some differ at every compared step.
        steps: all compared steps.
    """

    def __init__(self, seen: Sequence[RankSeen]) -> None:
        by_rank = [{one.step: one for one in rank.weights} for rank in seen]
        self.steps = sorted(set.intersection(*(set(one) for one in by_rank)))
        self._by_rank = by_rank
        self.step: int | None = None
        self.at: list[int] = []
        num = 0
        for step in self.steps:
            at = [
                idx
                for idx in range(len(seen[0].names))
                if _differ(
                    [one[step].sums[idx] for one in by_rank],
                    max(one[step].sizes[idx] for one in by_rank),
                )
            ]
            num += bool(at)
            if at and self.step is None:
                self.step, self.at = step, at
        self.is_always = num == len(self.steps)

    def share(self, idx: int) -> float:
        """Return by what share of its magnitude a weight differs at least, at that step.

        A sum with factors of at most 1 differs at most as much as its terms do in total.
        """
        each = [one[self.step or 0] for one in self._by_rank]
        sums = [one.sums[idx] for one in each]
        return (max(sums) - min(sums)) / (max(one.sizes[idx] for one in each) or 1.0)


def _differ(sums: Sequence[float], size: float) -> bool:
    if all(map(isnan, sums)):
        return False
    if any(map(isnan, sums)):
        return True
    return max(sums) - min(sums) > _APART * size


def _not_comparable(seen: Sequence[RankSeen]) -> Unseen | None:
    if len(seen) < 2:
        return ONE_PROCESS
    if any(one.num_sharded and not one.weights for one in seen):
        return Unseen("weights are sharded: each rank holds its own part of them")
    if any(not one.weights for one in seen):
        return Unseen("not all ranks trained weights")
    if len({one.shapes for one in seen}) > 1 or len({one.held for one in seen}) > 1:
        return Unseen("ranks train different models")
    return None


def ranks_differ(ranks: Ranks) -> Answer:
    """Checksums of trained weights are compared between ranks, after 0, 1, 2, 4, 8, … steps.

    Weights of a DistributedDataParallel have to be equal. Others have to be if all ranks train the
    same model on parts of the data, and nothing else is exchanged.
    """
    seen = ranks.seen
    why_not = _not_comparable(seen)
    if why_not is not None:
        return why_not
    apart = _Apart(seen)
    if not apart.steps:
        return Unseen("no step was reached by all ranks")
    if apart.step is None:
        last = apart.steps[-1]
        return Sound(f"weights are equal on {len(seen)} ranks at {len(apart.steps)} steps ≤ {last}")
    held = seen[0].held
    for kind, answer in (
        (HeldBy.WRAPPER, _wrapped_apart),
        (HeldBy.FROZEN, _frozen_apart),
        (HeldBy.NOTHING, _unwrapped_apart),
    ):
        at = [idx for idx in apart.at if held[idx] is kind]
        if at:
            return answer(seen, apart, at)
    return Unseen("the weights that differ were excluded from DistributedDataParallel")


def _evidence(seen: Sequence[RankSeen], apart: _Apart, at: Sequence[int]) -> str:
    name, num = seen[0].names[at[0]], len(seen[0].names)
    steps = f"after {apart.step} step{'' if apart.step == 1 else 's'}"
    when = "before the first step" if apart.step == 0 else steps
    return (
        f"{when}, {len(at)} of {num} weights differ between the {len(seen)} ranks: "
        f"{name} by at least {100 * apart.share(at[0]):.2g} % of its magnitude"
    )


def _found(
    seen: Sequence[RankSeen],
    apart: _Apart,
    at: Sequence[int],
    why: str,
    fix: str,
    *,
    where: str | None = None,
    severity: Severity | None = None,
) -> Found:
    return Found(
        evidence=f"{_evidence(seen, apart, at)}; {why}",
        fix=fix,
        where=where,
        numbers={"step": apart.step, "num_differing": len(at), "share": apart.share(at[0])},
        severity=severity,
    )


def _wrapped_apart(seen: Sequence[RankSeen], apart: _Apart, at: Sequence[int]) -> Answer:
    wrappers = [one for rank in seen for one in rank.wrappers]
    if any(one.has_hook for one in wrappers):
        return Unseen("a communication hook decides what is averaged")
    if any(one.num_ranks < rank.size for rank in seen for one in rank.wrappers):
        return Unseen("DistributedDataParallel averages over a part of the ranks")
    where = wrappers[0].where
    if any(one.num_forwards == 0 for one in wrappers):
        why = (
            "the model is wrapped in DistributedDataParallel, but the wrapper was never called in "
            "training, so gradients are not averaged"
        )
        fix = "Call the wrapped model in training: ddp(x), not ddp.module(x) or the inner model."
        return _found(seen, apart, at, why, fix, where=where)
    if any(one.num_unsynced for one in wrappers):
        if _moved(seen) >= _ONCE:
            return Unseen("the script averages weights itself, after steps inside no_sync()")
        one = max(wrappers, key=lambda one: one.num_unsynced)
        why = (
            f"{one.num_unsynced:,} of {one.num_forwards:,} forward passes were inside no_sync(), "
            "and a step whose last one is does not average gradients"
        )
        fix = "Leave no_sync() for the last forward and backward before optimizer.step()."
        return _found(seen, apart, at, why, fix, where=where)
    why = "DistributedDataParallel keeps weights equal, so something changed them on one rank only"
    fix = (
        "Change weights, learning rates and gradients alike on all ranks: what one rank loads or "
        "edits, broadcast to the others."
    )
    return _found(seen, apart, at, why, fix, where=where)


def _frozen_apart(seen: Sequence[RankSeen], apart: _Apart, at: Sequence[int]) -> Answer:
    why = (
        "they required no gradient when the model was wrapped in DistributedDataParallel, which "
        "therefore does not average theirs"
    )
    fix = "Unfreeze weights before the model is wrapped, or wrap it again afterwards."
    return _found(seen, apart, at, why, fix, where=seen[0].wrappers[0].where)


def _moved(seen: Sequence[RankSeen]) -> float:
    """Return how often the script's own collectives could have moved all trained weights."""
    return max(one.num_elements / max(1, one.num_trained) for one in seen)


def _may_be_apart(seen: Sequence[RankSeen]) -> Unseen | None:
    """Return why weights outside of DistributedDataParallel may differ on purpose."""
    library = next((one.library for one in seen if one.library), None)
    if library is not None:
        return Unseen(f"{library} may average gradients")
    if any(one.has_exchange for one in seen):
        return Unseen("ranks send parts of the model to each other")
    if not all(one.has_group for one in seen):
        return Unseen("no process group: each rank trains a model of its own")
    return None


def _unwrapped_apart(seen: Sequence[RankSeen], apart: _Apart, at: Sequence[int]) -> Answer:
    why_not = _may_be_apart(seen)
    if why_not is not None:
        return why_not
    if any(one.wrappers or one.num_sharded for one in seen):
        why = (
            "they are in no DistributedDataParallel, although other weights are, so their "
            "gradients are not averaged"
        )
        fix = "Put all trained layers into one module, and wrap that one."
        return _found(seen, apart, at, why, fix, severity=Severity.WARNING)
    steps = max(1, apart.steps[-1])
    moved = _moved(seen)
    if moved >= _ONCE:
        if moved < _AVERAGED * steps or not (apart.is_always and apart.step == 0):
            return Unseen("the script exchanges weights or gradients itself, in some steps")
        why = "gradients are exchanged, but nothing made the initial weights equal"
        fix = "Before the first step: for p in model.parameters(): dist.broadcast(p.data, 0)."
        return _found(seen, apart, at, why, fix, severity=Severity.WARNING)
    start = " from the start" if apart.step == 0 else ""
    why = (
        f"nothing averages their gradients, so each rank trains a model of its own{start}: the "
        "model is not wrapped"
    )
    is_certain = all(one.has_sampler for one in seen)  # ranks share one data set
    severity = None if is_certain else Severity.WARNING
    where = seen[0].stepped_at
    return _found(seen, apart, at, why, _WRAP, where=where, severity=severity)


def ranks_read_same_data(ranks: Ranks) -> Answer:
    """Inputs of the wrapped model, or first batches and losses, are equal on all ranks.

    Data that is the same in every step is not reported.
    """
    seen = ranks.seen
    if len(seen) < 2:
        return ONE_PROCESS
    is_parallel = all(
        one.whole_mesh or any(w.num_ranks == one.size and w.num_forwards for w in one.wrappers)
        for one in seen
    )
    same_losses = _same([one.losses for one in seen], at_least=_MIN_SAME)
    same_inputs = _same([one.inputs for one in seen], at_least=_MIN_INPUTS)
    batches = [one.batches for one in seen]
    same_batches = bool(batches[0]) and all(one == batches[0] for one in batches)
    if is_parallel and all(one.inputs for one in seen):
        is_same, num = bool(same_inputs), same_inputs
        what = f"the inputs of the model are equal on all {len(seen)} ranks in {num} steps"
    elif is_parallel:
        is_same, num = bool(same_losses) and same_batches, same_losses
        what = f"first batches and losses are equal on all {len(seen)} ranks in {num} steps"
    else:
        apart = _Apart(seen) if len({one.shapes for one in seen}) == 1 else None
        is_model = apart is not None and apart.step is None and len(apart.steps) > 1
        is_same, num = bool(same_losses) and same_batches and is_model, same_losses
        is_same = is_same and not any(o.library or o.has_exchange for o in seen)
        what = f"batches, losses and weights are equal on all {len(seen)} ranks in {num} steps"
    if not is_same:
        known = any(one.inputs or one.losses for one in seen)
        is_other = "inputs or losses differ between ranks, or are the same in all steps"
        return Sound(is_other) if known else Unseen("no inputs were compared")
    done = "each step learns from one rank's batch only, and the others repeat it"
    return Found(
        evidence=f"{what}: {done}",
        fix="Give the loader for training sampler=DistributedSampler(dataset) instead of "
        "shuffle=True; a stream has to skip what the other ranks read.",
        numbers={"num_steps": num, "num_ranks": len(seen)},
    )


def _same(values: Sequence[dict[int, float]], *, at_least: int) -> int:
    """Return at how many steps all ranks have the same value; 0 if one differs, or all are one."""
    steps = sorted(set.intersection(*(set(one) for one in values)))
    if len(steps) < at_least or any(len({one[step] for one in values}) > 1 for step in steps):
        return 0
    first = [values[0][step] for step in steps]
    is_constant = all(a == b for a, b in pairwise(first))
    return 0 if is_constant or any(map(isnan, first)) else len(steps)


def validation_padded(ranks: Ranks) -> Answer:
    """The DistributedSampler of a loader for validation repeats examples to fill all ranks."""
    seen = ranks.seen
    if len(seen) < 2:
        return ONE_PROCESS
    padded = [one for rank in seen for one in rank.padded if one.num_ranks == rank.size]
    if not padded:
        return Sound("no validation over a DistributedSampler repeats examples")
    one = padded[0]
    kinds = {kind for other in padded if other.where == one.where for kind in other.collectives}
    is_summed = bool(kinds & _SUMMED) and not kinds & _GATHERED
    is_many = one.num_repeated >= _MANY * one.num_examples
    return Found(
        evidence=f"the validation set has {one.num_examples:,} examples, and its "
        f"DistributedSampler reads {one.num_examples + one.num_repeated:,} on {one.num_ranks} "
        f"ranks: {one.num_repeated:,} are counted twice"
        + (" in the sum over ranks" if is_summed else ""),
        fix="Give each rank its own part without a sampler: Subset(dataset, range(rank, "
        "len(dataset), world_size)), and add up sums and counts; or cut what you gather to "
        "len(dataset).",
        where=one.where,
        numbers={"num_examples": one.num_examples, "num_repeated": one.num_repeated},
        severity=Severity.WARNING if is_summed and is_many else Severity.INFO,
    )


def schedule_stepped_per_rank(ranks: Ranks) -> Answer:
    """A scheduler steps as often as all ranks together, but ends after one process's steps."""
    if len(ranks.records) < 2:
        return ONE_PROCESS
    record = ranks.records[0]
    steps, size = record.report.num_steps, ranks.size
    if not record.seen.schedules:
        return Unseen("no scheduler with a number of steps")
    if record.seen.was_cut or steps < _MIN_STEPS:
        return Unseen("training did not run to its end, or is too short")
    for one in record.seen.schedules:
        if _is_per_rank(one, steps, size):
            return Found(
                evidence=f"{one.kind} ends after {one.horizon:,} steps, as many as each rank "
                f"takes, but stepped {one.num_stepped:,} times, {size} times for each of the "
                f"{steps:,} steps of the optimizer: it ended after 1/{size} of the training",
                fix="Step it once after each optimizer.step(), or multiply its number of steps by "
                "the number of ranks (Accelerate steps a prepared scheduler once per rank).",
                where=one.where,
                numbers={"num_stepped": one.num_stepped, "num_steps": steps},
            )
    return Sound(f"{len(record.seen.schedules)} schedulers step as their horizon requires")


def _is_per_rank(one: RateSeen, steps: int, size: int) -> bool:
    is_often = abs(one.num_stepped - size * steps) <= _NEAR * size * steps
    return is_often and abs(one.horizon - steps) <= _NEAR * steps
