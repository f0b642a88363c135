r"""Printed logs: lines such as `Epoch 3/10 train loss: 0.5, val acc: 0.9`, of any script.

Read are names followed by numbers. The epoch and the split are those that the line names; a line
without an epoch belongs to the one before, and one without a step to the step before. Lines of
single batches (`[10/35]`) make up an epoch: training values are averaged, or the running average in
brackets is used (`Loss 0.41 (0.52)`); of an evaluation the last line counts. A line that sums up an
epoch replaces them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

from stepladder.diagnosis.logs.meaning.attempts import split_attempts, without_replays
from stepladder.diagnosis.logs.meaning.column_names import (
    ACCURACIES,
    LOSSES,
    SPLIT_OF_WORD,
    Meaning,
    has_split,
    is_measure,
    meaning,
    plain_name,
    read_number,
    score_rank,
    split_of,
)
from stepladder.diagnosis.logs.meaning.rows import Cells, Table
from stepladder.diagnosis.logs.printed.counted import counted_alike
from stepladder.diagnosis.logs.printed.detection_lines import with_precisions
from stepladder.diagnosis.logs.printed.leading_epochs import name_leading_epochs
from stepladder.diagnosis.logs.printed.scores import name_scores
from stepladder.diagnosis.logs.printed.screen import screen_lines
from stepladder.diagnosis.logs.printed.unnamed_loops import name_unnamed_loops
from stepladder.diagnosis.logs.printed.values import (
    FILLERS,
    NAN,
    NUM,
    error_rate,
    with_means,
    with_plain_values,
)
from stepladder.records.audit import LogFormat

_PAIR = re.compile(
    r"(?<![\w.])(?P<name>[A-Za-z_][\w@./'-]{0,60}"
    rf"(?: (?!{NAN})[A-Za-z_(][\w@./')-]{{0,60}}){{0,4}})"
    rf"\s*(?:[:=]\s*|\s+)\[?(?P<value>{NUM})"
    rf"(?:\s*(?P<percent>%)|/(?P<of>\d+)(?![\d:]))?(?:\s*\(\s*(?:(?P<mean>{NUM})\s*%?|[nN]\s*=\s*(?P<num>\d+))\s*\))?(?![\w:]|\.\d)"
)
_STAMP = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d:\d\d:\d\d)")
_HEAD = re.compile(  # times, levels and names of loggers
    r"^\W*(?:\w{3} )?(?:\w{3} +\d+ )?(?:\d{2,4}[-/])?\d\d[-/:]\d\d[ T:]?[\d:,.+]*(?: \d{4})?\W*"
    r"(?:- \w+ - [A-Z]+ - )?"
)
_LOGGER = re.compile(  # and lines of source files, whose names may be those of splits
    r"^\w+(?:\.\w+)+\]:|\((?:\w+\.py) \d+\)|\b[\w/]+\.py:\d+:?(?:\[\d+\])?|\[\w+\] \[\w+\]|"
    r"\b(?:INFO|DEBUG|WARNING)\b:?(?:root:)?"
)
_LEFT_OUT = re.compile(
    r"\beta:? *(?:\d+ days?, )?[\d:]+s?|\bof \d+ (?:batch|sample|example|image)\w*|"
    r"\(\s*\d+(?:\.\d+)?%\s*\)|(?<![\d.])[\d.]+ ?s?(?:it|samples?|images?)/s(?:ec)?|"
    r"\(\w*(?:avg|average)\)|\bbest\s*:\s*[\w@]+\s*[:=]\s*[\d.]+",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    r"(?<!best )(?<![\w/])(?:epochs?|ep)(?: *\(\w+\))?\s*[:=#]?\s*\[?\s*(\d+)\s*\]?"
    r"(?:\s*/\s*(\d+))?(?![\d.]*%)",
    re.IGNORECASE,
)
_TRAIN_EPOCH = re.compile(r"\btrain(?:ing)?:\s*\[?(\d+)(?:/(\d+)\])?(?=[\s\[])", re.IGNORECASE)
_STEP = re.compile(
    r"\b(?:iter(?:ation)?|(?:global_?)?step|num_updates)\b\s*[:=\[#]?\s*(\d+)", re.IGNORECASE
)
_PAIR_OF_PLACES = re.compile(r"^\s*\[ *(\d+), *\d+\](?= )")  # epoch and batch
_ACCURACY_OF = re.compile(
    r"\baccuracy of [^:\d]*(?:\d+ )?(\w+ )?(?:images|examples|samples)\s*:", re.IGNORECASE
)
_ROUND = re.compile(r"^\[(\d+)\]\s+(?=[\w-]+:)")  # of XGBoost
_PART = re.compile(
    r"\[\s*(?:iter\w*:? *)?\d+\s*/\s*\d+|\biter\w* \d+/\d+|"
    r"(?<!epoch )(?<!epoch: )(?<![\d/\[])\b\d+ / \d+|"
    r"\d+%\||step:\d+|^\W*\d+/\d+ ",
    re.IGNORECASE,
)
_BATCH = re.compile(r"(\d{1,12})\s*/\s*(\d+)")
_FILE = re.compile(  # its name is no split: `Loaded 250 images from val.json`
    r"\S+\.(?:json|jsonl|txt|csv|tsv|ya?ml|py|ipynb|pth?|ckpt|h5|hdf5|npy|npz|pkl|lmdb|list|log|"
    r"tfrecords?|parquet|tar|zip|gz|jpe?g|png)\b"
)
_WORD = re.compile(r"[A-Za-z]+")
_NUMBER_AT_END = re.compile(r"[A-Za-z)]\s*[:=]\s*-?\d+\.\d+\s*%?\s*$")
_METER = re.compile(
    r"^(\W*)Test(?=(?: \(EMA\))?:\s+(?:(?:EMA )?\[\s*\d+/\d+\]|Acc@1 ))", re.MULTILINE
)
_VALIDATION = re.compile(r"^\W*(?:val|valid|validation)\b", re.MULTILINE | re.IGNORECASE)
_OF_LAST = frozenset({"final", "last"})  # the only test result, but another one of validation
_OF_BEST = re.compile(r"(^|_)best_(model|checkpoint|weights)(_|$)")
_SKIPPED = re.compile(r"^(best|max|min|prev(ious)?|new|ema|last_best)(_|$)|(^|_)best(_|$)")
_OF_CHECKPOINT = re.compile(  # the best one is loaded at the end
    r"^(?!.*best).*\b(?:load(?:ed|ing)?|resum\w+|restored?|restoring)\b", re.IGNORECASE
)
_TIME_AT_END = re.compile(  # of the epoch: `| 87.0s`, `(87.0 s)`, `time: 87.0 sec`
    r"(?:[|,;\[(]|\b(?:time|took)\b)\s*[:=]?\s*(\d+(?:\.\d+)?) ?s(?:ec(?:onds?)?)?\b\W*$",
    re.IGNORECASE,
)
_AVERAGE_PRECISION = re.compile(r"(?:bbox|segm|keypoints)[ /]AP")  # always of held-out data
_MAX_LINE = 4000
_NUM_NAMES = 4096  # the same few names are in every line


def is_text_log(text: str) -> bool:
    """Return True if lines name losses or metrics with their values."""
    return any(cells for _, cells in _lines(text))


def _with_validation(text: str) -> tuple[str, tuple[str, ...]]:
    """Name the validation of programs whose progress meter calls it `Test: [ 0/12]`.

    Source: timm, torchvision's references and pytorch/examples, which evaluate the folder `val`.

    Returns:
        The text, and a note if it was changed.
    """
    if _VALIDATION.search(text):
        return text, ()
    text, num = _METER.subn(r"\1Val", text)
    return text, ("its progress meter `Test: […]` is read as validation",) if num else ()


def read_text(text: str, *, name: str, path: str) -> list[Table]:
    """Read the lines of a printed log."""
    text, loops = name_unnamed_loops(text)
    text, leading = name_leading_epochs(text)
    text, scores = name_scores(text)
    text, renamed = _with_validation(text)
    rows, repeated = _without_repeats(list(_rows(text)))
    rows, counted = counted_alike(rows)
    notes = (*loops, *leading, *scores, *renamed, *repeated, *counted)
    cells, is_after_replay = without_replays([cells for cells, _ in rows])
    if len(cells) < len(rows):
        attempts = split_attempts(cells, is_after_replay)
    else:
        attempts = split_attempts(cells, _restarts(rows))
    return [
        Table(
            name=name if len(attempts) == 1 else f"{name}#{idx + 1}",
            path=path,
            format=LogFormat.TEXT,
            cells=attempt.cells,
            is_epoch_from_0=(is_from_0 := any(row.get("epoch") == "0" for row in attempt.cells)),
            notes=(*notes, *attempt.notes(is_epoch_from_0=is_from_0)),
            resumed_at=attempt.resumed_at,
            known=_known(attempt.cells),
        )
        for idx, attempt in enumerate(attempts)
    ]


@dataclass(kw_only=True)
class _Place:
    """What a line says about itself, beside its values.

    Attributes:
        epoch, step: as printed; None: not in the line.
        split: train, val or test; None: not in the line. It holds for the next lines as well.
        first_split: of the first value's name, as in `val Loss: 0.5 Acc: 0.8`.
        is_part: of single batches, or of a progress bar.
        batch, num_batches: of single batches; None: not in the line.
        is_average: its training values are running averages.
        is_of_number: it ends with a number of unknown name, as in `Validation cost: 0.3`.
        is_of_checkpoint: it names the epoch of a checkpoint that was loaded, as in `loaded
            checkpoint last.pth (epoch 12)`.
        is_resumed: it is the first line of training after such a line.
        rate: the learning rate of a line that has no other value.
    """

    epoch: str | None = None
    step: str | None = None
    split: str | None = None
    first_split: str | None = None
    timestamp: float | None = None
    is_part: bool = False
    batch: int | None = None
    num_batches: str | None = None
    is_average: bool = False
    is_of_number: bool = False
    is_of_checkpoint: bool = False
    is_resumed: bool = False
    rate: str | None = None

    def is_before(self, other: _Place | None) -> bool:
        """Return True if its batch comes before that of another line of the same loop."""
        return (
            other is not None
            and self.batch is not None
            and other.batch is not None
            and self.num_batches == other.num_batches
            and self.batch < other.batch
        )


@dataclass(kw_only=True)
class _Group:
    """The lines of one split in one epoch."""

    epoch: str | None
    split: str
    parts: list[Mapping[str, str]] = field(default_factory=list)
    whole: dict[str, str] = field(default_factory=dict)
    is_average: bool = False
    step: str | None = None
    timestamp: float | None = None
    last: _Place | None = None
    is_restarted: bool = False

    def cells(self) -> Cells:
        values: dict[str, str] = {}
        for name in dict.fromkeys(name for part in self.parts for name in part):
            texts = [part[name] for part in self.parts if name in part]
            values[name] = texts[-1]
            kind = meaning(name)
            if kind in (Meaning.TRAIN_LOSS, Meaning.TRAIN_ACCURACY) and not self.is_average:
                known = [num for text in texts if (num := read_number(text)) is not None]
                values[name] = repr(sum(known) / len(known)) if known else texts[-1]
        place = {"epoch": self.epoch, "step": self.step if self.epoch is None else None}
        if self.timestamp is not None:
            place["timestamp"] = repr(self.timestamp)
        return {key: text for key, text in place.items() if text is not None} | values | self.whole


def _without_repeats(
    rows: list[tuple[Cells, bool]],
) -> tuple[list[tuple[Cells, bool]], tuple[str, ...]]:
    """Read rows once that occur several times in every epoch; return a note about them.

    So are the lines of a logger with two handlers, or of processes that print the same.
    """
    counts: dict[tuple[str | None, frozenset[tuple[str, str]]], int] = {}
    for cells, _ in rows:
        same = (cells.get("epoch"), _untimed(cells))
        counts[same] = counts.get(same, 0) + 1
    last = rows[-1][0].get("epoch") if rows else None  # it may have ended within its lines
    nums = {num for (epoch, _), num in counts.items() if epoch != last}
    if len(nums) != 1 or nums == {1} or any(epoch is None for epoch, _ in counts):
        return rows, ()
    seen: set[tuple[str | None, frozenset[tuple[str, str]]]] = set()
    left = []
    for cells, is_restarted in rows:
        same = (cells.get("epoch"), _untimed(cells))
        if same not in seen:
            left.append((cells, is_restarted))
        seen.add(same)
    note = f"each line was printed {nums.pop()} times, as by several processes or log handlers"
    return left, (f"{note}; it is read once",)


def _untimed(cells: Cells) -> frozenset[tuple[str, str]]:
    return frozenset(item for item in cells.items() if item[0] not in ("timestamp", "time"))


def _restarts(rows: list[tuple[Cells, bool]]) -> list[bool] | None:
    """Return the rows before which an epoch started again; None if that is usual in this log."""
    epochs = {cells["epoch"] for cells, _ in rows if "epoch" in cells}
    restarts = [is_restarted for _, is_restarted in rows]
    return restarts if 2 * sum(restarts) < len(epochs) else None


def _rows(text: str) -> Iterator[tuple[Cells, bool]]:
    """Yield one row per epoch and split, or per line of a log without epochs.

    Beside each row: whether its batches are counted again from an earlier one, in the same epoch.
    """
    epoch: str | None = None
    headed: str | None = None  # step of a line that named the split, as `Evaluating at step 500`
    announced: str | None = None  # step of a line without values, as of Caffe's `Testing net`
    split, is_of_values = "train", False  # the latter: a line with values named the split
    group: _Group | None = None
    for place, values in _with_rates(_with_resumptions(_lines(text))):
        if place.split is not None or place.epoch is not None:
            split, is_of_values = place.split or "train", bool(values) or place.is_of_number
            headed = None if values else place.step
        elif (
            place.step is not None and values and (is_of_values or headed not in (None, place.step))
        ):
            split, headed = "train", None  # `Iteration 8000, loss = …` after `Test net output`
        elif _has_rate(values):
            split = "train"
        epoch = place.epoch if place.epoch is not None else epoch
        if not values:
            announced = place.step or announced
            continue
        announced = announced if place.step is None else None
        place.step = place.step or announced
        own = place.first_split or split
        named = _with_size_of_set({_named(name, own): text for name, text in values.items()})
        is_same = (
            group is not None
            and (group.epoch, group.split) == (epoch, own)
            and (epoch is not None or group.step == place.step or place.step is None)
            and not (set(named) & set(group.whole) and (epoch is None or not place.is_part))
        )
        last = None if group is None else group.last
        is_restarted = place.is_resumed or (is_same and epoch is not None and place.is_before(last))
        if group is None or not is_same or is_restarted:
            if group is not None:
                yield group.cells(), group.is_restarted
            group = _Group(epoch=epoch, split=own, step=place.step, is_restarted=is_restarted)
        group.last = place if place.batch is not None else group.last
        group.timestamp = place.timestamp if place.timestamp is not None else group.timestamp
        group.is_average |= place.is_average
        if place.is_part:
            group.parts.append(named)
        else:
            group.whole |= named
    if group is not None:
        yield group.cells(), group.is_restarted


def _with_size_of_set(values: dict[str, str]) -> dict[str, str]:
    """Name the number of examples that of the test or training set, if the accuracy is of it."""
    splits = {split_of(name)[0] for name in values if meaning(name) in ACCURACIES}
    of = {"test": "num_test", "train": "num_train"}.get(next(iter(splits), None) or "")
    if "num_held_out" not in values or of is None or len(splits) > 1:
        return values
    return {of if name == "num_held_out" else name: text for name, text in values.items()}


def _with_resumptions(
    lines: Iterable[tuple[_Place, dict[str, str]]],
) -> Iterator[tuple[_Place, dict[str, str]]]:
    """Mark the first line of training after a checkpoint was loaded, unless none is before it.

    If no line before has an epoch, those after it have none either, and do not take over its.
    """
    has_epoch = has_values = is_resumed = False
    for place, values in lines:
        if place.is_of_checkpoint and has_values:
            is_resumed = True
            place.epoch = place.epoch if has_epoch else None
        elif values:
            kinds = {meaning(name) for name in values}
            is_training = bool(kinds & {Meaning.TRAIN_LOSS, Meaning.TRAIN_ACCURACY})
            place.is_resumed, is_resumed = is_resumed and is_training, False
        has_epoch |= place.epoch is not None
        has_values |= bool(values)
        yield place, values


def _with_rates(
    lines: Iterable[tuple[_Place, dict[str, str]]],
) -> Iterator[tuple[_Place, dict[str, str]]]:
    """Add the learning rate of a line of its own to the next values of training in its epoch.

    One before the first epoch is an option of the program.
    """
    rate, has_epoch = None, False
    for place, values in lines:
        has_epoch |= place.epoch is not None
        if place.split in ("val", "test") or place.first_split in ("val", "test"):
            rate = None
        elif values and rate is not None:
            values, rate = {"lr": rate, **values}, None
        elif has_epoch:
            rate = place.rate or rate
        yield place, values


def _has_rate(values: Mapping[str, str]) -> bool:
    """Return True if a line has a learning rate, as those of training do."""
    return any(meaning(name) is Meaning.LEARNING_RATE for name in values)


@lru_cache(_NUM_NAMES)
def _named(name: str, split: str) -> str:
    """Return a metric's name with the split of its line, unless it has one itself."""
    is_metric = meaning(name) in ACCURACIES | LOSSES or score_rank(name) is not None
    is_ap = _AVERAGE_PRECISION.fullmatch(name) is not None
    if has_split(name) or not is_metric or split == "train" or is_ap:
        return name
    return _without_fillers(f"{split} {name}") or f"{split} {name}"


def _lines(text: str) -> Iterator[tuple[_Place, dict[str, str]]]:
    """Yield the place of each line, with its values by name.

    Of the states of a progress bar, the last one of each epoch counts.
    """
    pending: tuple[_Place, dict[str, str]] | None = None
    for line in with_precisions(screen_lines(text)):
        if not line.strip() or len(line) > _MAX_LINE:
            continue
        place, values = _read_line(line)
        is_bar = "%|" in line or bool(re.search(r"\d+% \d+/\d+ \[", line))
        if is_bar and not values:
            continue
        if pending is not None and (not is_bar or pending[0].epoch != place.epoch):
            yield pending
            pending = None
        if is_bar:
            place.is_part = False
            pending = (place, values)
        else:
            yield place, values
    if pending is not None:
        yield pending


def _read_line(line: str) -> tuple[_Place, dict[str, str]]:
    place = _Place()
    if stamp := _STAMP.search(line):
        year, month, day, clock = stamp.groups()
        place.timestamp = _seconds(f"{year}-{month}-{day} {clock}")
    bare = _LOGGER.sub(" ", _HEAD.sub("", line) if stamp or _HEAD.match(line) else line)
    bare = bare[bare.rfind("]20") + 1 :] if "]20" in bare else bare
    if pair := _PAIR_OF_PLACES.match(line):
        place.epoch, place.is_part, bare = pair[1], True, line[pair.end() :]
    if part := _PART.search(bare):
        place.is_part = True
        if of := _BATCH.search(bare, part.start()):
            place.batch, place.num_batches = int(of[1]), of[2]
    bare = _ACCURACY_OF.sub(lambda found: f"{found[1] or ''}accuracy:", bare)
    bare = _LEFT_OUT.sub(" ", with_plain_values(bare))
    found = _EPOCH.search(bare) or _TRAIN_EPOCH.search(bare)
    if found:
        place.epoch = str(int(found[1]))
        if place.split is None and found.re is _TRAIN_EPOCH:
            place.split = "train"
    if step := _STEP.search(bare):
        place.step = str(int(step[1]))
    is_boosting = _ROUND.match(line)
    if is_boosting:
        place.step, place.is_part = is_boosting[1], False
        bare = re.sub(r"-error:", "-error_rate:", line[is_boosting.end() :])
    values = _values(bare, place)
    place.split = place.split or _split(bare, values)
    place.first_split = _first_split(values)
    place.is_of_number = place.split is not None and _NUMBER_AT_END.search(bare) is not None
    place.is_of_checkpoint = (
        place.epoch is not None and not values and _OF_CHECKPOINT.search(line) is not None
    )
    if re.search(r"\bema\b", bare, re.IGNORECASE):
        values = {}
    return place, values


def _seconds(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _values(text: str, place: _Place) -> dict[str, str]:
    """Return the losses, metrics and learning rates of a line."""
    values: dict[str, str] = {}
    text = with_means(_EPOCH.sub(" | ", text))
    pairs = [(found, _pair_name(found)) for found in _PAIR.finditer(text)]
    named = _repeated_names(text, pairs)
    for idx, (found, own) in enumerate(pairs):
        name = named.get(idx, own)
        if name is None:
            continue
        value = found["mean"] or found["value"]
        place.is_average |= found["mean"] is not None
        if found["of"] and meaning(name) in ACCURACIES and int(found["of"]):
            values[name] = repr(float(found["value"]) / int(found["of"]))
            values["num_held_out"] = found["of"]
        else:
            values[name] = value + (found["percent"] or "")
            if found["num"] and meaning(name) in ACCURACIES:
                values["num_held_out"] = found["num"]
    if not any(_is_judged(name) or _bare_split(name) for name in values):
        place.rate = next(iter(values.values()), None)  # of a learning rate
        return {}
    if len({split_of(name)[0] for name in values} & {"train", "val", "test"}) > 1:
        took = None if place.is_part else _TIME_AT_END.search(text)
        values |= {} if took is None else {"time": took[1]}
    return values


def _pair_name(found: re.Match[str]) -> str | None:
    """Return the name of a value: a metric, or a split with a decimal number; None for others."""
    words = found["name"].strip("'")  # of a key in a dictionary
    if (found["percent"] or found["of"]) and (rate := error_rate(words)) is not None:
        return rate
    name = _metric_name(words)
    is_decimal = "." in found["value"] and not found["of"]
    return _bare_split(words) if name is None and is_decimal else name


def _repeated_names(text: str, pairs: Sequence[tuple[re.Match[str], str | None]]) -> dict[int, str]:
    """Return the names with their splits of metrics that a line has twice without one.

    Each belongs to the last split before it: `train loss 1.2 acc 0.5 | val loss 1.3 acc 0.4`.
    """
    bare = [name for _, name in pairs if name is not None and not has_split(name)]
    named: dict[int, str] = {}
    for idx, (found, name) in enumerate(pairs):
        if name is None or bare.count(name) < 2:
            continue
        words = [word.lower() for word in _WORD.findall(text[: found.start()])]
        split = next((SPLIT_OF_WORD[word] for word in reversed(words) if word in SPLIT_OF_WORD), "")
        named[idx] = f"{split} {name}"
    is_clear = len({*named.values()}) == len(named) and all(map(has_split, named.values()))
    return named if is_clear else {}


def _bare_split(name: str) -> str | None:
    """Return a name that is only a held-out split, as in `Train: 0.91, Val: 0.88`."""
    split, rest = split_of(name)
    return name if split in ("val", "test") and rest == "" else None


@lru_cache(_NUM_NAMES)
def _metric_name(words: str) -> str | None:
    """Return the longest end of some words that names a loss, a metric or a learning rate."""
    if (short := _without_fillers(words)) is not None:
        return short
    parts = words.split()
    if any(_SKIPPED.search(plain_name(part)) for part in parts):
        return None
    for first in range(len(parts)):
        name = " ".join(parts[first:])
        if meaning(name) is Meaning.LEARNING_RATE or _is_judged(name):
            return name
    return None


def _without_fillers(words: str) -> str | None:
    """Return a loss or accuracy of a split without words that do not change it; else None.

    `Accuracy on the test set` is `accuracy test`, and so is `Final test accuracy`, and that of the
    best model.
    """
    plain = plain_name(words)
    split = split_of(plain)[0]
    if split is None:
        return None
    of_model = _OF_BEST.sub("_", plain) if split == "test" else plain
    left_out = FILLERS | (_OF_LAST if split == "test" else frozenset())
    kept = [word for word in of_model.split("_") if word and word not in left_out]
    is_shorter = len(kept) < len(plain.split("_"))
    name = "_".join(kept)
    return name if is_shorter and meaning(name) in ACCURACIES | LOSSES else None


def _is_judged(name: str) -> bool:
    kind = meaning(name)
    if kind is not None:
        return kind in ACCURACIES | LOSSES
    rest = split_of(name)[1]
    is_short = len(rest.split("_")) <= 4
    return is_short and is_measure(name) and score_rank(name) is not None


def _split(text: str, values: Mapping[str, str]) -> str | None:
    """Return the first split that a line names outside the names of its values."""
    for word in _WORD.findall(_FILE.sub(" ", text)):
        if split := SPLIT_OF_WORD.get(word.lower()):
            is_in_names = any(word in re.findall(r"[A-Za-z]+", name) for name in values)
            if not is_in_names:
                return split
    return None


def _first_split(values: Mapping[str, str]) -> str | None:
    """Return the split that begins the first name, if no other name has another one."""
    first = next(iter(values), "")
    split, rest = split_of(first.partition(" ")[0]) if first else (None, "")
    is_only = {split_of(name)[0] for name in values} <= {split, None}
    return split if rest == "" and is_only else None


def _known(cells: list[Cells]) -> dict[str, object]:
    """Return the number of held-out examples, if accuracies are printed as `9895/10000`."""
    found = {text for row in cells for name, text in row.items() if name == "num_held_out"}
    return {"num_val": int(found.pop())} if len(found) == 1 else {}
