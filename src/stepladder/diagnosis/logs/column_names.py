"""Meanings of the columns of third-party logs, and parsing of their numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum


class Meaning(StrEnum):
    """The meaning of a column. Values are the names of fields of `LogRow` if there is one."""

    RUN = "run"
    VAL_SET = "val_set"
    EPOCH = "epoch"
    NUM_EPOCHS = "num_epochs"
    STEP = "step"
    SAMPLES_SEEN = "samples_seen"
    ELAPSED_S = "elapsed_s"
    ELAPSED_MIN = "elapsed_min"
    EPOCH_S = "epoch_s"
    TOTAL_S = "total_s"
    TIME = "time"
    TIMESTAMP = "timestamp"
    LEARNING_RATE = "learning_rate"
    DATA_WAIT_PERCENT = "data_wait_percent"
    DATA_WAIT_FRAC = "data_wait_frac"
    DATA_TIME = "data_time"
    BATCH_TIME = "batch_time"
    TRAIN_LOSS = "train_loss"
    TRAIN_ACCURACY = "train_accuracy"
    VAL_LOSS = "val_loss"
    VAL_LOSS_SEM = "val_loss_sem"
    VAL_ACCURACY = "val_accuracy"
    TEST_LOSS = "test_loss"
    TEST_ACCURACY = "test_accuracy"
    NUM_TRAIN = "num_train"
    NUM_VAL = "num_val"
    NUM_TEST = "num_test"


ACCURACIES = frozenset({Meaning.TRAIN_ACCURACY, Meaning.VAL_ACCURACY, Meaning.TEST_ACCURACY})
LOSSES = frozenset({Meaning.TRAIN_LOSS, Meaning.VAL_LOSS, Meaning.TEST_LOSS})
HELD_OUT = frozenset({Meaning.VAL_LOSS, Meaning.VAL_ACCURACY})
_WHOLE = {
    **dict.fromkeys(("run", "run_name", "run_id", "experiment", "trial"), Meaning.RUN),
    **dict.fromkeys(("val_set", "test_set", "split", "set", "eval_set"), Meaning.VAL_SET),
    **dict.fromkeys(("epoch", "epochs_done", "trainer_epoch"), Meaning.EPOCH),
    **dict.fromkeys(("epochs", "num_epochs"), Meaning.NUM_EPOCHS),
    **dict.fromkeys(
        ("step", "steps", "global_step", "iteration", "iter", "trainer_global_step", "it"),
        Meaning.STEP,
    ),
    **dict.fromkeys(
        ("samples_seen", "num_examples_seen", "examples_seen", "images_seen", "samples"),
        Meaning.SAMPLES_SEEN,
    ),
    **dict.fromkeys(
        ("elapsed_s", "elapsed", "elapsed_seconds", "seconds", "wall_s", "relative_time"),
        Meaning.ELAPSED_S,
    ),
    **dict.fromkeys(("minutes", "elapsed_min", "elapsed_minutes"), Meaning.ELAPSED_MIN),
    **dict.fromkeys(
        ("epoch_s", "epoch_time", "time_per_epoch", "epoch_seconds", "epoch_duration"),
        Meaning.EPOCH_S,
    ),
    **dict.fromkeys(("total_s", "train_runtime", "training_time"), Meaning.TOTAL_S),
    "time": Meaning.TIME,
    **dict.fromkeys(("wall_time", "timestamp", "created_at"), Meaning.TIMESTAMP),
    **dict.fromkeys(("num_train", "n_train", "train_size"), Meaning.NUM_TRAIN),
    **dict.fromkeys(
        ("num_val", "n_val", "val_size", "eval_samples", "num_held_out"), Meaning.NUM_VAL
    ),
    **dict.fromkeys(("num_test", "n_test", "test_size"), Meaning.NUM_TEST),
    **dict.fromkeys(("data_time", "data_wait_s", "time_data"), Meaning.DATA_TIME),
    **dict.fromkeys(("batch_time", "step_time", "iter_time"), Meaning.BATCH_TIME),
    "data_wait_frac": Meaning.DATA_WAIT_FRAC,
}
_DATA_WAIT = re.compile(r"data_?(loading|load|wait|fetch)\w*_(percent|pct)$")
_LEARNING_RATE = re.compile(r"(^|_)(lr|learning_rate|lr_adam|lr_sgd|lr_adamw)(_\d+)?$")
_SPLITS = (
    (re.compile(r"^(val|valid|validation|eval|evaluation|dev|held_out)_"), "val"),
    (re.compile(r"_(val|valid|validation|eval|dev)$"), "val"),
    (re.compile(r"^test_"), "test"),
    (re.compile(r"_test$"), "test"),
    (re.compile(r"^(train|training)_"), "train"),
    (re.compile(r"_(train|training)$"), "train"),
)
_ACCURACY = re.compile(
    r"^((sparse_|binary_)?(categorical_)?acc(uracy)?|top_?1(_acc(uracy)?)?|acc_?1|"
    r"(multiclass|binary)_?accuracy|accuracy_(score|top_?1))$"
)
_LOSS = re.compile(r"^(loss|nll(_loss)?|cross_?entropy(_loss)?|ce_loss|xent)$")
_NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
_LOWER_IS_BETTER = re.compile(
    r"loss|error|perplexity|(^|_)(ppl|wer|cer|mae|mse|rmse|nll|fid)($|_)", re.IGNORECASE
)
_EMPTY = frozenset({"", "-", "none", "null", "na", "n/a"})  # not measured
_MAX_NAMED = 5  # unreadable cells
MAX_DIGITS = 7  # precision of float32


def plain_name(name: str) -> str:
    """Return a column's name in lower case with underscores: `Val/Acc (%)` is `val_acc_percent`.

    A part that only says what a value is averaged over (`_epoch`, `epoch_`) is removed.
    """
    text = name.strip().lower().replace("(%)", " percent").replace("%", " percent")
    text = re.sub(r"([a-z])@(\d)", r"\1\2", text)
    text = re.sub(r"[^a-z0-9]+", "_", text).strip("_")
    text = re.sub(r"^metrics?_(?=\w)", "", text)
    if text not in _WHOLE:
        text = re.sub(r"_epoch$|^epoch_(?=\w)", "", text)
    return text


def meaning(name: str) -> Meaning | None:
    """Return the meaning of a column by its name; None if the name is unknown."""
    text = plain_name(name)
    if text in _WHOLE:
        return _WHOLE[text]
    if _DATA_WAIT.search(text):
        return Meaning.DATA_WAIT_PERCENT
    if _LEARNING_RATE.search(text):
        return Meaning.LEARNING_RATE
    split, rest = "train", text.removesuffix("_percent").removesuffix("_step")
    for pattern, found in _SPLITS:
        if pattern.search(rest):
            split, rest = found, pattern.sub("", rest)
            break
    if split == "val" and rest == "loss_sem":
        return Meaning.VAL_LOSS_SEM
    for pattern, kind in ((_LOSS, "loss"), (_ACCURACY, "accuracy")):
        if pattern.match(rest):
            return Meaning(f"{split}_{kind}")
    return None


def is_lower_better(name: str) -> bool:
    """Return True if lower values of a metric are better, by its name."""
    return _LOWER_IS_BETTER.search(name) is not None


def read_number(text: str) -> float | None:
    """Parse a number of a log: `0.785`, `0,785`, `78.5 %`, `nan`; None for anything else.

    A percent sign divides by 100.
    """
    bare = text.strip().strip("'\"").strip()
    bare = re.sub(r"^tensor\(([^,)]*).*\)$", r"\1", bare)
    factor = 1.0
    if bare.endswith("%"):
        bare, factor = bare[:-1].strip(), 0.01
    if bare.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        return float(bare)
    if not _NUMBER.fullmatch(bare):
        return None
    value = float(bare.replace(",", ".")) * factor
    return value if math.isfinite(value) else None


def digits_of(text: str) -> int:
    """Count the decimals of a number in text, as a share: `78.5 %` and `0.785` have 3."""
    bare = text.strip().strip("'\"").strip()
    extra = 2 if bare.endswith("%") else 0
    bare = bare.rstrip("% ")
    mantissa, _, exponent = bare.lower().partition("e")
    _, _, decimals = mantissa.replace(",", ".").partition(".")
    power = int(exponent) if exponent.lstrip("+-").isdigit() else 0
    return min(max(len(decimals) - power + extra, 0), MAX_DIGITS)


def unreadable_cells(
    rows: Sequence[Mapping[str, str]], meanings: Mapping[str, Meaning | str | None]
) -> tuple[str, ...]:
    """Return a note for each cell of an epoch, loss or metric that is not empty but not a number.

    Args:
        rows: cells by column.
        meanings: of the columns; "score" is the metric passed by the user.
    """
    kinds = {Meaning.EPOCH, *LOSSES, *ACCURACIES, "score"}
    found = []
    for idx, row in enumerate(rows, start=1):
        for name, text in row.items():
            bare = text.strip().strip("'\"").lower()
            if meanings[name] in kinds and bare not in _EMPTY and read_number(text) is None:
                found.append(f"row {idx}, {name}: {text[:40]!r} is not a number and is ignored")
    return tuple(found)


def first_of(sentences: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first sentences, and the number of those left out."""
    rest = len(sentences) - _MAX_NAMED
    more = (f"and {rest} more cells",) if rest > 0 else ()
    return (*sentences[:_MAX_NAMED], *more)
