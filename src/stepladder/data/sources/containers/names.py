"""What names of files say: patterns of many, splits, columns."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from stepladder.config.choices import Split
from stepladder.data.sources.listing import SPLIT_NAMES, name_some
from stepladder.errors import DataError, UsageError

_MAGIC = re.compile(r"[*?\[]")
_MAGIC_OR_BRACE = re.compile(r"[*?\[{]")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MAX_EXPANDED = 1_000_000
_SPLITS = {**SPLIT_NAMES, "training": Split.TRAIN, "dev": Split.VAL, "testing": Split.TEST}
_SPLIT_WORD = re.compile(rf"({'|'.join(sorted(_SPLITS, key=len, reverse=True))})(?![a-z])")


def is_pattern(source: Path) -> bool:
    """Tell whether a path is a pattern of names, and no file has that very name."""
    return bool(_MAGIC_OR_BRACE.search(str(source))) and not source.exists()


def is_open(pattern: str) -> bool:
    """Tell whether a pattern without braces may stand for any number of names."""
    return bool(_MAGIC.search(pattern))


def fixed_part(pattern: str) -> str:
    """Give what stands before the first sign of a pattern; all of a plain name."""
    match = _MAGIC_OR_BRACE.search(pattern)
    return pattern[: match.start()] if match else pattern


def expand_braces(pattern: str) -> list[str]:
    """Write out `{000..123}` and `{a,b}`, as a shell does.

    Raises:
        UsageError: if it stands for more than a million names.
    """
    begin = pattern.find("{")
    end = pattern.find("}", begin)
    if begin < 0 or end < 0:
        return [pattern]
    inner = pattern[begin + 1 : end]
    span = _RANGE.fullmatch(inner)
    if span:
        first, last, width = int(span[1]), int(span[2]), len(span[1])
        if abs(last - first) >= _MAX_EXPANDED:
            raise UsageError(
                f"{{{inner}}} stands for more than a million names",
                where=pattern,
                fix="Give the folder, or a pattern with *.",
            )
        words = [str(number).zfill(width) for number in range(first, last + 1)]
    else:
        words = inner.split(",")
    rest = expand_braces(pattern[end + 1 :])
    return [pattern[:begin] + word + tail for word in words for tail in rest]


def splits_by_name(names: list[str], where: Path) -> list[Split | None]:
    """Read splits off names of files, as in `train-00000-of-00004.parquet` or `val/0.tar`.

    One file alone is no split: it was chosen.

    Raises:
        DataError: if some names tell a split and others do not, or none tells train.
    """
    splits = [_split_of(name) for name in names]
    named = {split for split in splits if split is not None}
    if len(names) == 1 or not named:
        return [None] * len(names)
    others = [name for name, split in zip(names, splits, strict=True) if split is None]
    if others:
        raise DataError(
            f"some files are named for a split and others are not: {name_some(others)}",
            where=str(where),
            fix="Name them all, as in train-0 and test-0, or give a pattern of those you want.",
        )
    if Split.TRAIN not in named:
        raise DataError(
            f"files for {', '.join(sorted(named))}, but none for train",
            where=str(where),
            fix="Add those of train, or name the files without a split: val is then drawn.",
        )
    return splits


def partition_values(name: str) -> dict[str, str]:
    """Read `column=value` off the folders of a file's name, as Hive and Spark write them."""
    pairs = [part.partition("=") for part in name.split("/")[:-1] if "=" in part]
    return {key: unquote(value) for key, _, value in pairs if key}


def _split_of(name: str) -> Split | None:
    *folders, file = name.lower().split("/")
    for folder in folders:
        if folder in _SPLITS:
            return _SPLITS[folder]
    match = _SPLIT_WORD.match(file)
    return _SPLITS[match[1]] if match else None
