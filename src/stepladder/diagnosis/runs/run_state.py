"""What a run folder contains besides the events: whether a run is running, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepladder.errors import DataError
from stepladder.records import read_json

SUMMARY: Final = "summary.json"
_WORDS = ("status", "stop_reason")
_NUMBERS = (
    "val_loss", "val_accuracy", "test_loss", "test_accuracy", "num_train", "num_val",
    "num_test", "best_epoch", "best_step", "epochs", "steps", "train_s", "total_s",
    "images_per_s", "data_wait_frac", "energy_wh", "global_batch_size", "attempts",
)  # fmt: skip
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # as records spell them


def read_summary(run: Path) -> tuple[dict[str, Any], str]:
    """Read the valid part of summary.json.

    Returns:
        (its keys, a sentence on what is damaged); both are empty if it does not exist.
    """
    path = run / SUMMARY
    if not path.exists():
        return {}, ""
    try:
        value = read_json(path)
    except (DataError, OSError) as error:
        why = error.what if isinstance(error, DataError) else str(error.strerror)
        return {}, f"{SUMMARY} is damaged: {why}"
    if not isinstance(value, dict):
        return {}, f"{SUMMARY} is damaged: it is not a JSON object"
    wrong = [key for key, item in value.items() if not _is_sound(key, item)]
    if not value or not wrong:
        return value, "" if value else f"{SUMMARY} is damaged: it is empty"
    named = ", ".join(f"{key} is {str(value[key])[:40]!r}" for key in wrong[:3])
    sound = {key: item for key, item in value.items() if key not in wrong}
    return sound, f"{SUMMARY} is damaged: {named}"


@dataclass(frozen=True, kw_only=True)
class BestValidation:
    """The best validation of a run, by the metric that it monitors.

    Attributes:
        step: optimizer steps done.
        epoch: whole epochs done; None if unknown.
    """

    step: int
    epoch: float | None


def best_validation(
    summary: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> BestValidation | None:
    """Return the best validation of a run; the only place that decides which one it is.

    The one in the summary. Without a summary, the last event that was the best until then.

    Args:
        summary: summary.json; empty if it does not exist.
        events: at least the validations.
    """
    step, epoch = finite(summary.get("best_step")), finite(summary.get("best_epoch"))
    if step is None:
        best = [event for event in events if event.get("is_best") is True]
        if best:
            step, epoch = finite(best[-1].get("step")), finite(best[-1].get("epoch"))
    return None if step is None else BestValidation(step=int(step), epoch=epoch)


def is_of_own_task(summary: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a run certainly used a custom Task, as it has no images or no accuracy."""
    if "are_pictures" in summary:
        return summary["are_pictures"] is False
    validations = [event for event in events if event.get("event") == "validation"]
    return bool(validations) and not any("val_accuracy" in event for event in validations)


def num_val_of(events: Sequence[Mapping[str, Any]]) -> int | None:
    """Count the validation examples by their losses: an event has all of them, or none."""
    for event in reversed(events):
        losses = event.get("val_losses") if event.get("event") == "validation" else None
        if isinstance(losses, list) and losses:
            return len(losses)
    return None


def number(value: object) -> float | None:
    """Return a number of an event, including "nan" and "inf"; None for anything else."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value.lower())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def finite(value: object) -> float | None:
    """Return a finite number of an event; None for anything else."""
    found = number(value)
    return found if found is not None and math.isfinite(found) else None


def mean_of(events: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Average windows, which are of equal size except for the last of an epoch."""
    values = [value for event in events if (value := number(event.get(key))) is not None]
    return sum(values) / len(values) if values else None


def _is_sound(key: str, value: object) -> bool:
    if value is None:
        return True
    if key in _NUMBERS and isinstance(value, str):
        return value in _NOT_FINITE
    if key in _WORDS:
        return isinstance(value, str)
    if key == "phases_s":
        return isinstance(value, dict)
    if key not in _NUMBERS:
        return True
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and (not key.endswith("_accuracy") or _is_share(value))


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and (math.isnan(value) or 0 <= value <= 1)
