"""Find identical files: within a split, in train and another split, and in several classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepladder.config.choices import Split
from stepladder.data.prepare.plan import Row
from stepladder.data.sources.walk import printable

_NUM_SHOWN = 5


@dataclass(frozen=True)
class Copies:
    """Identical files of a store.

    Attributes:
        num_within_splits: number of files that have a copy in their own split.
        of_train: of val and test, the path of each file and of its copy in train.
        in_classes: paths of each group of identical files with different labels.
        is_of_train: for each row of val and test, whether it is also in train.
    """

    num_within_splits: int
    of_train: dict[str, list[tuple[str, str]]]
    in_classes: list[list[str]]
    is_of_train: Mapping[Split, Sequence[bool]]

    def warnings(self, log_name: str) -> list[str]:
        """Return a warning for each kind that spoils a measurement, with the first five names.

        Args:
            log_name: file that has all names.
        """
        found = []
        for split, pairs in self.of_train.items():
            shown = [f"{copy} = {path}" for copy, path in pairs]
            found.append(
                f"{len(pairs)} of {len(self.is_of_train[Split(split)])} pictures of {split} are "
                f"also in train (identical files), so the accuracy on {split} is optimistic: "
                + _name_first(shown, log_name)
            )
        if self.in_classes:
            found.append(
                f"{len(self.in_classes)} pictures are in two or more classes (identical files): "
                + _name_first([" = ".join(paths) for paths in self.in_classes], log_name)
                + "; delete the copies that are in a wrong class"
            )
        return found


def find_copies(rows: Mapping[Split, Sequence[Row]]) -> Copies:
    """Compare the hashes of the rows of each split."""
    hashes = {split: {row.sha256 for row in some} for split, some in rows.items()}
    in_train = hashes[Split.TRAIN]
    is_of_train = {
        split: [row.sha256 in in_train for row in rows[split]] for split in (Split.VAL, Split.TEST)
    }
    leaked = {
        row.sha256
        for split, are in is_of_train.items()
        for row, is_one in zip(rows[split], are, strict=True)
        if is_one
    }
    train_path = {row.sha256: row.path for row in rows[Split.TRAIN] if row.sha256 in leaked}
    of_train = {
        split.value: sorted(
            (printable(row.path), printable(train_path[row.sha256]))
            for row, is_one in zip(rows[split], are, strict=True)
            if is_one
        )
        for split, are in is_of_train.items()
        if any(are)
    }
    labels: dict[bytes, set[int]] = defaultdict(set)
    for some in rows.values():
        for row in some:
            labels[row.sha256].add(row.label)
    paths: dict[bytes, list[str]] = {key: [] for key, found in labels.items() if len(found) > 1}
    for some in rows.values() if paths else ():
        for row in some:
            if row.sha256 in paths:
                paths[row.sha256].append(printable(row.path))
    return Copies(
        num_within_splits=sum(len(rows[split]) - len(hashes[split]) for split in rows),
        of_train=of_train,
        in_classes=sorted(sorted(some) for some in paths.values()),
        is_of_train=is_of_train,
    )


def _name_first(names: Sequence[str], log_name: str) -> str:
    shown = ", ".join(names[:_NUM_SHOWN])
    num_more = len(names) - _NUM_SHOWN
    return shown + (f" and {num_more} more, see {log_name}" if num_more > 0 else "")
