"""Find in the names of pictures which of them belong together: frames, bursts and versions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from stepladder.data.prepare.split import FOLDER

_MIN_SAME_FRAC: Final = 0.9  # of pairs whose pictures are in one group
_MIN_MATCHED_FRAC: Final = 0.95
_MAX_GROUPS_FRAC: Final = 0.8  # of pictures; else nearly each is a group of its own
_MIN_GROUPS: Final = 3  # of a class
_MIN_VERSIONS: Final = 4
_MIN_VERSIONS_FRAC: Final = 0.2
_MAX_PREFIXES: Final = 12
_MIN_LETTERS: Final = 3
_MAX_NAMES: Final = 100_000  # that are compared


def expression_for(
    paths: Sequence[str], labels: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> str | None:
    """Return the value of --group-by that keeps pairs of pictures together; None if none does.

    Versions of a picture come first; of several others, the one with the most groups is returned.

    Args:
        paths, labels: of all pictures from which val is drawn.
        pairs: paths of pictures that belong together.
    """
    if len(paths) > _MAX_NAMES:
        return None
    versions = versions_in(paths)
    if versions is not None and _num_groups(versions, paths, labels, pairs):
        return versions
    found = {
        pattern: num
        for pattern in _candidates(paths)
        if (num := _num_groups(pattern, paths, labels, pairs))
    }
    return max(found, key=found.__getitem__, default=None)


def versions_in(paths: Sequence[str]) -> str | None:
    """Return the value of --group-by that keeps versions together: `X` and `rotated_X`.

    Returns:
        None if few names are another one of the same folder with a word in front.
    """
    if len(paths) > _MAX_NAMES:
        return None
    places = {PurePosixPath(path).with_suffix("") for path in paths}
    prefixes: Counter[str] = Counter()
    for place in places:
        for match in re.finditer("[_-]", place.name):
            rest = place.name[match.end() :]
            is_name = len(rest) >= _MIN_LETTERS and not rest.isdecimal()
            if is_name and place.with_name(rest) in places:
                prefixes[place.name[: match.end()]] += 1
                break
    usual = sorted((one for one, num in prefixes.items() if num > 1), key=lambda one: -len(one))
    num = sum(prefixes[one] for one in usual)
    if num < max(_MIN_VERSIONS, _MIN_VERSIONS_FRAC * len(places)) or len(usual) > _MAX_PREFIXES:
        return None
    return f"(?:^|/)(?:{'|'.join(map(re.escape, usual))})*([^/]+)$".replace("\\-", "-")


def groups_of(pattern: str, paths: Sequence[str]) -> list[str | None]:
    """Return the group of each path, as --group-by does."""
    if pattern == FOLDER:
        return [str(PurePosixPath(path).parent) for path in paths]
    matches = (re.search(pattern, path) for path in paths)
    return [match[1] if match else None for match in matches]


def _candidates(paths: Sequence[str]) -> Iterator[str]:
    stems = [PurePosixPath(path).stem for path in paths]
    words = [set(re.findall("(?<=[-_ ])[A-Za-z]{3,}", stem)) for stem in stems]
    for word in sorted(set.intersection(*words)) if words else ():
        yield f"([^/]+)[-_ ]{word}"
    yield r"([^/]+?)[-_ ]*[A-Za-z]*[-_ ]*[0-9]+[.][A-Za-z0-9]+$"
    yield "([^/]+?)[-_ ][^/]*$"
    yield "([0-9]+)[^/]*$"
    yield FOLDER


def _num_groups(
    pattern: str, paths: Sequence[str], labels: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> int:
    """Return the number of groups if they keep the pairs together, else 0."""
    group = dict(zip(paths, groups_of(pattern, paths), strict=True))
    num_matched = sum(one is not None for one in group.values())
    if num_matched < _MIN_MATCHED_FRAC * len(group):
        return 0
    num_same = sum(group.get(a) is not None and group.get(a) == group.get(b) for a, b in pairs)
    if num_same < _MIN_SAME_FRAC * len(pairs):
        return 0
    of_class: dict[str, set[str | None]] = {}
    for path, label in zip(paths, labels, strict=True):
        of_class.setdefault(label, set()).add(group[path])
    num = len(set(group.values()))
    are_several = all(len(some) >= _MIN_GROUPS for some in of_class.values())
    return num if are_several and num <= _MAX_GROUPS_FRAC * len(group) else 0
