"""Meanings of the columns of third-party logs, and parsing of their numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache


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
        (
            "step",
            "steps",
            "global_step",
            "iteration",
            "iter",
            "trainer_global_step",
            "it",
            "num_updates",
            "update",
            "updates",
        ),
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
_LEARNING_RATE = re.compile(r"(^|_)(lrs?|learning_rates?|lr_adam|lr_sgd|lr_adamw)(_?(pg)?\d+)?$")
SPLIT_OF_WORD = {
    **dict.fromkeys(
        ("val", "valid", "validation", "validate", "eval", "evaluation", "evaluate", "dev",
         "heldout", "holdout"), "val"
    ),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("train", "training", "trn"), "train"),
}  # fmt: skip
_AVERAGED = (
    "avg",
    "average",
    "mean",
    "total",
    "overall",
    "running",
    "smoothed",
    "epoch",
)  # of a value
_ACCURACY = re.compile(
    r"^((sparse_|binary_|multiclass_|multilabel_)?(categorical_)?(acc|accu|accuracy)|"
    r"(acc(uracy)?_?)?(top|prec|acc|accuracy)_?0?1(_?acc(uracy)?)?|"
    r"(cls|classification)_acc(uracy)?|accuracy_score)$"
)
_ERROR_RATE = re.compile(
    r"^(error_?rate|err_?rate|(top_?1_?)(err|error)|(err|error)_?1|merror|"
    r"class(ification)?_err(or)?(_rate)?|misclassification(_rate)?)$"
)
_ERROR_IN_PERCENT = re.compile(r"^(err|error)_percent$")  # other errors may be of a regression
_LOSS = re.compile(
    r"^(loss|losses|nll(_loss)?|(categorical_|sparse_categorical_|binary_|language_)?"
    r"cross_?entropy(_loss)?|ce_?loss|xent|(m|binary_|multi_)?log_?loss)$"
)
_SCORES = (  # held-out metrics, the one that summarizes most first; accuracy of a named set or head
    re.compile(r"(?<!balanced)_(acc|accuracy)$"),
    re.compile(
        r"(^|_)map_?(50_95|0_5_0_95)(_b)?$|^(bbox_|segm_|keypoints_|coco_eval_)?ap$|coco_eval_bbox$"
    ),
    re.compile(r"(^|_)m_?ap(_b)?$|(^|_)m_?ap_?(50|0_5)(_b)?$"),
    re.compile(r"(^|_)m_?(iou|dice)$"),
    re.compile(r"(^|_)(f1|f_?score|f1_?score|f1_measure|macro_f1|f1_macro|micro_f1|f1_micro)$"),
    re.compile(r"(^|_)(auc|auroc|roc_auc|auprc|average_precision)$"),
    re.compile(r"(^|_)(iou|dice|jaccard|iou_score|dice_score|dice_coef)$"),
    re.compile(r"(^|_)(balanced_acc(uracy)?|mcc|matthews_correlation|kappa|exact_match|em|r2)$"),
    re.compile(r"(^|_)(spearman|spearmanr)(_\w+)?$"),
    re.compile(r"(^|_)(pearson|pearsonr)(_\w+)?$"),
    re.compile(r"(^|_)(bleu|sacrebleu|rouge_?l|rouge_?1|meteor|cider|wer|cer)$"),
)
_FRACTION = re.compile(
    r"(^|_)(f1|f_score|f1_score|f1_measure|m?ap|map50|iou|miou|dice|mdice|auc|auroc|jaccard|"
    r"precision|recall|exact_match|balanced_acc\w*)(_|$)|map_?(50|0_5)|coco_eval"
)
_OF_PLACES = frozenset(  # words for one of several values of the same metric
    {"last", "min", "max", "prev", "previous", "final", "old", "new", "lowest", "highest", "first"}
)
_PERCENT = re.compile(r"(bbox|segm|keypoints)/AP(\d+|[sml]|-.+)?")
_ALWAYS_HELD_OUT = re.compile(r"(^|_)(m_?ap[\d_]*(_b)?|ap|ap50|m_?iou|coco_eval_bbox)$")
_NO_METRIC = re.compile(
    r"runtime|per_second|_per_s$|(^|_)(time|mem|memory|duration|samples|steps|lr|size|epoch|step|"
    r"batches|mb|gb|compilation|flos)(_|$)|wall|throughput|^best|_best(_|$)|(^|_)ema(_|$)"
)
_NUMBER = re.compile(r"[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?")
_NAN = re.compile(  # as C and C++ print it on Linux and Windows
    r"[-+]?(?:nan(?:\(\w*\))?|1\.#(?:IND|QNAN|SNAN)\d*)", re.IGNORECASE
)
_INFINITE = re.compile(r"[-+]?(?:inf(?:inity)?|1\.#INF\d*)", re.IGNORECASE)
_PLACE = re.compile(r"(?:(?:epoch|step|iter)\W{0,2})?(\d+)(?: ?(?:/|of) ?\d+)?", re.IGNORECASE)
_CLOCK = re.compile(r"(?:(\d+) days?, )?(?:(\d+):)?(\d{1,2}):(\d\d(?:\.\d+)?)")
_LOWER_IS_BETTER = re.compile(
    r"loss|error|perplexity|deviance|loglik|"
    r"(^|_)(ppl|wer|cer|mae|mse|rmse|rmsle|mape|mphe|l1|l2|nll|fid)($|_)",
    re.IGNORECASE,
)
_EMPTY = frozenset({"", "-", "none", "null", "na", "n/a", "no log"})  # not measured
_NUM_NAMES = 4096  # the same few names are in every row
_NUM_CELLS = 65_536  # each is read several times
_MAX_NAMED = 5  # unreadable cells
MAX_DIGITS = 7  # precision of float32


@lru_cache(_NUM_NAMES)
def plain_name(name: str) -> str:
    """Return a column's name in lower case with underscores: `Val/Acc (%)` is `val_acc_percent`.

    Words in capitals are parted (`ValLoss` is `val_loss`). A part that only says what a value is
    averaged over (`_epoch`, `epoch_`) is removed.
    """
    text = re.sub(r"(?<=[a-z]{2})(?=[A-Z][a-z])", "_", name.strip()).lower()
    text = text.replace("(%)", " percent").replace("%", " percent")
    text = re.sub(r"([a-z])@\.?(\d)", r"\1\2", text)
    text = re.sub(r"[^a-z0-9]+", "_", text).strip("_")
    text = re.sub(r"^(metrics?|losses)_(?=\w)", "", text)
    if text not in _WHOLE:
        text = re.sub(r"_epoch$|^epoch_(?=\w)", "", text)
    return text


@lru_cache(_NUM_NAMES)
def split_of(name: str) -> tuple[str | None, str]:
    """Return (the split in a column's name: train, val or test; None without one, the rest).

    A number after the split is that of a set: `valid_0_auc` is (val, auc). So is Lightning's
    `dataloader_idx_0`.
    """
    text = re.sub(r"held_out|hold_out", "heldout", plain_name(name))
    text = re.sub(r"_dataloader_idx_\d+$", "", text)
    words = text.split("_")
    place = next((idx for idx, word in enumerate(words) if word in SPLIT_OF_WORD), None)
    if place is None:
        return None, text
    rest = [word for idx, word in enumerate(words) if idx != place]
    if len(rest) > place and rest[place].isdigit() and len(rest) > 1:
        rest.pop(place)
    split = SPLIT_OF_WORD[words[place]]  # a second time in Composer's `Train loss/train/total`
    left = [word for word in rest if SPLIT_OF_WORD.get(word) != split]
    return split, "_".join(left[1:] if left[0:1] in (["metrics"], ["metric"]) else left)


@lru_cache(_NUM_NAMES)
def named_set(name: str) -> tuple[str, Meaning, bool] | None:
    """Return (the set that a column names, its meaning without it, whether it precedes the split).

    `mrpc_en_eval_loss` and Hugging Face's `eval_mrpc_en_loss` are the validation loss of the set
    `mrpc_en`; the latter may also be a part of a loss, as in `val_box_loss`. None for any other.
    """
    words = plain_name(name).split("_")
    place = next((idx for idx, word in enumerate(words) if word in SPLIT_OF_WORD), None)
    if place is None or not is_measure(name) or _OF_PLACES & set(words):
        return None
    before, after = words[:place], words[place + 1 :]
    if before and (kind := _kind("_".join(after))) is not None:
        return "_".join(before), Meaning(f"{SPLIT_OF_WORD[words[place]]}_{kind}"), True
    kind = _kind(after[-1]) if len(after) > 1 and not before else None
    if kind is None:
        return None
    return "_".join(after[:-1]), Meaning(f"{SPLIT_OF_WORD[words[place]]}_{kind}"), False


@lru_cache(_NUM_NAMES)
def set_number(name: str) -> int:
    """Return the number of a held-out set in a column's name: 1 for `valid_1 auc`, else 0."""
    text = plain_name(name)
    words = "|".join(word for word, split in SPLIT_OF_WORD.items() if split != "train")
    found = re.search(rf"(?:dataloader_idx_|^(?:{words})_)(\d+)(?:_|$)", text)
    return int(found[1]) if found and not text.endswith(("_acc_1", "_top_1")) else 0


@lru_cache(_NUM_NAMES)
def meaning(name: str) -> Meaning | None:
    """Return the meaning of a column by its name; None if the name is unknown.

    An error rate means accuracy: its values are 1 − x, see `is_error_rate`.
    """
    text = plain_name(name)
    if text in _WHOLE:
        return _WHOLE[text]
    if _DATA_WAIT.search(text):
        return Meaning.DATA_WAIT_PERCENT
    if _LEARNING_RATE.search(text):
        return Meaning.LEARNING_RATE
    split, rest = split_of(name)
    if _ERROR_IN_PERCENT.match(rest):
        return Meaning(f"{split or 'train'}_accuracy")
    rest = rest.removesuffix("_percent").removesuffix("_step")
    if split == "val" and rest == "loss_sem":
        return Meaning.VAL_LOSS_SEM
    kind = _kind(rest)
    return None if kind is None else Meaning(f"{split or 'train'}_{kind}")


def _kind(rest: str) -> str | None:
    """Return what a name without its split is: a loss, an accuracy, or neither."""
    words = [word for word in rest.split("_") if word not in _AVERAGED]
    for text in dict.fromkeys((rest, "_".join(words))):
        if _LOSS.match(text):
            return "loss"
        if _ACCURACY.match(text) or _ERROR_RATE.match(text):
            return "accuracy"
    return None


@lru_cache(_NUM_NAMES)
def has_split(name: str) -> bool:
    """Return True if a column's name says of which split it is."""
    return split_of(name)[0] is not None


def is_error_rate(name: str) -> bool:
    """Return True if a column is an error rate, which is 1 minus accuracy."""
    rest = split_of(name)[1]
    found = _ERROR_IN_PERCENT.match(rest) or _ERROR_RATE.match(rest.removesuffix("_percent"))
    return found is not None


@lru_cache(_NUM_NAMES)
def score_rank(name: str) -> int | None:
    """Return the place of a metric among those that a training is judged by; None if not one."""
    rest = split_of(name)[1].removesuffix("_percent")
    if _NO_METRIC.search(rest):
        return None
    return next((idx for idx, names in enumerate(_SCORES) if names.search(rest)), None)


def is_always_held_out(name: str) -> bool:
    """Return True if a metric is computed on held-out data by every trainer, as mAP and mIoU."""
    split, rest = split_of(name)
    return split is None and _ALWAYS_HELD_OUT.search(rest) is not None


@lru_cache(_NUM_NAMES)
def is_measure(name: str) -> bool:
    """Return True unless a column is a time, a rate, a size, or repeats an earlier best."""
    return not _NO_METRIC.search(split_of(name)[1])


def is_fraction_name(name: str) -> bool:
    """Return True if a metric lies in [0, 1] by its definition, as F1 and mAP do."""
    return _FRACTION.search(plain_name(name)) is not None


def is_percent_name(name: str) -> bool:
    """Return True if a metric is in percent whatever its values are, as the AP of Detectron2."""
    return _PERCENT.fullmatch(name.strip()) is not None


def is_lower_better(name: str) -> bool:
    """Return True if lower values of a metric are better, by its name."""
    return _LOWER_IS_BETTER.search(name) is not None


@lru_cache(_NUM_CELLS)
def read_number(text: str) -> float | None:
    """Parse a number of a log: `0.785`, `0,785`, `78.5 %`, `nan`; None for anything else.

    A percent sign divides by 100.
    """
    bare = text.strip().strip("'\"").strip()
    bare = re.sub(r"^tensor\(([^,)]*).*\)$", r"\1", bare)
    factor = 1.0
    if bare.endswith("%"):
        bare, factor = bare[:-1].strip(), 0.01
    if _NAN.fullmatch(bare):
        return math.nan
    if _INFINITE.fullmatch(bare):
        return -math.inf if bare.startswith("-") else math.inf
    if not _NUMBER.fullmatch(bare):
        return None
    value = float(bare.replace(",", ".")) * factor
    return value if math.isfinite(value) else None


def read_place(text: str) -> float | None:
    """Parse the epoch or the step of a row: `3`, `3/10`, `epoch 3`."""
    found = _PLACE.fullmatch(text.strip())
    return float(found[1]) if found else read_number(text)


def read_duration(text: str) -> float | None:
    """Parse a time of day or a duration in seconds: `00:17`, `1:02:03.5`, `148.59 s`."""
    bare = text.strip()
    if found := _CLOCK.fullmatch(bare):
        days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return 86_400 * days + 3600 * hours + 60 * minutes + seconds
    return read_number(re.sub(r"\s*s(ec(onds?)?)?\.?$", "", bare))


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
            if meanings[name] in kinds and bare not in _EMPTY and read_place(text) is None:
                found.append(f"row {idx}, {name}: {text[:40]!r} is not a number and is ignored")
    return tuple(found)


def first_of(sentences: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first sentences, and the number of those left out."""
    rest = len(sentences) - _MAX_NAMED
    more = (f"and {rest} more cells",) if rest > 0 else ()
    return (*sentences[:_MAX_NAMED], *more)
