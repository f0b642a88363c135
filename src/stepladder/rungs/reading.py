"""What reading adds where memory does not keep the pictures: the disk's share, and streaming."""

from __future__ import annotations

from dataclasses import replace

from stepladder.config.recipe import Recipe
from stepladder.records.profile import Profile, TrainingTime
from stepladder.rungs.formulas import host_bytes, source_reading_s, with_one_time


def from_disk_s(profile: Profile, *, example_bytes: float, num_examples: float) -> float:
    """Give the disk's seconds for an example, of which memory keeps as many as fit.

        seconds = (1 - free memory / all bytes) bytes / rate

    0 where all fit, or the disk's rate is unknown.

    Source: Mohan et al. 2021, "Analyzing and Mitigating Data Stalls in DNN Training", 3,
    arXiv:2007.06775.
    """
    all_bytes = example_bytes * num_examples
    if not profile.disk_bytes_per_s or all_bytes <= host_bytes(profile):
        return 0.0
    missing_frac = 1 - host_bytes(profile) / all_bytes
    return missing_frac * example_bytes / profile.disk_bytes_per_s


def about_disk(profile: Profile) -> str:
    """Say what the disk's share rests on."""
    if not profile.disk_bytes_per_s:
        return "a disk slower than memory is not counted, as its rate was not measured"
    rate = profile.disk_bytes_per_s / 1e6
    return f"what memory does not keep is read at {rate:,.{0 if rate >= 9.5 else 1}f} MB/s"


def no_faster_than_the_disk(
    time: TrainingTime, profile: Profile, recipe: Recipe, *, disk_s: float
) -> TrainingTime:
    """Let steps and validations wait for the disk, which all reading threads share."""
    return replace(
        time,
        step_s=max(time.step_s, recipe.batch.global_batch_size * disk_s),
        validation_s=max(time.validation_s, profile.num_val * disk_s),
    )


def streamed(profile: Profile, recipe: Recipe, *, growth: float = 1.0) -> TrainingTime:
    """Give the time where pictures that are held in memory are read in each epoch instead.

    Loading goes, and each step and validation reads its pictures: on a CPU that adds to computing,
    beside a GPU the slower of the two sets the pace, and nowhere is it faster than the disk. What
    one example takes is that of loading it once.

    Args:
        growth: times as many training examples as now.
    """
    now = profile.time
    example_s = source_reading_s(profile, recipe)
    num_examples = profile.num_train * growth + profile.num_val
    disk_s = from_disk_s(
        profile, example_bytes=profile.stored_bytes or 0.0, num_examples=num_examples
    )
    batch = recipe.batch.global_batch_size

    def with_reading(seconds: float, num_read: float) -> float:
        if profile.device == "cpu":
            return seconds + num_read * example_s
        return max(seconds, num_read * example_s)

    after = replace(
        with_one_time(now, load=0.0),
        step_s=with_reading(now.step_s, batch),
        validation_s=with_reading(now.validation_s, profile.num_val),
    )
    return no_faster_than_the_disk(after, profile, recipe, disk_s=disk_s)
