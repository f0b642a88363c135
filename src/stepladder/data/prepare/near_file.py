"""near_duplicates.csv of a store: held-out pictures that are near-duplicates of one of train."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from stepladder.config.choices import Split
from stepladder.data.prepare.quarantine import guarded
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError
from stepladder.records import read_json, write_bytes

NEAR_NAME: Final = "near_duplicates.csv"
LOG_NAME: Final = "prepare_log.json"
_LEAST: Final = 2
_MAX_FRAC: Final = 0.01  # of a split; fewer seldom change the accuracy visibly


class NearPair(NamedTuple):
    """A held-out picture and the picture of train that it is a near-duplicate of.

    Rows count within a split of the store.
    """

    split: Split
    path: str
    train_path: str
    row: int
    train_row: int


def write_near(folder: Path, pairs: Iterable[NearPair]) -> None:
    """Write near_duplicates.csv, sorted by split and row; only a header without any."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(NearPair._fields)
    for pair in sorted(pairs, key=lambda pair: (pair.split.value, pair.row)):
        paths = (guarded(printable(path)) for path in (pair.path, pair.train_path))
        writer.writerow((pair.split.value, *paths, pair.row, pair.train_row))
    write_bytes(folder / NEAR_NAME, text.getvalue().encode())


def read_near(folder: Path, split: Split) -> list[NearPair] | None:
    """Read the pairs of a split; None if the store has no such file, as older ones."""
    with suppress(OSError, ValueError, TypeError, csv.Error):
        text = (folder / NEAR_NAME).read_text(encoding="utf-8")
        header, *rows = csv.reader(io.StringIO(text, newline=""))
        if tuple(header) == NearPair._fields:
            pairs = [
                NearPair(Split(name), path, other, int(row), int(train_row))
                for name, path, other, row, train_row in rows
            ]
            return [pair for pair in pairs if pair.split is split]
    return None


def are_many(num: int, num_compared: int) -> bool:
    """Return True if so many pictures of a split are near-duplicates that it is a warning."""
    return num >= _LEAST and num > _MAX_FRAC * num_compared


def near_words(num: int, num_compared: int, split: str) -> str:
    """Return how many near-duplicates there are, and what follows."""
    return (
        f"{num} of {num_compared} pictures of {split} ({100 * num / num_compared:.1f} %) are "
        f"near-duplicates of one of train, so the accuracy on {split} is optimistic"
    )


def near_fix(split: str, *, can_group: bool, listed: str, group_by: str | None = None) -> str:
    """Return what to do about near-duplicates.

    Args:
        can_group: whether the split was drawn from the source without groups.
        listed: where the pictures are listed.
        group_by: the value of --group-by that keeps them together, if it is known.
    """
    if can_group and group_by is not None:
        return (
            "to keep pictures that belong together by their names in the same split, add "
            f"--group-by {shlex.quote(group_by)} --overwrite to the command"
        )
    if can_group:
        return (
            "keep pictures that belong together in the same split with --group-by, or remove those "
            f"listed in {listed} from the source"
        )
    return f"remove the pictures of {split} that are listed in {listed} from the source"


def near_warnings(store: Path | None) -> list[str]:
    """Return a sentence for each held-out split of a store with many near-duplicates of train.

    Args:
        store: a folder; None, or a folder without a log: nothing is known.
    """
    found = []
    for split in (Split.VAL.value, Split.TEST.value):
        with suppress(DataError, OSError, KeyError, TypeError):
            log = read_json(Path(store or "") / LOG_NAME)["near_duplicates"][split]
            num, num_compared = int(log["num_near"]), int(log["num_compared"])
            if are_many(num, num_compared):
                found.append(near_words(num, num_compared, split))
    return found
