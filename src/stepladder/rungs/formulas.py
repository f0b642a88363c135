"""Formulas that several rungs share to predict times from a profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from stepladder.config.choices import Where
from stepladder.config.recipe import FeaturesConfig, LoaderConfig, Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile, Provenance, TrainingTime

MODEL_PHASES = ("forward", "backward")
KNEE_FRAC = 0.9
"""Share of the largest throughput from which a batch size counts as the knee."""
_MEMORY_FRAC = 0.8
"""Share of the free memory that a step may use: the rest is for fragmentation and variation."""
_SMALL_WAIT_FRAC = 0.05
"""Share of a step below which a wait for data is negligible."""
_WAITS_APART_FRAC = 0.2
"""Relative difference that two estimates of the wait may have."""
MIN_STEPS_PER_EPOCH = 8
"""With fewer steps per epoch, early stopping has too few points to choose from."""


def predict_time(
    name: str,
    profile: Profile,
    after: TrainingTime,
    *,
    provenance: Provenance = Provenance.MODELLED,
    inputs: Mapping[str, float] | None = None,
    note: str = "",
    accuracy_gain: float | None = None,
    memory_frac: float | None = None,
    price: float | None = 1.0,
) -> Prediction:
    """Return a prediction from the predicted time and the current time of the whole training.

    The predicted time of checkpoints is set here, see `checkpoints_s`.
    """
    saves_s = checkpoints_s(profile.time, loop_s=after.loop_s, save_s=profile.save_s)
    after = replace(after, checkpoint_s=saves_s)
    now_s, after_s = profile.time.total_s, after.total_s
    return Prediction(
        rung=name,
        gain=now_s / after_s if now_s > 0 and after_s > 0 else 1.0,
        time=after,
        accuracy_gain=accuracy_gain,
        memory_frac=memory_frac,
        price=price,
        provenance=provenance,
        inputs={**(inputs or {}), "now_s": now_s, "after_s": after_s},
        note=note,
    )


def checkpoints_s(now: TrainingTime, *, loop_s: float, save_s: float | None) -> float:
    """Return the seconds of all checkpoints, if steps and validations take `loop_s`.

    One is always written at the end; the others at fixed time intervals.

    Args:
        now: the measured training, with its checkpoints.
        save_s: the one at the end; None: not known, and all are counted as periodic.
    """
    at_end_s = min(save_s or 0.0, now.checkpoint_s)
    share = loop_s / now.loop_s if now.loop_s > 0 else 1.0
    return at_end_s + (now.checkpoint_s - at_end_s) * share


def predict_replayed(name: str, profile: Profile, recipe: Recipe, *, variant: str) -> Prediction:
    """Scale the model's share of the time by the replayed operations of a variant.

    A variant that was not replayed has a gain of 1.
    """
    ratio = profile.op_replays.get(variant)
    if ratio is None:
        note = f"not measured: operations were not replayed with {variant}"
        return predict_time(name, profile, profile.time, note=note)
    return predict_time(
        name,
        profile,
        scale_model(profile, recipe, ratio),
        provenance=Provenance.REPLAYED,
        inputs={variant: ratio, "model_s": model_s(profile), "step_s": profile.time.step_s},
    )


def model_s(profile: Profile) -> float:
    """Return the seconds of the forward and backward pass of a step."""
    return sum(profile.phases_s.get(phase, 0.0) for phase in MODEL_PHASES)


def scale_model(profile: Profile, recipe: Recipe, ratio: float) -> TrainingTime:
    """Scale the time of the model, and leave everything else unchanged.

        step' = max(step - model (1 - ratio), time of the loader for a batch)

    With cached features the model is the trunk, and its time is one-time work.

    Source: Amdahl 1967, "Validity of the single processor approach"; the pipeline law (the slowest
    stage sets the pace): Mohan et al. 2021, "Analyzing and Mitigating Data Stalls in DNN Training".
    """
    now = profile.time
    if recipe.features.cached:
        features_s = now.one_time_s.get("features", 0.0)
        trunk_s = trunk_share_s(profile, recipe.features, features_s)
        return with_one_time(now, features=features_s - trunk_s * (1 - ratio))
    step_s = now.step_s - min(model_s(profile), now.step_s) * (1 - ratio)
    of_validation_s = now.validation_s
    if profile.trunk_s is not None:
        of_validation_s = min(now.validation_s, profile.trunk_s * profile.num_val)
    return replace(
        now,
        step_s=max(step_s, min(now.step_s, loader_floor_s(profile, recipe))),
        validation_s=now.validation_s - of_validation_s * (1 - ratio),
    )


def schedule_epochs(now: TrainingTime, recipe: Recipe) -> float:
    """Return the epochs after which the schedule ends training, by max_epochs or max_steps."""
    max_epochs, max_steps = float(recipe.schedule.max_epochs), recipe.schedule.max_steps
    if max_steps is None:
        return max_epochs
    return min(max_epochs, max_steps / max(now.steps_per_epoch, 1e-9))


def within_schedule(epochs: float, now: TrainingTime, recipe: Recipe) -> float:
    """Limit a number of epochs to the schedule's end, or to the current epochs if those are more.

    Early stopping might need more epochs than the schedule has.
    """
    return min(epochs, max(now.epochs, schedule_epochs(now, recipe)))


def with_one_time(time: TrainingTime, **seconds: float) -> TrainingTime:
    """Set the seconds of some one-time work, by name; zero seconds remove it."""
    parts = {**time.one_time_s, **seconds}
    return replace(time, one_time_s={name: value for name, value in parts.items() if value > 0})


def loader_floor_s(profile: Profile, recipe: Recipe) -> float:
    """Return the seconds that the loader alone needs for a batch; 0: unknown."""
    return recipe.batch.global_batch_size / profile.loader_per_s if profile.loader_per_s else 0.0


def num_views(profile: Profile, features: FeaturesConfig) -> int:
    """Return the passes through the trunk per training example when features are cached."""
    return max(1, features.cached_views) if profile.is_random_before_head else 1


def num_through_trunk(profile: Profile, features: FeaturesConfig) -> int:
    """Return the number of passes through the trunk when features are cached, one per view."""
    return profile.num_train * num_views(profile, features) + profile.num_val


def num_kept(profile: Profile, features: FeaturesConfig) -> int:
    """Return the number of rows of cached features on disk, including those of test."""
    return num_through_trunk(profile, features) + profile.num_test


def through_trunk_s(
    profile: Profile, features: FeaturesConfig, *, batch_size: int, read_s: float
) -> float:
    """Return the seconds of the one pass that computes features.

        training example = read + views (augment + trunk),    held-out example = read + trunk

    on a CPU; with a GPU, the slower of reading and computing counts. An example is read once,
    regardless of the number of its views.

    Args:
        batch_size: of a step, for which making random views was timed.
        read_s: seconds to read and decode one example.
    """
    trunk_s = view_s = profile.trunk_s or 0.0
    if profile.is_random_before_head:
        view_s += profile.phases_s.get("augment", 0.0) / batch_size
    train_s, val_s = (
        read_s + compute_s if profile.device == "cpu" else max(read_s, compute_s)
        for compute_s in (num_views(profile, features) * view_s, trunk_s)
    )
    return profile.num_train * train_s + profile.num_val * val_s


def trunk_share_s(profile: Profile, features: FeaturesConfig, features_s: float) -> float:
    """Return the trunk's share of the time of computing features; the rest is input and output."""
    if profile.trunk_s is None:
        return features_s
    return min(features_s, profile.trunk_s * num_through_trunk(profile, features))


def is_held_in_memory(profile: Profile, recipe: Recipe) -> bool:
    """Return True if decoded examples are held in memory, by choice or as measured."""
    return recipe.data.where is Where.MEMORY or "load" in profile.time.one_time_s


def all_data_bytes(profile: Profile, recipe: Recipe) -> float:
    """Return the memory of all decoded examples, including those outside of a sample."""
    return profile.example_bytes * (profile.num_train / recipe.data.fraction + profile.num_val)


def host_bytes(profile: Profile) -> int:
    """Return the free memory of the host; older ledgers have only that of the device."""
    return profile.free_memory_bytes if profile.free_host_bytes is None else profile.free_host_bytes


def loader_threads(profile: Profile, loader: LoaderConfig) -> int:
    """Return the number of reading threads; 1 if the main thread reads."""
    if profile.default_threads == 0:
        return 1
    return loader.num_threads or profile.default_threads or max(1, profile.num_cores)


def reading_s(profile: Profile, loader: LoaderConfig, features: FeaturesConfig) -> float:
    """Return the seconds of reading and decoding one example on all reading threads; 0: unknown."""
    threads = min(loader_threads(profile, loader), max(1, profile.num_cores))
    if profile.loader_cpu_s is not None:
        return profile.loader_cpu_s / threads
    return 1 / profile.loader_per_s if profile.loader_per_s and not features.cached else 0.0


def source_reading_s(profile: Profile, loader: LoaderConfig, features: FeaturesConfig) -> float:
    """Return the seconds of reading one example from storage, on all reading threads.

    If pictures are held in memory, that is the time of loading each of them, as their loader only
    copies. 0: unknown.
    """
    num_loaded = profile.num_train + profile.num_val
    load_s = profile.time.one_time_s.get("load", 0.0)
    return load_s / num_loaded if load_s and num_loaded else reading_s(profile, loader, features)


def scale_loading(
    profile: Profile, recipe: Recipe, *, threads: int, cpu_s: float, cpu_s_after: float
) -> TrainingTime:
    """Predict the time with another number of reading threads, or other CPU seconds per example.

        R_prep(w) = min(w, cores) / cpu_s
        step = max(batch / R_prep, compute + batch cpu_s / cores)

    The second term applies on a CPU, where reading and computing share the cores; compute is a step
    on batches already in memory. The measured step is scaled by the ratio of two such steps, and
    is never predicted below a step on batches in memory: T_real / T_replay bounds the gain. If
    features are cached or the data is held in memory, reading is one-time work.

    Source: Mohan et al. 2021, "Analyzing and Mitigating Data Stalls in DNN Training", 3,
    arXiv:2007.06775.
    """
    now, cores = profile.time, max(1, profile.num_cores)
    before_s = cpu_s / min(loader_threads(profile, recipe.loader), cores)
    after_s = cpu_s_after / min(threads, cores)
    pace = after_s / before_s if before_s > 0 else 1.0
    features_s = now.one_time_s.get("features", 0.0)
    reading_s = features_s - trunk_share_s(profile, recipe.features, features_s)
    one_time = with_one_time(
        now,
        load=now.one_time_s.get("load", 0.0) * pace,
        features=features_s - reading_s * (1 - pace),
    )
    if recipe.features.cached or is_held_in_memory(profile, recipe):
        return one_time
    batch = recipe.batch.global_batch_size
    compute_s = now.step_s if profile.replay_host_s is None else profile.replay_host_s
    shares = profile.device == "cpu"
    loaded_s = max(batch * before_s, compute_s + batch * cpu_s / cores * shares)
    loaded_after_s = max(batch * after_s, compute_s + batch * cpu_s_after / cores * shares)
    ratio = loaded_after_s / loaded_s if loaded_s > 0 else 1.0
    saved_s = profile.num_val * (before_s - after_s)
    floor_s = 0.0 if profile.replay_host_s is None else min(now.step_s, profile.replay_host_s)
    return replace(
        one_time,
        step_s=max(now.step_s * ratio, floor_s),
        validation_s=max(now.validation_s - saved_s, now.validation_s * min(pace, 1.0)),
    )


def why_no_data_advice(profile: Profile, recipe: Recipe) -> str | None:
    """Return why the gain of faster reading cannot be predicted; None: it can.

    The wait for data is measured twice: as a phase, and by ablation, as the time that a step saves
    with batches already in memory. On a GPU the two have to agree within 20 %, unless both are
    below 5 % of the step. On a CPU the reading threads also take cores from the step, so that the
    ablation may find more than the wait, but not much less. If reading is one-time work, neither
    matters.
    """
    step_s, replay_host_s = profile.time.step_s, profile.replay_host_s
    is_read_once = recipe.features.cached or is_held_in_memory(profile, recipe)
    if replay_host_s is None or not profile.phases_s or is_read_once:
        return None
    waited_s, gained_s = profile.phases_s.get("data_wait", 0.0), step_s - replay_host_s
    larger_s = max(gained_s, waited_s)
    agree = larger_s < _SMALL_WAIT_FRAC * step_s
    agree = agree or abs(gained_s - waited_s) <= _WAITS_APART_FRAC * larger_s
    if profile.device == "cpu":
        agree = agree or waited_s <= gained_s + _SMALL_WAIT_FRAC * step_s
    if agree:
        return None
    return (
        f"two estimates of the wait for data disagree: {1e3 * waited_s:.3g} ms per step, "
        f"{1e3 * gained_s:.3g} ms saved with batches in memory"
    )


def epochs_ratio(batch: int, larger: int, noise_scale: float | None) -> float:
    """Return the ratio of epochs to the same loss with a larger batch and with this one.

        E' / E = (1 + B' / Bn) / (1 + B / Bn), and 1 where the noise scale Bn is unknown.

    Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", 2.3,
    arXiv:1812.06162.
    """
    if noise_scale is None or noise_scale <= 0:
        return 1.0
    return (1 + larger / noise_scale) / (1 + batch / noise_scale)


def knee_batch(fixed_s: float, per_example_s: float, loader_per_s: float | None) -> float:
    """Return the smallest batch size whose end-to-end throughput is within 10 % of the largest.

    A step takes t(b) = fixed + per_example b, so that the throughput b / t(b) rises towards
    1 / per_example, limited by the loader's rate. Infinite if nothing limits it.

    Source: Shallue et al. 2019, "Measuring the Effects of Data Parallelism", arXiv:1811.03600; not
    to grow a batch that does not increase throughput: Google, "Deep Learning Tuning Playbook".
    """
    ceilings = [1 / per_example_s] if per_example_s > 0 else []
    ceilings += [loader_per_s] if loader_per_s else []
    if not ceilings or fixed_s <= 0:
        return math.inf if fixed_s > 0 else 1.0
    wanted_per_s = KNEE_FRAC * min(ceilings)
    return fixed_s * wanted_per_s / (1 - per_example_s * wanted_per_s)


def memory_batch(profile: Profile) -> float:
    """Return the largest batch size whose step fits into the free memory; infinite if unknown.

    Peak memory is taken as linear in the batch size, through the smallest and largest measured.
    """
    sizes = sorted(profile.memory_by_batch)
    if len(sizes) < 2:
        return math.inf
    low, high = profile.memory_by_batch[sizes[0]], profile.memory_by_batch[sizes[-1]]
    per_example = (high - low) / (sizes[-1] - sizes[0])
    if per_example <= 0:
        return math.inf
    return sizes[0] + (_MEMORY_FRAC * profile.free_memory_bytes - low) / per_example


def batch_doublings(profile: Profile, recipe: Recipe, *, limit: float) -> tuple[int, ...]:
    """Return the doublings of the batch size, up to the first at or above the knee.

    Without those above the limit, with fewer than 8 steps per epoch, or with a single example in
    the last batch of an epoch, which BatchNorm cannot train on.
    """
    if profile.step_fixed_s is None or profile.step_per_example_s is None:
        return ()
    knee = knee_batch(profile.step_fixed_s, profile.step_per_example_s, profile.loader_per_s)
    largest = min(limit, profile.num_train / MIN_STEPS_PER_EPOCH)
    batch = recipe.batch.global_batch_size
    found: list[int] = []
    while batch < knee and 2 * batch <= largest:
        batch *= 2
        if profile.num_train % batch != 1:
            found.append(batch)
    return tuple(found)
