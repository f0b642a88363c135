"""Warn of class folders that are named as copies, as file managers name them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from stepladder.data.sources.folders.patterns import escaped, start_of
from stepladder.data.sources.listing import Picture, name_some

_WORD: Final = (
    "(?:copy|kopie|copi[ae]|cópia|kopi|kopia|kopya|kopio|másolat|копия|копія|副本|コピー)"
)
_AFTER: Final = re.compile(
    rf"(?P<base>.*[^\s_-])(?P<end> ?\([0-9]+\)|[ _-]+[0-9]+|[ _-]+{_WORD}(?:[ _]*\(?[0-9]+\)?)?)",
    re.IGNORECASE,
)
"""A name such as `cats (1)`, `cats 2`, `cats - Copy`, `cats copy 2` or `cats - Kopie (2)`."""
_BEFORE: Final = re.compile(
    r"(?P<start>copy of|kopie von|copi[ae] d[ei]|cópia de) (?P<base>.+)", re.IGNORECASE
)


def copied_names_warning(root: Path, pictures: Sequence[Picture]) -> str | None:
    """Return the warning that classes are named as copies of another one; None if not."""
    labels = {picture.label for picture in pictures}
    copies = {label: base for label in sorted(labels) if (base := _original(label, labels))}
    if not copies:
        return None
    some = name_some([f"{label} of {base}" for label, base in copies.items()])
    has = "this class may be a copy" if len(copies) == 1 else "these classes may be copies"
    told = f"{root}: by name, {has} of another: {some}. Each is read as a class of its own"
    pattern = _merging(pictures, labels, copies)
    if pattern is None:
        return f"{told}; if not, move its pictures to the folder of the other one"
    return (
        f"{told}. If both are one class, add --label-pattern {shlex.quote(pattern)} --overwrite "
        "to the command"
    )


def _original(label: str, labels: Collection[str]) -> str | None:
    """Return the class of which another one is a copy by its name; None if it is not one."""
    match = _AFTER.fullmatch(label) or _BEFORE.fullmatch(label)
    if match is None:
        return None
    base = match["base"]
    return base if base in labels else _original(base, labels)


def _merging(
    pictures: Sequence[Picture], labels: Collection[str], copies: dict[str, str]
) -> str | None:
    """Return the label pattern with which a copy and its original are one class."""
    folders = set()
    for picture in pictures:
        parts = picture.path.split("/")
        if picture.label not in parts[:-1]:
            return None  # such as a class in folders of letters
        folders.add("/".join(parts[: parts.index(picture.label) + 1]))
    start = start_of(folders)
    begins = sorted({one[: -len(base)] for one, base in copies.items() if one.endswith(base)})
    ends = sorted({one[len(base) :] for one, base in copies.items() if one.startswith(base)})
    before = f"(?:{'|'.join(map(escaped, begins))})?" if begins else ""
    after = f"(?:{'|'.join(map(escaped, ends))})?" if ends else ""
    simple = f"{start}{before}([^/]+?){after}/"
    wanted = {label: copies.get(label, label) for label in labels}
    if {label: _matched(f"^{before}([^/]+?){after}/", label) for label in labels} == wanted:
        return simple
    exact = (
        f"{escaped(base)}(?={escaped(label[len(base) :])}/)"
        for label, base in copies.items()
        if label.startswith(base)
    )
    return f"{start}{before}({'|'.join((*exact, '[^/]+(?=/)'))})"


def _matched(pattern: str, label: str) -> str | None:
    match = re.search(pattern, f"{label}/x")
    return match[1] if match else None
