"""The console output of Keras' `fit`, and its History as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepladder.diagnosis.logs.meaning.column_names import meaning
from stepladder.diagnosis.logs.meaning.rows import Table
from stepladder.diagnosis.logs.printed.screen import screen_lines
from stepladder.records.audit import LogFormat

_EPOCH = re.compile(r"^\s*Epoch (\d+)\s*/\s*(\d+)\s*$")
_SIZES = re.compile(r"Train on (\d+) samples(?:, validate on (\d+) samples)?")
_DASHED = re.compile(r"(?:^|\s)- [A-Za-z_]\w*: +[-\dn]")
_LINE = re.compile(
    r"^\s*(?:- )?\d+(?:\.\d+)?m?s(?: \d+\w+/\w+)? - "
)  # verbose=2 before TensorFlow 1.14
_ETA = re.compile(r"ETA: *\S+")
_STEPS = re.compile(r"^\s*(\d+)\s*/\s*(\d+|Unknown)\b")
_METRIC = re.compile(
    r"([A-Za-z_][\w./@ ]*?)\s*:\s*([-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?|nan|-?inf)\b"
)
_TIME = re.compile(
    r"(?:^|[\s\u2501\]>=.-])(?:(?:(\d+):)?(\d+):(\d\d)|(\d+(?:\.\d+)?)(ms|us|µs|s))(?=\s|$)"
)
_PER_SAMPLE = re.compile(r"[mu\u00b5]?s/sample")
_EARLY = re.compile(r"^\s*Epoch 0*(\d+): early stopping")
_UNITS = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "s": 1.0}


def is_keras_output(text: str) -> bool:
    """Return True if the text has lines that only `fit` prints."""
    lines = screen_lines(text)
    return any(map(_EPOCH.match, lines)) and any(map(_DASHED.search, lines))


def read_keras_output(text: str, *, name: str, path: str) -> list[Table]:
    """Read the text of one or more calls of `fit`, with or without progress bars."""
    runs: list[list[_Epoch]] = []
    replaced: dict[int, str] = {}
    for epoch in _epochs(text):
        if not runs or epoch.number <= runs[-1][0].number:
            runs.append([])
        elif epoch.number <= runs[-1][-1].number:  # with `initial_epoch`
            replaced[len(runs) - 1] = (
                f"it was resumed at epoch {epoch.number}: earlier values from there on are replaced"
            )
            runs[-1] = [old for old in runs[-1] if old.number < epoch.number]
        runs[-1].append(epoch)
    return [
        _table(
            epochs,
            name=name if len(runs) == 1 else f"{name}#{idx + 1}",
            path=path,
            notes=(replaced[idx],) if idx in replaced else (),
        )
        for idx, epochs in enumerate(runs)
    ]


def _table(epochs: Sequence[_Epoch], *, name: str, path: str, notes: tuple[str, ...]) -> Table:
    """Build the table of a call of `fit`; an incomplete last epoch is left out."""
    known: dict[str, object] = {}
    for epoch in epochs:
        known |= epoch.known()
    if _is_cut(epochs):
        notes += (f"the log ends within epoch {epochs[-1].number}, which is ignored",)
        epochs = epochs[:-1]
    if epochs and epochs[0].number > 1:
        notes += (f"the log begins with epoch {epochs[0].number}: earlier epochs are not in it",)
    return Table(
        name=name,
        path=path,
        format=LogFormat.KERAS_OUTPUT,
        cells=[epoch.cells() for epoch in epochs],
        notes=notes,
        known=known,
    )


def _is_cut(epochs: Sequence[_Epoch]) -> bool:
    last, before = epochs[-1], epochs[:-1]
    always_validates = bool(before) and all(_has_val(epoch.values) for epoch in before)
    return not last.is_done or (always_validates and not _has_val(last.values))


def read_keras_history(value: Mapping[str, Any], *, name: str, path: str) -> Table:
    """Read `history.history` as JSON: a list of numbers per metric."""
    lists = {key: items for key, items in value.items() if isinstance(items, list)}
    num = max(map(len, lists.values()), default=0)
    uneven = [key for key, items in lists.items() if len(items) < num]
    notes = (f"{', '.join(uneven)} have fewer epochs than the others",) if uneven else ()
    cells = [
        {"epoch": str(idx + 1)}
        | {key: repr(items[idx]) for key, items in lists.items() if idx < len(items)}
        for idx in range(num)
    ]
    return Table(name=name, path=path, format=LogFormat.KERAS_HISTORY, cells=cells, notes=notes)


class _Epoch:
    """The lines of one epoch, added one by one."""

    def __init__(self, number: int, max_epochs: int) -> None:
        self.number = number
        self.max_epochs = max_epochs
        self.values: dict[str, str] = {}
        self.seconds: float | None = None
        self.is_done = False
        self.others: dict[str, object] = {}

    def take(self, line: str) -> None:
        """Add a line; each state of a progress bar replaces the previous one."""
        steps = _STEPS.match(line) or _LINE.match(line)
        found = dict(_METRIC.findall(line))
        values = {key.strip(): value for key, value in found.items() if _is_metric(key)}
        if steps is None and (early := _EARLY.match(line)):
            self.others |= {"stop_reason": "early_stopping", "epochs": float(early[1])}
        if steps is None or not values or (self.is_done and not _has_val(values)):
            if steps is not None and self.is_done and values:
                self._evaluate(values)
            return
        self.values = {**({} if _has_val(values) else self.values), **values}
        self.seconds = _seconds(line)
        done, num = (None, None) if steps.re is _LINE else steps.groups()
        self.is_done = num in (done, "Unknown") or _has_val(values)
        if _PER_SAMPLE.search(line) and num is not None and num.isdigit():
            self.others["num_train"] = int(num)

    def _evaluate(self, values: Mapping[str, str]) -> None:
        """Store what a call of `evaluate` after the last epoch prints."""
        for key, text in values.items():
            kind = meaning(key)
            if kind is not None and kind.value in ("train_loss", "train_accuracy"):
                self.others[kind.value.replace("train", "test")] = float(text.replace(",", "."))

    def cells(self) -> dict[str, str]:
        cells = {"epoch": str(self.number), **self.values}
        if self.seconds is not None:
            cells["epoch_s"] = repr(self.seconds)
        return cells

    def known(self) -> dict[str, object]:
        return {"max_epochs": self.max_epochs, **self.others}


def _epochs(text: str) -> Iterator[_Epoch]:
    epoch: _Epoch | None = None
    sizes: dict[str, object] = {}
    before: list[str] = []
    for line in screen_lines(text):
        if head := _EPOCH.match(line):
            if epoch is not None:
                yield epoch
            elif first := _without_head(before, int(head[1]), int(head[2])):
                yield first
            epoch = _Epoch(int(head[1]), int(head[2]))
            epoch.others |= sizes
            sizes = {}
        elif found := _SIZES.search(line):
            sizes = {"num_train": int(found[1])}
            sizes |= {"num_val": int(found[2])} if found[2] else {}
        elif epoch is not None:
            epoch.take(line)
        else:
            before.append(line)
    if epoch is not None:
        yield epoch


def _without_head(lines: Sequence[str], number: int, max_epochs: int) -> _Epoch | None:
    """Return the epoch whose line `Epoch 1/30` is missing, before that of the next epoch."""
    if number < 2:
        return None
    epoch = _Epoch(number - 1, max_epochs)
    for line in lines:
        epoch.take(line)
    return epoch if epoch.is_done else None


def _is_metric(name: str) -> bool:
    return name.strip() not in ("ETA", "Epoch") and not name.strip().isdigit()


def _has_val(values: Mapping[str, str]) -> bool:
    return any(key.startswith("val_") for key in values)


def _seconds(line: str) -> float | None:
    """Return the duration of an epoch from its line: `20s`, `1:05`, `350ms`."""
    found = _TIME.search(_ETA.sub("", line))
    if found is None:
        return None
    hours, minutes, seconds, amount, unit = found.groups()
    if amount is not None:
        return float(amount) * _UNITS[unit]
    return 3600 * int(hours or 0) + 60 * int(minutes) + int(seconds)
