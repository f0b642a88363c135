"""The console of Darknet: `3001: 0.52, 0.61 avg loss, 0.001 rate, 2.3 seconds, 192064 images`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from stepladder.diagnosis.logs.meaning.attempts import split_attempts
from stepladder.diagnosis.logs.meaning.column_names import read_number
from stepladder.diagnosis.logs.meaning.rows import Cells, Table
from stepladder.diagnosis.logs.printed.screen import screen_lines
from stepladder.records.audit import LogFormat

_ITERATION = re.compile(  # a classifier's has the epochs as well
    r"\s*(?:\([^)]*\)\s*)?(?P<step>\d+)(?:, \d+\.\d+)?: \S+, (?P<average>\S+) avg(?: loss)?, "
    r"(?P<rate>\S+) rate, \S+ seconds, (?P<images>\d+) images\b.*"
)
_PRECISION = re.compile(
    r"mean average precision \(mAP@(?P<at>0\.\d+(?::0\.\d+)?)\) = (?P<value>\d\.\d+)"
)
NOTE = "the training loss is Darknet's running average, the second number of each line"


def is_darknet_log(text: str) -> bool:
    """Return True if lines are iterations of Darknet."""
    return any(_ITERATION.fullmatch(line) for line in screen_lines(text))


def read_darknet_log(text: str, *, name: str, path: str) -> list[Table]:
    """Read the iterations, and the mAP that is printed between them."""
    attempts = split_attempts(list(_rows(text)))
    table = Table(name=name, path=path, format=LogFormat.TEXT, cells=())
    return [
        replace(
            table,
            name=name if len(attempts) == 1 else f"{name}#{idx + 1}",
            cells=attempt.cells,
            notes=(NOTE, *attempt.notes(is_epoch_from_0=False)),
            resumed_at=attempt.resumed_at,
        )
        for idx, attempt in enumerate(attempts)
    ]


def _rows(text: str) -> Iterator[Cells]:
    step = "0"
    for line in screen_lines(text):
        if found := _ITERATION.fullmatch(line):
            step = found["step"]
            yield {
                "step": step,
                "train loss": found["average"],
                "lr": found["rate"],
                "images_seen": found["images"],
            }
        elif (found := _PRECISION.search(line)) and read_number(found["value"]) is not None:
            at = found["at"].replace("0.50:0.95", "50-95").replace("0.50", "50")
            yield {"step": step, f"mAP{at}": found["value"]}
