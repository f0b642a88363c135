"""Loaders that are left before their end: examples that are never seen, workers started again."""

from __future__ import annotations

from statistics import median

from stepladder.records.files import Json
from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.loaders import LoaderSeen, PassSeen
from stepladder.watching.seen.models import ModelSeen
from stepladder.watching.seen.seen import Seen

_FEW = 0.5  # of the examples: above that, an epoch cut short is more likely intended
_MIN_SUMS = 3  # first batches that were compared
_MIN_AGAIN = 10  # passes of a single batch: a new iterator in each step, not an epoch cut short
_MISSED = 0.2  # of the examples, although as many were drawn as there are
_MIN_STEPS = 10  # steps for each batch that was read
_MIN_KEYS = 4  # inspected steps that learned from these batches


def loader_left_early(seen: Seen) -> Answer:
    """Counts the examples that passes over a loader read, if each begins with the same ones."""
    if not any(loader.training for loader in seen.loaders):
        return Unseen("no loader was iterated for training")
    for one in seen.loaders:
        found = _left(one) or _kept(one, seen) or _started_again(one)
        if found is not None:
            return found
    return Sound("passes over the training loader read new examples")


def reads_few(one: LoaderSeen) -> bool:
    """Return whether every pass over a loader reads the same few examples and is then left."""
    passes = one.training
    if len(passes) < 2 or any(p.is_whole for p in passes) or not _is_same_order(one):
        return False
    share = _share(one, max(p.num_batches for p in passes))
    return share is None or share < _FEW


def keeps_few(seen: Seen) -> bool:
    """Return whether most steps learned from the few batches of a pass that was left."""
    return any(_kept(one, seen) is not None for one in seen.loaders)


def _is_same_order(one: LoaderSeen) -> bool:
    """Return whether all passes begin with the same examples."""
    sums = [p.first_checksum for p in one.training if p.first_checksum is not None]
    is_same = len(sums) >= _MIN_SUMS and len(set(sums)) == 1
    return is_same or one.sampler == "sequential"


def _share(one: LoaderSeen, num_batches: int) -> float | None:
    """Return the share of its batches that the first few are; None for a stream."""
    if one.num_batches is None:
        return None
    return min(1.0, num_batches / max(1, one.num_batches))


def _words(one: LoaderSeen, num_batches: int) -> str:
    """Return how much of the data some batches are, as `32 of 640 examples`."""
    if one.batch_size is not None and one.num_examples is not None:
        num = min(one.num_examples, num_batches * one.batch_size)
        return f"{num:,} of {one.num_examples:,} examples"
    plural = "es" if num_batches != 1 else ""
    if one.num_batches is not None:
        return f"{num_batches:,} of {one.num_batches:,} batches"
    return f"the first {num_batches:,} batch{plural} of a stream"


def _left(one: LoaderSeen) -> Found | None:
    """Find passes that all read the same first batches, as `next(iter(loader))` in each step."""
    if not reads_few(one):
        return None
    passes = one.training
    most = max(p.num_batches for p in passes)
    is_one = most == 1 and (one.batch_size is None or one.num_examples is None)
    verb = "is" if is_one else "are"
    batches = "its first batch" if most == 1 else f"{most:,} batches"
    return Found(
        evidence=f"only {_words(one, most)} {verb} ever seen: each of {len(passes):,} passes over "
        f"the training DataLoader began with the same ones and was left after {batches}",
        fix="Iterate it to its end (for batch in loader), and create an iterator once per epoch, "
        "not once per step.",
        where=one.where,
        numbers=_numbers(one, most, len(passes)),
    )


def _kept(one: LoaderSeen, seen: Seen) -> Found | None:
    """Find a pass that was left after few batches, which all later steps learned from."""
    for held in one.training:
        share = _share(one, held.num_batches)
        is_left = not held.is_whole and share is not None and share < _FEW
        if not is_left or held.num_steps < _MIN_STEPS * held.num_batches:
            continue
        if 2 * held.num_steps < seen.num_steps or not _is_learned_again(one, held, seen):
            continue
        batches = "one batch" if held.num_batches == 1 else f"{held.num_batches:,} batches"
        return Found(
            evidence=f"only {_words(one, held.num_batches)} are ever seen: {held.num_steps:,} "
            f"steps learned from {batches} of the training DataLoader, and no other was read",
            fix="Iterate the loader in the training loop, unless overfitting a few examples is the "
            "purpose.",
            where=one.where,
            numbers=_numbers(one, held.num_batches, held.num_steps),
        )
    return None


def _is_learned_again(one: LoaderSeen, held: PassSeen, seen: Seen) -> bool:
    """Return whether the inspected steps learned from no more batches than a pass has read."""
    if one.batch_size is None:
        return False
    later = [c for c in seen.backward_calls if c.step >= held.began_at_step and c.sizes]
    if not later or any(call.sizes[0] != one.batch_size for call in later):
        return False
    return any(_has_few_batches(model, held) for model in seen.models)


def _has_few_batches(model: ModelSeen, held: PassSeen) -> bool:
    keys = model.batch_keys
    return len(keys) >= _MIN_KEYS and len(set(keys.values())) <= held.num_batches


def _started_again(one: LoaderSeen) -> Found | None:
    """Find an iterator, or even worker processes, for each batch, which is a random one."""
    passes = one.training
    if len(passes) < _MIN_AGAIN:
        return None
    is_single = all(p.num_batches == 1 and not p.is_whole for p in passes)
    if not is_single or (one.num_batches or 2) < 2:
        return None
    if one.num_workers == 0 or one.keeps_workers:
        return _drawn_again(one)
    num = one.num_workers
    workers = f"{num} worker processes were" if num > 1 else "1 worker process was"
    wait_s = median(p.wait_s for p in passes)
    return Found(
        evidence=f"a new iterator was created for each of {len(passes):,} batches, so "
        f"{workers} started again for each (median wait "
        f"{1000 * wait_s:.3g} ms), and what they had read ahead was discarded",
        fix="Create the iterator once per epoch: for batch in loader.",
        where=one.where,
        numbers={"num_passes": len(passes), "wait_s": wait_s},
    )


def _drawn_again(one: LoaderSeen) -> Found | None:
    """Find batches that are each drawn from all examples, so that epochs do not exist."""
    draws, num = one.draws, len(one.training)
    if draws is None or not draws.num_distinct or one.sampler != "random":
        return None
    left = draws.num_stored - draws.num_distinct
    has_missed = draws.num_drawn >= draws.num_stored and left > _MISSED * draws.num_stored
    return Found(
        evidence=f"a new iterator was created for each of {num:,} batches, so each batch is drawn "
        f"from all examples again: {left:,} of {draws.num_stored:,} were not drawn in "
        f"{draws.num_drawn:,} draws",
        fix="Create the iterator once per epoch: for batch in loader.",
        where=one.where,
        severity=Severity.WARNING if has_missed else Severity.INFO,
        numbers={"num_passes": num, "num_never_drawn": left},
    )


def _numbers(one: LoaderSeen, num_batches: int, num_passes: int) -> dict[str, Json]:
    size = one.batch_size or 0
    return {
        "num_seen": min(one.num_examples or 0, num_batches * size) or None,
        "num_examples": one.num_examples,
        "num_batches_read": num_batches,
        "num_passes": num_passes,
    }
