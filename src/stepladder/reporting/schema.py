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
    _key("test_accuracy", (*NUMBER, _NONE), "share of test examples that are right, in [0, 1]"),
    _key("test_top5_accuracy", (*NUMBER, _NONE), "share with the label among the first five"),
    _key("test_macro_accuracy", (*NUMBER, _NONE), "mean of the classes' accuracies"),
    _key("test_loss", (*NUMBER, _NONE), "mean cross-entropy on test, plain"),
    _key("val_accuracy", (*NUMBER, _NONE), "as test_accuracy, on val, with the final weights"),
    _key("val_top5_accuracy", (*NUMBER, _NONE), "as test_top5_accuracy, on val"),
    _key("val_macro_accuracy", (*NUMBER, _NONE), "as test_macro_accuracy, on val"),
    _key("val_loss", (*NUMBER, _NONE), "as test_loss, on val"),
    _key("num_train", (int,), "training examples used in an epoch"),
    _key("num_val", (int,), "examples of val"),
    _key("num_test", (int,), "examples of test"),
    _key("are_pictures", (bool,), "examples are pictures, as the Task's describe() says"),
    _key(
        "best_epoch",
        (int, _NONE),
        "whole epochs done when the best weights were measured; "
        "null where no validation gave a finite loss",
    ),
    _key("best_step", (int, _NONE), "optimiser steps done then"),
    _key("restore_best", (bool,), "the final weights are the best ones, else the last"),
    _key("epochs", (int,), "whole epochs done"),
    _key("steps", (int,), "optimiser steps done"),
    _key(
        "train_s",
        NUMBER,
        "seconds of computing features, training, validation and checkpoints, all attempts",
    ),
    _key("total_s", NUMBER, "train_s and the seconds of set-up and the final evaluation"),
    _key("images_per_s", NUMBER, "training examples a second, without validation and checkpoints"),
    _key("data_wait_frac", NUMBER, "share of the steps' time spent waiting for data, in [0, 1]"),
    _key("phases_s", (dict,), "seconds by phase; `unexplained` is what no phase covers"),
    _key(
        "energy_wh",
        (*NUMBER, _NONE),
        "watt-hours of the machine's counters in the last attempt; null: not measured",
    ),
    _key("global_batch_size", (int,), "examples of an optimiser step, over all devices"),
    _key("per_device_batch_size", (int,), "examples of a forward pass on one device"),
    _key("accumulation_steps", (int,), "forward passes of an optimiser step"),
    _key("device", (str,), "cpu or cuda"),
    _key("precision", (str,), "fp32, bf16, fp16 or fp16_master"),
    _key("seed", (int,), "seed of weights, order, augmentation and dropout"),
    _key("fingerprint", (str, _NONE), "identity of the training data"),
    _key("classes", (list,), "class names, in the order of their indices"),
    _key("attempts", (int,), "process starts that the run took"),
    _key("warnings", (list,), "warnings of all attempts, a sentence each"),
)


def check_summary(summary: Mapping[str, Any]) -> list[str]:
    """List the problems of a summary; empty if it is valid. Additional keys are allowed."""
    return [problem for key in SUMMARY_KEYS if (problem := key.problem(summary))]
