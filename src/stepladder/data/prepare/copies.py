"""Find identical files: within a split, in train and another split, and in several classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepladder.config.choices import Split
from stepladder.data.prepare.counted import NUM_NAMES, first_names, pictures
from stepladder.data.prepare.plan import Row
from stepladder.data.sources.walk import printable

_MAX_FRAC = 0.01  # of the pictures; fewer copies hardly matter


@dataclass(frozen=True)
class Copies:
    """Identical files of a store.

    Attributes:
        num_within_splits: number of files that have a copy in their own split.
        within_classes: the first of those with a copy in the same class, and their number; they
            are only counted if they are many.
        of_train: of val and test, the path of each file and of its copy in train.
        in_classes: paths of each group of identical files with different labels.
        is_of_train: for each row of val and test, whether it is also in train.
    """

    num_within_splits: int
    within_classes: tuple[list[str], int]
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
            said = pictures(
                len(pairs),
                "are also in train (identical files)",
                of=len(self.is_of_train[Split(split)]),
                what=f"pictures of {split}",
            )
            found.append(
                f"{said}, so the accuracy on {split} is optimistic: " + _name_first(shown, log_name)
            )
        if self.in_classes:
            said = pictures(len(self.in_classes), "are in two or more classes (identical files)")
            found.append(
                f"{said}: "
                + _name_first([" = ".join(paths) for paths in self.in_classes], log_name)
                + "; delete the copies that are in a wrong class"
            )
        names, num = self.within_classes
        if num:
            said = pictures(num, "are copies of another one in their class and split")
            found.append(
                f"{said} (identical files), and count more than others: "
                + first_names(names, num, "")
                + "; delete the copies"
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
    num_within_splits = sum(len(rows[split]) - len(hashes[split]) for split in rows)
    is_much = num_within_splits > _MAX_FRAC * sum(map(len, rows.values()))
    return Copies(
        num_within_splits=num_within_splits,
        within_classes=_within_classes(rows) if is_much else ([], 0),
        of_train=of_train,
        in_classes=sorted(sorted(some) for some in paths.values()),
        is_of_train=is_of_train,
    )


def _within_classes(rows: Mapping[Split, Sequence[Row]]) -> tuple[list[str], int]:
    """Return the names of the first copies in a class of one split, and the number of all."""
    names, num = [], 0
    for some in rows.values():
        first: dict[tuple[bytes, int], str] = {}
        for row in some:
            path = first.setdefault((row.sha256, row.label), row.path)
            if path is not row.path:
                num += 1
                if num <= NUM_NAMES:
                    names.append(f"{printable(row.path)} = {printable(path)}")
    return names, num


def _name_first(names: Sequence[str], log_name: str) -> str:
    return first_names(names, len(names), f", see {log_name}")
