"""Faults in the inputs of models and in the order of examples."""

from __future__ import annotations

import math
from collections.abc import Mapping

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.faults.inputs.unread import keeps_few, reads_few
from stepladder.watching.seen.loaders import LoaderSeen
from stepladder.watching.seen.models import InputSeen
from stepladder.watching.seen.seen import Seen

_NO_INPUT = Unseen("no floating-point input of a first layer was measured")
_LARGE = 10.0  # standard deviations from 0: torch's layers expect about 1
_TINY = 0.05
_NEAR_ZERO = 0.5  # means of normalised input
_NEAR_ONE = (0.3, 2.0)  # and their standard deviations
_WIDEST = 0.6  # standard deviation of images in [0, 1]: 0.5 at most
_MIN_AGAIN = 4  # repeated batches
_MIN_PERIOD = 4  # steps: fewer batches are usually an intended overfitting test
_PIXELS = 4.0  # times as many as the model was made for
_POOLED = 32 * 32  # positions that the last pooling layer averages
_MIN_LABELED = 2
_STORED_APART = 0.9  # of the stored examples are distinct
_MIN_DRAWN = 64


def unnormalised_input(seen: Seen) -> Answer:
    """Measures the input of the first layer with weights, unless a norm layer comes before it."""
    if not seen.inputs:
        return _NO_INPUT
    for one in seen.inputs:
        if _is_twice(one):
            continue
        is_large = one.spread.size > _LARGE or one.worst_feature > 5 * _LARGE
        if is_large and one.spread.is_finite:
            worst = f", one feature up to {one.worst_feature:.3g}" if one.worst_feature else ""
            return Found(
                evidence=f"the first {one.layer} receives values from {one.spread.low:.3g} to "
                f"{one.spread.high:.3g} (mean {one.spread.mean:.3g}, std "
                f"{one.spread.std:.3g}{worst})",
                fix="Subtract the mean of the training set and divide by its standard deviation, "
                "per channel or feature. Divide image bytes by 255 first.",
                where=_called(seen),
                numbers={"mean": one.spread.mean, "std": one.spread.std},
            )
    one = seen.inputs[0]
    return Sound(f"inputs have mean {one.spread.mean:.2g} and std {one.spread.std:.2g}")


def double_normalisation(seen: Seen) -> Answer:
    """Checks images for almost no contrast, or for the shift of a second normalisation.

    If the model normalises, its input is compared with the input of its first layer.
    """
    pictures = [one for one in seen.inputs if one.channel_means]
    if not pictures:
        return Unseen("no images were measured")
    one = pictures[0]
    size = max(abs(one.spread.low), abs(one.spread.high))
    if 0 < size < _TINY and one.spread.std < 0.02:
        return Found(
            evidence=f"images have values from {one.spread.low:.3g} to {one.spread.high:.3g} (std "
            f"{one.spread.std:.2g}), as if divided by 255 twice",
            fix="Divide by 255 only once: ToTensor and similar transforms already do.",
            where=_called(seen),
            numbers={"std": one.spread.std},
        )
    flat = max(one.channel_stds)
    if 0 < flat < 0.1 and min(abs(mean) for mean in one.channel_means) > 5 * flat:
        return Found(
            evidence=f"the channels have means {_few(one.channel_means)} and stds "
            f"{_few(one.channel_stds)}: almost no contrast, as if divided by 255 twice",
            fix="Divide by 255 only once: ToTensor and similar transforms already do.",
            where=_called(seen),
            numbers={"mean": one.spread.mean, "std": flat},
        )
    twice = next((one for one in pictures if _is_twice(one)), None)
    if twice is not None:
        return Found(
            evidence=f"the model receives channels with means {_few(twice.given_means)} and stds "
            f"{_few(twice.given_stds)}, and its first {twice.layer} receives means "
            f"{_few(twice.channel_means)} and stds {_few(twice.channel_stds)}: the model "
            "normalises input that is already normalised",
            fix="Normalise once, in the dataset or in the model.",
            where=_called(seen),
            numbers={"mean": twice.spread.mean, "std": twice.spread.std},
        )
    if _is_shifted(one):
        return Found(
            evidence=f"every channel has a mean near {one.spread.mean:.2g} and a std of "
            f"{one.spread.std:.2g}, as if normalised twice",
            fix="Normalise once, in the dataset or in the model.",
            where=_called(seen),
            numbers={"mean": one.spread.mean, "std": one.spread.std},
        )
    return Sound("images have the contrast of a single normalisation")


def _is_twice(one: InputSeen) -> bool:
    """Return whether the model normalises input that is already normalised.

    The first layer then receives (input - m) / s for each channel, where m and s are a mean and
    a standard deviation typical of images in [0, 1], so its values are far from 0.
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
    """Return whether each channel's mean is about -mean/std of a usual [0, 1] normalisation."""
    means, stds = one.channel_means, one.channel_stds
    return (
        all(-4.5 < m < -1.2 for m in means)
        and all(s > 0.4 or math.isclose(s, 0) for s in stds)
        and one.spread.low < -1.5
        and one.spread.high - one.spread.low > 1.0
    )


def not_finite_data(seen: Seen) -> Answer:
    """Checks inputs and targets for NaN and infinity, and always at the step that lost the loss."""
    if seen.not_finite is not None:
        is_fatal = seen.loss_not_finite_at is not None
        return Found(
            evidence=f"{seen.not_finite} contained NaN or infinity at step {seen.not_finite_step}"
            + (
                f", and the loss was not finite at step {seen.loss_not_finite_at}"
                if is_fatal
                else ""
            ),
            fix="Find and remove these examples, e.g. check torch.isfinite(x).all() in the "
            "dataset.",
            where=seen.not_finite_at,
            severity=Severity.ERROR if is_fatal else Severity.WARNING,
        )
    if not seen.inputs and seen.loss_not_finite_at is None:
        return _NO_INPUT
    return Sound("all inspected values are finite")


def duplicated_inputs(seen: Seen) -> Answer:
    """Compares the examples of a batch with each other, and those stored in a dataset."""
    looked = [one for one in seen.inputs if one.num_examples >= 4]
    for one in seen.loaders:
        if one.training and one.num_distinct < 0.5 * one.num_stored:
            return Found(
                evidence=f"only {one.num_distinct} of {one.num_stored} inspected examples in "
                f"{one.dataset} are distinct",
                fix="Check how they are collected: if an array is reused for each example, store "
                "a copy of it.",
                where=one.where,
                numbers={"num_stored": one.num_stored, "num_distinct": one.num_distinct},
            )
    for one in seen.loaders:
        if one.training and _returns_few(one):
            return Found(
                evidence=f"{one.dataset} returned only {one.num_learnt_distinct:,} different "
                f"examples in the {one.num_learnt:,} inspected draws, although those that it "
                "stores differ",
                fix="Use the index in __getitem__ as it is: return self.x[idx], self.y[idx].",
                where=one.where,
                numbers={"num_drawn": one.num_learnt, "num_distinct": one.num_learnt_distinct},
            )
    if not looked:
        return _NO_INPUT
    copies = sum(one.num_copies for one in looked)
    constant = sum(one.num_constant for one in looked)
    num = sum(one.num_examples for one in looked)
    if copies > 0.5 * num or constant > 0.5 * num:
        what = "are constant" if constant > 0.5 * num else "duplicate another one in their batch"
        return Found(
            evidence=f"{max(copies, constant)} of {num} inspected examples {what}",
            fix="Check that the dataset's __getitem__ returns different examples for different "
            "indices.",
            where=_called(seen),
            numbers={"num_copies": copies, "num_constant": constant},
        )
    return Sound(f"{copies} of {num} examples are duplicates")


def _returns_few(one: LoaderSeen) -> bool:
    """Return whether a dataset returns few examples for many indices, and stores others.

    A model that receives a part of each example may well receive the same of several.
    """
    draws = one.draws
    if draws is None or not draws.num_compared or one.num_learnt < _MIN_DRAWN:
        return False
    if (one.least_width or 0) < draws.width:
        return False
    if draws.num_apart < _STORED_APART * draws.num_compared:
        return False
    num = min(draws.num_distinct, one.num_examples or 0)  # other loaders may draw the others
    expected = num * -math.expm1(-one.num_learnt / max(1, num))
    return one.num_learnt_distinct < 0.5 * expected


def unmixed_batches(seen: Seen) -> Answer:
    """Counts the classes in each batch: a single class per batch, and not always the same one."""
    calls = [c for c in seen.losses if len(c.step_classes) >= _MIN_LABELED]
    if not calls:
        return Unseen("too few batches of class labels were inspected")
    for call in calls:
        ones = [classes for classes in call.step_classes.values() if len(classes) == 1]
        num = len(call.step_classes)
        if len(ones) >= 0.5 * num and len(set().union(*ones)) >= 2:
            return Found(
                evidence=f"at {len(ones)} of {num} inspected steps, all labels of the batch were "
                "of one class, and not always the same one",
                fix="Shuffle: DataLoader(..., shuffle=True).",
                where=next((lo.where for lo in seen.loaders if lo.training), call.where),
                numbers={"num_steps": num},
            )
    return Sound("batches contain several classes")


def no_shuffle(seen: Seen) -> Answer:
    """Compares the order of epochs: a sequential sampler, the same first batch, or a repeat."""
    loaders = [
        lo
        for lo in seen.loaders
        if len(lo.training) >= 2
        and (lo.num_batches or 2) > 1
        and (lo.batch_size is not None or lo.is_iterable)  # otherwise the dataset makes batches
        and not reads_few(lo)  # shuffling would hide that, not mend it
        and not lo.ignores_index
        and not (lo.is_iterable and lo.restarted_draws)
    ]
    for one in loaders:
        if one.sampler == "distributed":
            continue
        is_repeated = one.begins_alike
        if one.sampler == "sequential" or (is_repeated and not seen.reseeded):
            how = (
                "reads the examples in stored order"
                if one.sampler == "sequential"
                else ("returns the same first batch")
            )
            return Found(
                evidence=f"the training DataLoader {how} in each of {len(one.training)} epochs",
                fix="Shuffle in the dataset, for example with a buffer, differently in each epoch."
                if one.is_iterable
                else "Pass shuffle=True to the training DataLoader.",
                where=one.where,
                numbers={"num_epochs": len(one.training)},
            )
    if keeps_few(seen):
        return Unseen("the same few batches of a loader are learned from again and again")
    learnt = [model for model in seen.models if model.is_optimised]
    for model in learnt or seen.models:  # the fallback: training without torch's optimizers
        if model.carries_state:
            continue  # from the batch before: a stream is read in its order
        period = _period(model.window_offsets)
        if period is not None:
            return Found(
                evidence="the batches are the same slices of one tensor in the same order, every "
                f"{period} steps",
                fix="Shuffle in each epoch: order = torch.randperm(n).",
                where=model.called_at,
                numbers={"period": period},
            )
        period = _period_of(model.batch_keys)
        if period is not None:
            return Found(
                evidence=f"the batches come from no DataLoader, and in {len(model.batch_keys)} "
                f"inspected steps they repeat, row for row, every {period} steps",
                fix="Shuffle in each epoch: order = torch.randperm(n).",
                where=model.called_at,
                numbers={"period": period},
            )
    if not loaders and not any(model.window_offsets for model in seen.models):
        return Unseen("no loader was iterated for two epochs of training")
    return Sound("the order differs between epochs")


def _period(offsets: list[int]) -> int | None:
    """Return the number of batches after which the same slices repeat; None if they don't."""
    if len(offsets) < 8 or offsets[0] not in offsets[1:]:
        return None
    period = offsets.index(offsets[0], 1)
    if period < 2 or len(offsets) < 2 * period:
        return None
    is_same = all(a == b for a, b in zip(offsets, offsets[period:], strict=False))
    return period if is_same else None


def _period_of(keys: Mapping[int, tuple[float, ...]]) -> int | None:
    """Return the number of steps after which the same batches repeat; None if they don't.

    Not every step is inspected: the result may be a multiple of the true period.
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
                evidence=f"the DistributedSampler returned the training examples in the same order "
                f"in all {len(one.training)} epochs, because its set_epoch was never called",
                fix="Call sampler.set_epoch(epoch) at the start of each epoch.",
                where=one.where,
            )
    return Sound("set_epoch is called")


def same_draws_in_workers(seen: Seen) -> Answer:
    """Checks for a random generator that every worker process starts with a copy of."""
    loaders = [lo for lo in seen.loaders if lo.num_workers >= 2]
    if not loaders:
        return Unseen("no loader has two or more workers")
    for one in loaders:
        if one.shared_draws is not None:
            return Found(
                evidence=f"{one.shared_draws} starts in the same state in all {one.num_workers} "
                "worker processes of the DataLoader, so they draw the same random numbers and "
                "augment their examples alike",
                fix="In worker_init_fn of the DataLoader, seed it with torch.initial_seed(), or "
                "create it there.",
                where=one.where,
            )
    return Sound("workers draw different random numbers")


def input_too_large(seen: Seen) -> Answer:
    """Compares the image size with the model's native size, or with its last pooling's input."""
    models = [m for m in seen.models if m.given_pixels]
    if not models:
        return Unseen("no images were seen")
    for model in models:
        given, wanted = model.given_pixels or 0, model.wanted_pixels
        if wanted and given > _PIXELS * wanted:
            return Found(
                evidence=f"images have {given:,} pixels, {given / wanted:.0f} times as many as the "
                f"{wanted:,} that {model.built} was designed for, so each step takes much longer "
                "than "
                "necessary",
                fix=f"Resize images to about {round(wanted**0.5)} × {round(wanted**0.5)} pixels.",
                where=model.called_at,
                numbers={"given": given, "wanted": wanted},
            )
        if not wanted and (model.pooled_pixels or 0) >= _POOLED:
            return Found(
                evidence=f"images have {given:,} pixels, so that the last pooling layer of "
                f"{model.built} averages {model.pooled_pixels:,} positions, each of which sees "
                "only a small part of the image",
                fix="Resize images to half or a quarter of the pixels; the time falls in "
                "proportion.",
                where=model.called_at,
                numbers={"given": given},
            )
    return Sound("images have a size that the model is designed for")


def _called(seen: Seen) -> str | None:
    return next((m.called_at for m in seen.models if m.called_at), None)


def _few(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.2g}" for value in values[:3])
