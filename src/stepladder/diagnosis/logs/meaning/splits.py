"""The split that a row or a column of a log belongs to, where its name does not say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepladder.diagnosis.logs.meaning.column_names import (
    ACCURACIES,
    HELD_OUT,
    LOSSES,
    SPLIT_OF_WORD,
    Meaning,
    has_split,
    is_always_held_out,
    is_measure,
    meaning,
    named_set,
    plain_name,
    read_number,
    score_rank,
    set_number,
    split_of,
)

Cells = Mapping[str, str]
Meanings = dict[str, Meaning | str | None]
SCORE = "score"
_ROW_SPLITS = frozenset(
    (
        "mode",
        "split",
        "phase",
        "stage",
        "subset",
        "set",
        "partition",
        "dataset",
        "loss_type",
        "type",
    )
)
_OF_TRAINING = frozenset(  # in a row of an evaluation: of its own batches
    {Meaning.STEP, Meaning.LEARNING_RATE, Meaning.DATA_TIME, Meaning.BATCH_TIME, Meaning.TIME}
)
_TEST_AS_VAL = {
    Meaning.TEST_LOSS: Meaning.VAL_LOSS,
    Meaning.TEST_ACCURACY: Meaning.VAL_ACCURACY,
}
_AS_VAL = {Meaning.TRAIN_LOSS: Meaning.VAL_LOSS, Meaning.TRAIN_ACCURACY: Meaning.VAL_ACCURACY}
_DOMAINS = {
    **dict.fromkeys(("source", "src"), "source"),
    **dict.fromkeys(("target", "tgt", "trg"), "target"),
}
_NAMES = {"loss": 0, "acc": 0, "accuracy": 0, "total_loss": 1, "loss_total": 1}


def name_splits(cells: Sequence[Cells]) -> list[Cells]:
    """Prefix the metrics of each row with its split, where a column such as `mode` names it."""
    key = next((name for name in dict.fromkeys(n for row in cells for n in row) if
                _names_splits(name, cells)), None)  # fmt: skip
    if key is None:
        return list(cells)
    has_own_rate = any(
        _split_of_row(row, key) == "train" and meaning(name) is Meaning.LEARNING_RATE
        for row in cells
        for name in row
    )
    return [_named(row, key, keep_rate=not has_own_rate) for row in cells]


def _names_splits(name: str, cells: Sequence[Cells]) -> bool:
    if plain_name(name) not in _ROW_SPLITS:
        return False
    values = {_split_word(row[name]) for row in cells if row.get(name)}
    return bool(values) and values <= set(SPLIT_OF_WORD)


def _split_word(text: str) -> str:
    """Return the split that a cell names: `validation`, or pycls' `test_epoch`."""
    return text.strip().lower().removesuffix("_epoch").removesuffix("_iter")


def _split_of_row(row: Cells, key: str) -> str | None:
    return SPLIT_OF_WORD.get(_split_word(row.get(key, "")))


def _named(row: Cells, key: str, *, keep_rate: bool) -> Cells:
    """Return a row with its split in the names of its metrics.

    The learning rate is kept in a row of an evaluation if no row of training has one.
    """
    split = _split_of_row(row, key)
    if split is None:
        return row
    has_epoch = any(meaning(name) is Meaning.EPOCH and text for name, text in row.items())
    named: dict[str, str] = {}
    for name, text in row.items():
        kind = meaning(name)
        is_kept = kind is Meaning.LEARNING_RATE and keep_rate
        is_of_step = kind is Meaning.STEP and not has_epoch
        if split != "train" and kind in _OF_TRAINING and not is_of_step and not is_kept:
            continue
        is_metric = kind in ACCURACIES | LOSSES or (
            kind is None and is_measure(name) and read_number(text) is not None
        )
        named[f"{split}_{name}" if is_metric and not has_split(name) else name] = text
    return named


def column_meanings(
    cells: Sequence[Cells],
    *,
    metric: str | None,
    preferred: str | None = None,
    is_evaluation: bool = False,
) -> tuple[Meanings, tuple[str, ...]]:
    """Return the meaning of each column, with the metric to judge by as SCORE.

    A name without a split means training, unless the other columns or rows say otherwise. The
    judged metric is the one passed by the user; else accuracy; else the first known metric such as
    mAP or F1; else the loss; else any metric of the validation.

    Args:
        metric: the column passed by the user.
        preferred: the column that the trainer selected its best model by.
        is_evaluation: the log is one of evaluations only, by its name.

    Returns:
        (the meanings, test columns that were used because there is no validation).
    """
    columns = list(dict.fromkeys(name for row in cells for name in row))
    found: Meanings = {name: _own_meaning(name, columns) for name in columns}
    if Meaning.DATA_TIME in found.values():
        found |= {n: Meaning.BATCH_TIME for n, kind in found.items() if kind is Meaning.TIME}
    found |= dict.fromkeys(_later_sets(columns))
    found |= _first_named_set(found)
    found |= domains(columns)
    bare = _held_out_without_split(cells, found, is_evaluation=is_evaluation)
    tested = _beside_test_loss(cells, found)
    found |= tested
    bare = [name for name in bare if name not in tested]
    bare += [name for name, kind in tested.items() if kind is None]
    found |= {name: _AS_VAL[kind] for name in bare if (kind := found[name]) in _AS_VAL}  # type: ignore[index]
    beside = _beside_held_out_loss(cells, found)
    found |= beside
    bare += [name for name, kind in beside.items() if kind is None]
    found |= dict.fromkeys(_less_exact(cells, found))
    if metric is not None:
        found[metric] = found[metric] if found[metric] in HELD_OUT else SCORE
        tested = _tested_in_training(cells, found)
        return found | tested, tuple(tested)
    kinds = set(found.values())
    tests = {} if Meaning.VAL_ACCURACY in kinds else _tested_in_training(cells, found)
    score = _score(cells, found | tests, bare, preferred=preferred, has_tests=bool(tests))
    judged: Meanings = {} if score is None else {score: SCORE}
    return found | tests | judged, tuple(tests)


def _own_meaning(name: str, columns: Sequence[str]) -> Meaning | None:
    """Return the meaning by the name; of a value per step and the same per epoch, only one."""
    base = name.removesuffix("_step")
    return None if base != name and f"{base}_epoch" in columns else meaning(name)


def _later_sets(columns: Sequence[str]) -> list[str]:
    """Return the columns of a second held-out set that has the same metrics as a first one."""
    first: dict[tuple[str | None, str], int] = {}
    for name in columns:
        first[split_of(name)] = min(set_number(name), first.get(split_of(name), set_number(name)))
    return [name for name in columns if set_number(name) > first[split_of(name)]]


def _first_named_set(found: Meanings) -> Meanings:
    """Return the losses and accuracies of the first named set, where no column has none.

    A name after the split is that of a set only if the set has its own run time, as Hugging Face's
    Trainer writes it: `eval_mrpc_loss` next to `eval_mrpc_runtime`.
    """
    plain = {plain_name(name) for name in found}
    named = {
        name: part
        for name, kind in found.items()
        if kind is None and (part := named_set(name)) is not None
    }
    parts = {
        name: (of, kind)
        for name, (of, kind, is_before) in named.items()
        if kind not in found.values()
        and (is_before or any(f"{word}_{of}_runtime" in plain for word in SPLIT_OF_WORD))
    }
    held_out = [of for of, kind in parts.values() if kind in HELD_OUT]
    first = next(iter(held_out), None)
    chosen: Meanings = {}
    for name, (of, kind) in parts.items():
        if of == first and kind not in chosen.values():
            chosen[name] = kind
    return chosen


def domains(columns: Sequence[str]) -> Meanings:
    """Return the losses and accuracies of a domain adaptation: of its source and its target.

    Labels of the source are trained on, and the target is what the model is for: the training
    values are those of the source, the validation those of the target. Empty without both.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    for name in columns:
        words = plain_name(name).split("_")
        domain = next((_DOMAINS[word] for word in words if word in _DOMAINS), None)
        kind = meaning("_".join(word for word in words if word not in _DOMAINS))
        if domain is not None and kind in ACCURACIES | LOSSES:
            split, _, what = str(kind).partition("_")
            found.setdefault((domain, what), {})[split if has_split(name) else ""] = name
    chosen: Meanings = {}
    for what in ("accuracy", "loss"):
        source, target = found.get(("source", what), {}), found.get(("target", what), {})
        if not source or not target:
            continue
        chosen |= dict.fromkeys((*source.values(), *target.values()))
        if trained := source.get("train") or source.get(""):
            chosen[trained] = Meaning(f"train_{what}")
        if held_out := target.get("val") or target.get("") or target.get("train"):
            chosen[held_out] = Meaning(f"val_{what}")
        if tested := target.get("test"):
            chosen[tested] = Meaning(f"test_{what}")
    return chosen


def _held_out_without_split(
    cells: Sequence[Cells], found: Meanings, *, is_evaluation: bool
) -> list[str]:
    """Return the columns without a split that hold held-out values.

    They are: all in a log of evaluations; `metrics/…` next to columns with a split (Ultralytics);
    a metric next to a training loss and a validation loss (fastai, Hugging Face's tables); a metric
    that is only in rows without the loss and the learning rate of training (MMEngine), and always
    next to a validation loss if there is one; and what is never computed on training data.
    """
    bare = [
        name
        for name, kind in found.items()
        if not has_split(name)
        and (kind in (Meaning.TRAIN_LOSS, Meaning.TRAIN_ACCURACY) or _is_score(name, found))
    ]
    if is_evaluation and not any(has_split(name) for name in found):
        return bare
    splits = {name: split_of(name)[0] for name in found if found[name] or is_measure(name)}
    metrics = [name for name in bare if found[name] is not Meaning.TRAIN_LOSS]
    held = {name for name in metrics if is_always_held_out(name)}
    if Meaning.VAL_ACCURACY in found.values():
        return [name for name in bare if name in held]
    if set(splits.values()) - {None}:
        held |= {name for name in metrics if name.strip().lower().startswith("metrics/")}
    losses = {split_of(name)[0] for name, kind in found.items() if kind in LOSSES}
    if {"train", "val"} <= losses:
        held |= set(metrics)
    elif not {Meaning.VAL_LOSS, Meaning.TEST_ACCURACY, Meaning.TEST_LOSS} & set(found.values()):
        held |= _in_rows_of_their_own(cells, found, metrics)
    else:
        beside = [
            row for row in cells if any(row.get(n) for n, k in found.items() if k in HELD_OUT)
        ]
        alone = _in_rows_of_their_own(cells, found, metrics)
        held |= {n for n in alone if _num_values(cells, n) == _num_values(beside, n)}
    return [name for name in bare if name in held]


def _beside_test_loss(cells: Sequence[Cells], found: Meanings) -> Meanings:
    """Return the metrics without a split that are of the test set, as the held-out loss is.

    They are next to a training loss and a test loss at each evaluation, and no column is of
    validation: Ultralytics' `metrics/accuracy_top1`, and `train_loss 0.5 test_loss 0.6 acc 0.8`.
    Metrics other than accuracy keep the meaning None.
    """
    losses = {
        split_of(name)[0]: name
        for name, kind in found.items()
        if kind in LOSSES and has_split(name)
    }
    if set(losses) != {"train", "test"} or any(split_of(name)[0] == "val" for name in found):
        return {}
    if any(has_split(name) and kind in ACCURACIES for name, kind in found.items()):
        return {}
    rows = [row for row in cells if row.get(losses["test"])]
    return {
        name: None if kind is None else Meaning.TEST_ACCURACY
        for name, kind in found.items()
        if not has_split(name)
        and (kind is Meaning.TRAIN_ACCURACY or _is_score(name, found))
        and len(rows) > 1
        and all(row.get(name) and row.get(losses["train"]) for row in rows)
        and _num_values(cells, name) == len(rows)
    }


def _beside_held_out_loss(cells: Sequence[Cells], found: Meanings) -> Meanings:
    """Return the metrics without a split that are of held-out data, as the only losses are.

    They are always next to the loss of validation, or else of test, and nothing is of training.
    Metrics other than accuracy keep the meaning None.
    """
    kinds = set(found.values())
    loss = next((kind for kind in (Meaning.VAL_LOSS, Meaning.TEST_LOSS) if kind in kinds), None)
    known = {Meaning.TRAIN_LOSS, Meaning.VAL_ACCURACY, Meaning.TEST_ACCURACY}
    if loss is None or known & kinds or any(split_of(name)[0] == "train" for name in found):
        return {}
    losses = [name for name, kind in found.items() if kind is loss]
    kind = Meaning.VAL_ACCURACY if loss is Meaning.VAL_LOSS else Meaning.TEST_ACCURACY
    return {
        name: kind if found[name] is Meaning.TRAIN_ACCURACY else None
        for name in found
        if not has_split(name)
        and (found[name] is Meaning.TRAIN_ACCURACY or _is_score(name, found))
        and all(any(row.get(one) for one in losses) for row in cells if row.get(name))
    }


def _in_rows_of_their_own(
    cells: Sequence[Cells], found: Meanings, metrics: Sequence[str]
) -> set[str]:
    """Return the metrics that are never in a row with what only training logs."""
    of_training = [
        name
        for name, kind in found.items()
        if kind in (Meaning.TRAIN_LOSS, Meaning.LEARNING_RATE) and name not in metrics
    ]
    trained = [row for row in cells if any(row.get(name) for name in of_training)]
    if not trained:
        return set()
    return {name for name in metrics if not any(row.get(name) for row in trained)}


def _is_score(name: str, found: Meanings) -> bool:
    return found[name] is None and score_rank(name) is not None


def _less_exact(cells: Sequence[Cells], found: Meanings) -> list[str]:
    """Return the columns that another one with the same meaning replaces.

    `loss` replaces `nll_loss`, `accuracy` replaces `balanced` kinds and error rates; `train_loss`
    replaces `loss`, if it is in more than one row.
    """
    left: list[str] = []
    for kind in (*LOSSES, *ACCURACIES):
        names = [name for name, other in found.items() if other is kind]
        ranks = {name: _NAMES.get(split_of(name)[1].removesuffix("_step"), 2) for name in names}
        best = min(ranks.values(), default=0)
        left += [name for name in names if ranks[name] > best]
    train = [n for n, kind in found.items() if kind is Meaning.TRAIN_LOSS and n not in left]
    named = [name for name in train if has_split(name)]
    if any(_num_values(cells, name) > 1 for name in named):
        left += [name for name in train if name not in named]
    return left


def _num_values(cells: Sequence[Cells], name: str) -> int:
    return sum(read_number(row.get(name, "")) is not None for row in cells)


def _tested_in_training(cells: Sequence[Cells], found: Meanings) -> Meanings:
    """Return test columns with the meaning of validation, if they were written repeatedly.

    A training without validation whose test set was evaluated at each epoch is judged by that set;
    a test result that occurs once is a test result.
    """
    if {*HELD_OUT, SCORE} & set(found.values()) or any(
        split_of(name)[0] == "val" and _is_score(name, found) for name in found
    ):
        return {}
    tested: Meanings = {
        name: _TEST_AS_VAL[kind]
        for name, kind in found.items()
        if isinstance(kind, Meaning) and kind in _TEST_AS_VAL
    }
    scores: Meanings = {
        name: None for name in found if split_of(name)[0] == "test" and _is_score(name, found)
    }
    num = max((_num_values(cells, name) for name in tested | scores), default=0)
    return tested | scores if num > 1 else {}


def _score(
    cells: Sequence[Cells],
    found: Meanings,
    bare: Sequence[str],
    *,
    preferred: str | None,
    has_tests: bool,
) -> str | None:
    """Return the held-out metric to judge by, if there is no accuracy."""
    if Meaning.VAL_ACCURACY in found.values():
        return None
    splits = {"val", "test"} if has_tests else {"val"}
    held = [
        name
        for name, kind in found.items()
        if kind is None
        and (name in bare or split_of(name)[0] in splits)
        and is_measure(name)
        and _num_values(cells, name)
    ]
    if preferred in held:
        return preferred
    known = [name for name in held if score_rank(name) is not None]
    if known:
        return min(known, key=lambda name: score_rank(name) or 0)
    if Meaning.VAL_LOSS in found.values():
        return None
    by_set = [name for name in held if not set_number(name)]
    return next(iter(by_set or held), None)
