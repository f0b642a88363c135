"""What models are given, and in which order."""

from __future__ import annotations

import math
from collections.abc import Mapping

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen import InputSeen, LoaderSeen, Seen

_NO_INPUT = Unseen("no floating input of a first layer was measured")
_LARGE = 10.0  # deviations from 0: torch's layers are made for about 1
_TINY = 0.05
_NEAR_ZERO = 0.5  # means of what is normalised
_NEAR_ONE = (0.3, 2.0)  # and deviations
_WIDEST = 0.6  # deviation of pictures from 0 to 1: it is 0.5 at most
_MIN_AGAIN = 4  # batches that come again
_MIN_PERIOD = 4  # steps: fewer batches are learnt by heart on purpose
_PIXELS = 4.0  # times as many as the model was made for
_POOLED = 32 * 32  # places over which a last pooling averages
_MIN_LABELED = 2


def unnormalised_input(seen: Seen) -> Answer:
    """Measures what the first layer with weights is given, unless a norm layer comes before it."""
    if not seen.inputs:
        return _NO_INPUT
    for one in seen.inputs:
        if _is_twice(one):
            continue
        is_large = one.spread.size > _LARGE or one.worst_feature > 5 * _LARGE
        if is_large and one.spread.is_finite:
            worst = f", one feature up to {one.worst_feature:.3g}" if one.worst_feature else ""
            return Found(
                evidence=f"the first {one.layer} gets numbers from {one.spread.low:.3g} to "
                f"{one.spread.high:.3g} (mean {one.spread.mean:.3g}, deviation "
                f"{one.spread.std:.3g}{worst})",
                fix="Subtract the training set's mean and divide by its deviation, by channel or "
                "feature; bytes of pictures divided by 255 first.",
                where=_called(seen),
                numbers={"mean": one.spread.mean, "std": one.spread.std},
            )
    one = seen.inputs[0]
    return Sound(f"inputs have mean {one.spread.mean:.2g} and deviation {one.spread.std:.2g}")


def double_normalisation(seen: Seen) -> Answer:
    """Looks for pictures of almost no contrast, or shifted as a second normalisation shifts.

    Where the model does it, what it was given is compared with what its first layer gets.
    """
    pictures = [one for one in seen.inputs if one.channel_means]
    if not pictures:
        return Unseen("no pictures were measured")
    one = pictures[0]
    size = max(abs(one.spread.low), abs(one.spread.high))
    if 0 < size < _TINY and one.spread.std < 0.02:
        return Found(
            evidence=f"pictures go from {one.spread.low:.3g} to {one.spread.high:.3g} (deviation "
            f"{one.spread.std:.2g}), as if divided by 255 twice",
            fix="Divide by 255 once: ToTensor and its like do it already.",
            where=_called(seen),
            numbers={"std": one.spread.std},
        )
    flat = max(one.channel_stds)
    if 0 < flat < 0.1 and min(abs(mean) for mean in one.channel_means) > 5 * flat:
        return Found(
            evidence=f"channels have means of {_few(one.channel_means)} and deviations of "
            f"{_few(one.channel_stds)}: almost no contrast, as after dividing by 255 twice",
            fix="Divide by 255 once: ToTensor and its like do it already.",
            where=_called(seen),
            numbers={"mean": one.spread.mean, "std": flat},
        )
    twice = next((one for one in pictures if _is_twice(one)), None)
    if twice is not None:
        return Found(
            evidence=f"the model is given channels with means of {_few(twice.given_means)} and "
            f"deviations of {_few(twice.given_stds)}, and its first {twice.layer} gets means of "
            f"{_few(twice.channel_means)} and deviations of {_few(twice.channel_stds)}: what was "
            "normalised already is normalised again in the model",
            fix="Normalise once, in the data set or in the model.",
            where=_called(seen),
            numbers={"mean": twice.spread.mean, "std": twice.spread.std},
        )
    if _is_shifted(one):
        return Found(
            evidence=f"every channel has a mean near {one.spread.mean:.2g} and a deviation of "
            f"{one.spread.std:.2g}, as after subtracting and dividing twice",
            fix="Normalise once, in the data set or in the model.",
            where=_called(seen),
            numbers={"mean": one.spread.mean, "std": one.spread.std},
        )
    return Sound("pictures have the contrast of one normalisation")


def _is_twice(one: InputSeen) -> bool:
    """Whether the model normalises what is normalised already.

    The first layer then gets (given - m) / s by channel, with a mean m and deviation s as pictures
    from 0 to 1 have them, and numbers far from 0.
    """
    channels = list(
        zip(one.given_means, one.given_stds, one.channel_means, one.channel_stds, strict=False)
    )
    return bool(channels) and all(
        abs(given) < _NEAR_ZERO
        and _NEAR_ONE[0] < given_std < _NEAR_ONE[1]
        and mean < -1.0
        and std > given_std / _WIDEST
        and 0 < given - mean * given_std / std < 1
        for given, given_std, mean, std in channels
    )


def _is_shifted(one: InputSeen) -> bool:
    """Whether each channel's mean is about -mean/std of a usual normalisation of [0, 1]."""
    means, stds = one.channel_means, one.channel_stds
    return (
        all(-4.5 < m < -1.2 for m in means)
        and all(s > 0.4 or math.isclose(s, 0) for s in stds)
        and one.spread.low < -1.5
        and one.spread.high - one.spread.low > 1.0
    )


def not_finite_data(seen: Seen) -> Answer:
    """Looks for NaN and infinity in inputs and targets, and always where the loss became such."""
    if seen.not_finite is not None:
        is_fatal = seen.loss_not_finite_at is not None
        return Found(
            evidence=f"{seen.not_finite} held NaN or infinity at step {seen.not_finite_step}"
            + (
                f", and the loss was not finite at step {seen.loss_not_finite_at}"
                if is_fatal
                else ""
            ),
            fix="Find and drop such examples: torch.isfinite(x).all() in the data set.",
            where=seen.not_finite_at,
            severity=Severity.ERROR if is_fatal else Severity.WARNING,
        )
    if not seen.inputs and seen.loss_not_finite_at is None:
        return _NO_INPUT
    return Sound("the numbers that were looked at are finite")


def duplicated_inputs(seen: Seen) -> Answer:
    """Compares the examples of a batch with each other, and those that a data set stores."""
    looked = [one for one in seen.inputs if one.num_examples >= 4]
    for one in seen.loaders:
        if one.training and one.num_distinct < 0.5 * one.num_stored:
            return Found(
                evidence=f"{one.num_stored} examples that {one.dataset} holds were looked at, and "
                f"only {one.num_distinct} of them differ",
                fix="Look at how they are collected: an array that is filled again and again must "
                "be copied each time.",
                where=one.where,
                numbers={"num_stored": one.num_stored, "num_distinct": one.num_distinct},
            )
    if not looked:
        return _NO_INPUT
    copies = sum(one.num_copies for one in looked)
    constant = sum(one.num_constant for one in looked)
    num = sum(one.num_examples for one in looked)
    if copies > 0.5 * num or constant > 0.5 * num:
        what = "are constant" if constant > 0.5 * num else "are copies of others in their batch"
        return Found(
            evidence=f"{max(copies, constant)} of {num} examples that were looked at {what}",
            fix="Look at what the data set gives for different indices.",
            where=_called(seen),
            numbers={"num_copies": copies, "num_constant": constant},
        )
    return Sound(f"{copies} of {num} examples are copies")


def unmixed_batches(seen: Seen) -> Answer:
    """Counts the classes in a batch: one each, and not always the same one."""
    calls = [c for c in seen.losses if len(c.step_classes) >= _MIN_LABELED]
    if not calls:
        return Unseen("too few batches of class labels were looked at")
    for call in calls:
        ones = [classes for classes in call.step_classes.values() if len(classes) == 1]
        num = len(call.step_classes)
        if len(ones) >= 0.5 * num and len(set().union(*ones)) >= 2:
            return Found(
                evidence=f"at {len(ones)} of {num} steps that were looked at, a batch held one "
                "class only, and not always the same one",
                fix="Shuffle: DataLoader(..., shuffle=True).",
                where=next((lo.where for lo in seen.loaders if lo.training), call.where),
                numbers={"num_steps": num},
            )
    return Sound("batches hold several classes")


def no_shuffle(seen: Seen) -> Answer:
    """Compares the order of epochs: a sequential sampler, the same first batch, or all again."""
    loaders = [
        lo
        for lo in seen.loaders
        if len(lo.training) >= 2
        and (lo.num_batches or 2) > 1
        and (lo.batch_size is not None or lo.is_iterable)  # else its data set makes the batches
    ]
    for one in loaders:
        if one.sampler == "distributed":
            continue
        is_repeated = _repeats(one)
        if one.sampler == "sequential" or (is_repeated and not seen.reseeded):
            how = (
                "takes the examples in their stored order"
                if one.sampler == "sequential"
                else ("gives the same first batch")
            )
            return Found(
                evidence=f"the loader {how} in each of {len(one.training)} epochs",
                fix="Shuffle in the data set, as with a buffer, anew in each epoch."
                if one.is_iterable
                else "Give the training loader shuffle=True.",
                where=one.where,
                numbers={"num_epochs": len(one.training)},
            )
    learnt = [model for model in seen.models if model.is_optimised]
    for model in learnt or seen.models:  # without one: it learns without torch's optimisers
        period = _period(model.window_offsets)
        if period is not None:
            return Found(
                evidence=f"batches are the same slices of one tensor in the same order, every "
                f"{period} steps",
                fix="Draw a new order each epoch: order = torch.randperm(n).",
                where=model.called_at,
                numbers={"period": period},
            )
        period = _period_of(model.batch_keys)
        if period is not None:
            return Found(
                evidence=f"no loader gives the batches, and those of {len(model.batch_keys)} steps "
                f"that were looked at are, row for row, those of {period} steps before wherever "
                "that one was looked at too",
                fix="Draw a new order each epoch: order = torch.randperm(n).",
                where=model.called_at,
                numbers={"period": period},
            )
    if not loaders and not any(model.window_offsets for model in seen.models):
        return Unseen("no loader was used for two epochs of training")
    return Sound("the order of epochs differs")


def _repeats(one: LoaderSeen) -> bool:
    sums = [p.first_checksum for p in one.training if p.first_checksum is not None]
    return len(sums) >= 2 and len(set(sums)) == 1 and all(p.num_batches > 1 for p in one.training)


def _period(offsets: list[int]) -> int | None:
    """Return after how many batches the same slices come again, where they always do."""
    if len(offsets) < 8 or offsets[0] not in offsets[1:]:
        return None
    period = offsets.index(offsets[0], 1)
    if period < 2 or len(offsets) < 2 * period:
        return None
    is_same = all(a == b for a, b in zip(offsets, offsets[period:], strict=False))
    return period if is_same else None


def _period_of(keys: Mapping[int, tuple[float, ...]]) -> int | None:
    """Return after how many steps the same batches come again, where they always do.

    Not every step was looked at: the period may be a multiple of the true one.
    """
    steps: dict[tuple[float, ...], list[int]] = {}
    for step, key in sorted(keys.items()):
        steps.setdefault(key, []).append(step)
    period = math.gcd(*(step - same[0] for same in steps.values() for step in same[1:]))
    if len(keys) - len(steps) < _MIN_AGAIN or len(steps) < _MIN_PERIOD or period < _MIN_PERIOD:
        return None
    return period if len({step % period for step in keys}) == len(steps) else None


def sampler_without_set_epoch(seen: Seen) -> Answer:
    """Counts epochs of a loader with a DistributedSampler, and calls of set_epoch."""
    loaders = [lo for lo in seen.loaders if lo.epoch_sampler and len(lo.training) >= 2]
    if not loaders:
        return Unseen("no shuffling DistributedSampler was used for two epochs")
    for one in loaders:
        if one.num_set_epoch == 0:
            return Found(
                evidence=f"the DistributedSampler gave the same order in {len(one.training)} "
                "epochs: its epoch was never set",
                fix="Call sampler.set_epoch(epoch) before each epoch.",
                where=one.where,
            )
    return Sound("the sampler is told its epoch")


def same_draws_in_workers(seen: Seen) -> Answer:
    """Looks for one generator that every worker process begins with a copy of."""
    loaders = [lo for lo in seen.loaders if lo.num_workers >= 2]
    if not loaders:
        return Unseen("no loader has two workers")
    for one in loaders:
        if one.shared_draws is not None:
            return Found(
                evidence=f"{one.shared_draws} begins alike in all {one.num_workers} workers: they "
                "draw the same numbers",
                fix="Seed by worker: in worker_init_fn use torch.initial_seed(), or make the "
                "generator there.",
                where=one.where,
            )
    return Sound("workers draw numbers of their own")


def input_too_large(seen: Seen) -> Answer:
    """Compares a picture with what the model was made for, or with what its last pooling gets."""
    models = [m for m in seen.models if m.given_pixels]
    if not models:
        return Unseen("no pictures were seen")
    for model in models:
        given, wanted = model.given_pixels or 0, model.wanted_pixels
        if wanted and given > _PIXELS * wanted:
            return Found(
                evidence=f"pictures of {given:,} pixels, and {model.built} was made for "
                f"{wanted:,}: {given / wanted:.0f} times as many",
                fix=f"Resize to about {round(wanted**0.5)} pixels a side.",
                where=model.called_at,
                numbers={"given": given, "wanted": wanted},
            )
        if not wanted and (model.pooled_pixels or 0) >= _POOLED:
            return Found(
                evidence=f"the last pooling averages {model.pooled_pixels:,} places of pictures of "
                f"{given:,} pixels: {model.built} sees a small part at a time",
                fix="Resize pictures to a half or a quarter, which takes as much less time.",
                where=model.called_at,
                numbers={"given": given},
            )
    return Sound("pictures are of a size that the model is made for")


def _called(seen: Seen) -> str | None:
    return next((m.called_at for m in seen.models if m.called_at), None)


def _few(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.2g}" for value in values[:3])
