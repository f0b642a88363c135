"""Read split names: cells of tables, names of files, and names of folders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import Any, Final

from stepladder.config.choices import Split
from stepladder.errors import DataError, UsageError

SPLIT_NAMES: Final = {
    "train": Split.TRAIN,
    "val": Split.VAL,
    "valid": Split.VAL,
    "validation": Split.VAL,
    "test": Split.TEST,
}
"""Names that mean a split in a folder of pictures, whatever is next to them."""
SPLIT_WORDS: Final = {
    **SPLIT_NAMES,
    "training": Split.TRAIN,
    "dev": Split.VAL,
    "testing": Split.TEST,
}
"""Split names in file and folder names of tables."""
_CANDIDATES: Final = {
    **{word: (split,) for word, split in SPLIT_WORDS.items()},
    "development": (Split.VAL,),
    "eval": (Split.VAL, Split.TEST),
    "evaluation": (Split.VAL, Split.TEST),
    "heldout": (Split.TEST, Split.VAL),
    "holdout": (Split.TEST, Split.VAL),
    "publictest": (Split.VAL,),  # of competitions at Kaggle
    "privatetest": (Split.TEST,),
}
_WORD: Final = re.compile(r"[A-Z]*[a-z]+|[A-Z]+")  # seg_train, trainingSet, TEST2017
_ENDS: Final = re.compile(r"(?<=.)(set|data|images|imgs|split)$")  # as in `testset`
_OF_FILES: Final = frozenset(
    {"data", "dataset", "files", "set", "split", "v", "version"}
    | {"image", "images", "img", "imgs", "jpeg", "jpegimages", "jpg", "png"}
    | {"photo", "photos", "pic", "pics", "picture", "pictures"}
)
_NO_LABELS: Final = frozenset({"unknown", "unlabeled", "unlabelled", "unlabelled_images", "all"})
_OF_ANNOTATIONS: Final = frozenset(
    {"annotation", "annotations", "annots", "attributes", "bbox", "boxes", "gt", "keypoints"}
    | {"groundtruth", "labels", "mask", "masks", "segmentation", "segmentations", "trimap"}
    | {"trimaps", "truth", "xml", "xmls"}
)


def split_candidates(name: str) -> tuple[Split, ...]:
    """Return the splits that a folder's name may mean, the likeliest first; empty if none.

    A name means a split if exactly one of its words does: `Training`, `seg_train`, `testSet`,
    `hold-out`, `val2017`.
    """
    words = [_ENDS.sub("", word.lower()) for word in _WORD.findall(name)]
    if "".join(words) in _CANDIDATES:  # hold-out, held_out
        return _CANDIDATES["".join(words)]
    found = [_CANDIDATES[word] for word in words if word in _CANDIDATES]
    return found[0] if len(found) == 1 else ()


def named_as_splits(names: Iterable[str]) -> list[str]:
    """Return the names that mean a split and nothing else that would be a class.

    Other words may be those for pictures, or the same in each name: `train_images` and `test1`,
    `seg_train` and `seg_test`, but not `train_station` and `test_tube`. Either all names are
    such, or train and another split are among them.
    """
    by_rest: dict[tuple[str, ...], list[str]] = {}
    num_names = 0
    for name in names:
        num_names += 1
        if split_candidates(name):
            words = [_ENDS.sub("", word.lower()) for word in _WORD.findall(name)]
            is_joined = "".join(words) in _CANDIDATES  # hold-out
            rest = (word for word in words if word not in _CANDIDATES and word not in _OF_FILES)
            by_rest.setdefault(() if is_joined else tuple(rest), []).append(name)
    for alike in by_rest.values():
        splits = set(assign_splits(alike).values())
        if len(alike) == num_names or (Split.TRAIN in splits and len(splits) > 1):
            return alike
    return []


def is_of_annotations(name: str) -> bool:
    """Return True if a folder's name says that it contains annotations or masks of pictures."""
    words = [word.lower() for word in _WORD.findall(name)]
    return any(word in _OF_ANNOTATIONS for word in words)


def is_only_of_annotations(name: str) -> bool:
    """Return True if a folder's name says nothing else: `ground_truth`, but not `mask_set`."""
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(words) and all(word in _OF_ANNOTATIONS or word == "ground" for word in words)


def is_of_files(name: str) -> bool:
    """Return True if a folder's name says only what kind of files it contains: `images_2`."""
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(words) and all(word in _OF_FILES for word in words)


def is_no_class(name: str) -> bool:
    """Return True if a folder's name says nothing of a class: `images`, `unknown`, `train`."""
    return is_of_files(name) or name.lower() in _NO_LABELS or bool(split_candidates(name))


def assign_splits(names: Iterable[str]) -> dict[str, Split]:
    """Return the split of each folder name that means one.

    A name with two meanings, such as `eval`, takes the one that no other name has.
    """
    candidates = {name: split_candidates(name) for name in names}
    found = {name: splits[0] for name, splits in candidates.items() if len(splits) == 1}
    for name, splits in candidates.items():
        if len(splits) > 1:
            free = [split for split in splits if split not in found.values()]
            found[name] = (free or splits)[0]
    return found


def split_of_word(text: str) -> Split | None:
    """Return the split that a cell of a table means; None if it means none."""
    return next(iter(_CANDIDATES.get(text.strip().lower(), ())), None)


def split_of_cell(value: Any, where: str) -> Split:
    """Return the split in a cell of a table.

    Raises:
        DataError: if the value is not a split.
    """
    found = split_of_word(str(value))
    if found is None:
        raise DataError(
            f"the table has {value!r:.40} in its column of splits; it must be train, val or test",
            where=where,
            fix="Correct the table. To use another column: --split-column NAME. Without a column "
            "of splits, some pictures are drawn at random for val.",
        )
    return found


def parse_split_folders(text: str) -> dict[str, Split]:
    """Parse the value of --split-folders, such as `2019=train,2020=test`.

    Raises:
        UsageError: if it has another form, or a folder occurs twice.
    """
    found: dict[str, Split] = {}
    for part in text.split(","):
        name, equals, word = (piece.strip() for piece in part.rpartition("="))
        split = SPLIT_WORDS.get(word.lower())
        if not (name and equals) or split is None or name in found:
            why = (
                f"names the folder {name} a second time"
                if name in found
                else "is not of the form FOLDER=train, FOLDER=val or FOLDER=test"
            )
            raise UsageError(
                f"{part.strip()!r} {why}",
                where="prepare.split_folders",
                fix="Write each folder once, such as --split-folders 2019=train,2020=test",
            )
        found[name] = split
    return found


def write_split_folders(splits: dict[str, Split]) -> str:
    """Return the flag that makes folders the given splits, to be typed in a shell."""
    text = ",".join(f"{name}={split.value}" for name, split in splits.items())
    return f"--split-folders {shlex.quote(text)}"
