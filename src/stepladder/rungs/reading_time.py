"""Time of reading pictures that are not held in memory: disk, network link, and streaming."""

from __future__ import annotations

from dataclasses import replace

from stepladder.config.recipe import Recipe
from stepladder.records.profile import Profile, TrainingTime
from stepladder.rungs.formulas import (
    host_bytes,
    is_held_in_memory,
    loader_threads,
    source_reading_s,
    with_one_time,
)
from stepladder.training.output.wording import byte_rate


def from_disk_s(profile: Profile, *, example_bytes: float, num_examples: float) -> float:
    """Return the disk's seconds per example, if memory caches as many examples as fit.

        seconds = (1 - free memory / all bytes) bytes / rate

    0 if all fit, or if the disk's rate is unknown.

    Source: Mohan et al. 2021, "Analyzing and Mitigating Data Stalls in DNN Training", 3,
    arXiv:2007.06775.
    """
    all_bytes = example_bytes * num_examples
    if not profile.disk_bytes_per_s or all_bytes <= host_bytes(profile):
        return 0.0
    missing_frac = 1 - host_bytes(profile) / all_bytes
    return missing_frac * example_bytes / profile.disk_bytes_per_s


def from_link_s(profile: Profile, recipe: Recipe, *, num_examples: float) -> float:
    """Return the link's seconds per example in each epoch, for data in an object store.

    0 if the cache holds all data, the files are on this machine, or the link's rate is unknown. A
    cache that does not hold all data is useless: it evicts the least recently used files, which are
    needed next.
    """
    if not profile.link_bytes_per_s or _is_cached(profile, recipe, num_examples=num_examples):
        return 0.0
    return (profile.stored_bytes or 0.0) / profile.link_bytes_per_s


def download_s(profile: Profile, recipe: Recipe, *, num_examples: float) -> float:
    """Return the seconds to download all data into the cache once; 0 if it is not cached."""
    if not profile.link_bytes_per_s or not _is_cached(profile, recipe, num_examples=num_examples):
        return 0.0
    return num_examples * (profile.stored_bytes or 0.0) / profile.link_bytes_per_s


def _is_cached(profile: Profile, recipe: Recipe, *, num_examples: float) -> bool:
    """Return True if the cache of an object store holds all data that a training reads."""
    num_bytes = (profile.stored_bytes or 0.0) * num_examples
    return num_bytes <= min(recipe.data.max_cache_bytes, profile.free_disk_bytes)


def from_store_s(profile: Profile, recipe: Recipe, *, num_examples: float) -> float:
    """Return the seconds per example of the link or the disk, which threads do not reduce.

    Args:
        num_examples: read per epoch, including its validation.
    """
    stored_bytes = profile.stored_bytes or 0.0
    disk_s = from_disk_s(profile, example_bytes=stored_bytes, num_examples=num_examples)
    return max(disk_s, from_link_s(profile, recipe, num_examples=num_examples))


def about_store(profile: Profile, recipe: Recipe, *, num_examples: float) -> str:
    """Return a note on the assumed rate of the disk or the link."""
    rate = profile.link_bytes_per_s
    if not rate:
        return about_disk(profile)
    if _is_cached(profile, recipe, num_examples=num_examples):
        return f"only the first epoch downloads the files, at {byte_rate(rate)}"
    return f"each epoch downloads the files, at {byte_rate(rate)}, as the cache cannot hold them"


def about_disk(profile: Profile) -> str:
    """Return a note on the assumed rate of the disk."""
    if not profile.disk_bytes_per_s:
        return "the time of the disk is not included, as its rate was not measured"
    return f"data that memory cannot cache is read at {byte_rate(profile.disk_bytes_per_s)}"


def no_faster_than(
    time: TrainingTime, profile: Profile, recipe: Recipe, *, example_s: float
) -> TrainingTime:
    """Limit steps and validations to the rate of a disk or link that all threads share."""
    return replace(
        time,
        step_s=max(time.step_s, recipe.batch.global_batch_size * example_s),
        validation_s=max(time.validation_s, profile.num_val * example_s),
    )


def still_from_the_store(time: TrainingTime, profile: Profile, recipe: Recipe) -> TrainingTime:
    """Limit a time to the rate of disk or link, for a recipe that reads as much as now.

    Never above the measured time, which had the same disk and link.
    """
    if recipe.features.cached or is_held_in_memory(profile, recipe):
        return time
    example_s = from_store_s(profile, recipe, num_examples=profile.num_train + profile.num_val)
    bounded, now = no_faster_than(time, profile, recipe, example_s=example_s), profile.time
    return replace(
        bounded,
        step_s=max(time.step_s, min(bounded.step_s, now.step_s)),
        validation_s=max(time.validation_s, min(bounded.validation_s, now.validation_s)),
    )


def fetch_and_decode_s(profile: Profile) -> tuple[float, float]:
    """Return the seconds of one thread to fetch an example and to decode it.

    Ledgers of earlier versions have only the sum: it counts as decoding.
    """
    if profile.loader_fetch_s is None or profile.loader_decode_s is None:
        return 0.0, profile.loader_cpu_s or 0.0
    return profile.loader_fetch_s, profile.loader_decode_s


def streamed(profile: Profile, recipe: Recipe, *, growth: float = 1.0) -> TrainingTime:
    """Return the time if pictures are read in each epoch instead of held in memory.

    Loading is no longer needed, and each step and validation reads its pictures: on a CPU that adds
    to computing, with a GPU the slower of the two counts, and it is never faster than the disk or
    the link to an object store. A cache downloads its files once. One example takes the time of
    fetching and decoding it, or, if these were not measured, of loading it once.

    Args:
        growth: ratio of the number of training examples to the current one.
    """
    now = profile.time
    example_s = source_reading_s(profile, recipe.loader, recipe.features)
    if profile.loader_fetch_s is not None and profile.loader_decode_s is not None:
        threads = min(loader_threads(profile, recipe.loader), max(1, profile.num_cores))
        example_s = (profile.loader_fetch_s + profile.loader_decode_s) / threads
    num_examples = profile.num_train * growth + profile.num_val
    store_s = from_store_s(profile, recipe, num_examples=num_examples)
    once_s = download_s(profile, recipe, num_examples=num_examples)
    batch = recipe.batch.global_batch_size

    def with_reading(seconds: float, num_read: float) -> float:
        if profile.device == "cpu":
            return seconds + num_read * example_s
        return max(seconds, num_read * example_s)

    after = replace(
        with_one_time(now, load=0.0, download=once_s),
        step_s=with_reading(now.step_s, batch),
        validation_s=with_reading(now.validation_s, profile.num_val),
    )
    return no_faster_than(after, profile, recipe, example_s=store_s)
