"""The keys of summary.json that scripts may rely on; see docs/run-folder.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SummaryKey:
    """One key of summary.json.

    Attributes:
        types: its valid JSON types.
        meaning: description, with its unit.
    """

    name: str
    types: tuple[type, ...]
    meaning: str

    def problem(self, summary: Mapping[str, Any]) -> str | None:
        """Return how a summary violates this key, or None."""
        if self.name not in summary:
            return f"{self.name} is missing"
        value = summary[self.name]
        is_number_as_bool = isinstance(value, bool) and bool not in self.types
        if is_number_as_bool or not isinstance(value, self.types):
            return f"{self.name} is {type(value).__name__}"
        return None


NUMBER: tuple[type, ...] = (int, float)
_NONE = type(None)


def _key(name: str, types: tuple[type, ...], meaning: str) -> SummaryKey:
    return SummaryKey(name=name, types=types, meaning=meaning)


SUMMARY_KEYS: tuple[SummaryKey, ...] = (
    _key("status", (str,), "finished, interrupted or diverged"),
    _key(
        "stop_reason",
        (str, _NONE),
        "early_stopping, worse_than_baseline, max_epochs, max_steps, max_time, signal, diverged",
    ),
    _key(
        "test_accuracy",
        (*NUMBER, _NONE),
        "fraction of test examples that are classified correctly, in [0, 1]",
    ),
    _key(
        "test_top5_accuracy",
        (*NUMBER, _NONE),
        "fraction of test examples whose label is among the five highest scores, in [0, 1]",
    ),
    _key(
        "test_macro_accuracy", (*NUMBER, _NONE), "mean of the accuracies of the classes, in [0, 1]"
    ),
    _key(
        "test_loss",
        (*NUMBER, _NONE),
        "mean cross-entropy on the test split, without label smoothing",
    ),
    _key("val_accuracy", (*NUMBER, _NONE), "like test_accuracy, on the validation split"),
    _key("val_top5_accuracy", (*NUMBER, _NONE), "like test_top5_accuracy, on the validation split"),
    _key(
        "val_macro_accuracy", (*NUMBER, _NONE), "like test_macro_accuracy, on the validation split"
    ),
    _key("val_loss", (*NUMBER, _NONE), "like test_loss, on the validation split"),
    _key("num_train", (int,), "training examples used in one epoch"),
    _key("num_val", (int,), "number of validation examples"),
    _key("num_test", (int,), "number of test examples"),
    _key(
        "are_pictures",
        (bool,),
        "whether the examples are pictures, as returned by the Task's describe()",
    ),
    _key(
        "best_epoch",
        (int, _NONE),
        "whole epochs done when the best weights were measured; "
        "null if no validation had a finite loss",
    ),
    _key("best_step", (int, _NONE), "optimizer steps done at that point"),
    _key(
        "restore_best",
        (bool,),
        "true if the final weights are the best ones; false if they are the last ones",
    ),
    _key("epochs", (int,), "whole epochs done"),
    _key("steps", (int,), "optimizer steps done"),
    _key(
        "train_s",
        NUMBER,
        "seconds of computing features, training, validation and checkpoints, in all attempts",
    ),
    _key("total_s", NUMBER, "train_s plus the seconds spent on setup and the final evaluation"),
    _key(
        "images_per_s", NUMBER, "training examples per second, excluding validation and checkpoints"
    ),
    _key(
        "data_wait_frac",
        NUMBER,
        "fraction of the time of the steps spent waiting for data, in [0, 1]",
    ),
    _key("phases_s", (dict,), "seconds by phase; `unexplained` is the time that no phase covers"),
    _key(
        "energy_wh",
        (*NUMBER, _NONE),
        "energy of the last attempt in watt-hours, by the machine's counters; null if not measured",
    ),
    _key("global_batch_size", (int,), "examples per optimizer step, over all devices"),
    _key("per_device_batch_size", (int,), "examples per forward pass on one device"),
    _key("accumulation_steps", (int,), "forward passes per optimizer step"),
    _key("device", (str,), "cpu or cuda"),
    _key("precision", (str,), "fp32, bf16, fp16 or fp16_master"),
    _key("seed", (int,), "seed of the weights, the order, augmentation and dropout"),
    _key("fingerprint", (str, _NONE), "fingerprint of the training data"),
    _key("classes", (list,), "class names, in the order of their indices"),
    _key(
        "attempts",
        (int,),
        "number of processes that were started for the run: 1 plus the number of resumes",
    ),
    _key("warnings", (list,), "warnings of all attempts, one sentence each"),
)


def check_summary(summary: Mapping[str, Any]) -> list[str]:
    """List the problems of a summary; empty if it is valid. Additional keys are allowed."""
    return [problem for key in SUMMARY_KEYS if (problem := key.problem(summary))]
