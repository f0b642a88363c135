"""Output files named by the user: never replace an input, a file of a run or a foreign file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepladder.data.remote.places import address_refused, is_address
from stepladder.errors import ResourceError, UsageError
from stepladder.records import write_json
from stepladder.records.run_files import JOB_MARKS, RUN_FILES, has_any

_TITLE: Final = re.compile(rb"<title>[^<]* \xc2\xb7 stepladder [a-z]+</title>")
_HEAD_BYTES: Final = 16_384
_MAX_JSON_BYTES: Final = 200_000_000


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of output file.

    Attributes:
        words: what it is called in messages, such as `page`.
        is_ours: returns True for an earlier output file of this kind, which may be replaced.
        fix: what to do if it cannot be written; `{option}` is the flag that sets the file.
    """

    words: str
    is_ours: Callable[[Path], bool]
    fix: str = "Choose another file: {option} FILE."


def refuse_to_replace(
    target: Path, kind: Kind, *, option: str, inputs: Iterable[Path | str] = ()
) -> None:
    """Raise an error if writing to a file would lose data; writes nothing.

    Args:
        target: the file, as given.
        kind: the kind of output to write.
        option: the flag that sets the file.
        inputs: the inputs of the command.

    Raises:
        UsageError: if it is an input, a file of a run, an existing foreign file, or an address in
            an object store.
    """
    if is_address(target):
        raise address_refused(target, fix=kind.fix.format(option=option))
    what = _why_not(target, kind, inputs)
    if what is not None:
        raise UsageError(
            what,
            where=str(target),
            why="Nothing was written.",
            fix=kind.fix.format(option=option),
        )


def write_result(target: Path, value: object, *, option: str) -> None:
    """Write a result as JSON to a file named by the user; create missing folders.

    Raises:
        ResourceError: if it cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_json(target, value)
    except OSError as error:
        raise ResourceError(
            f"the file cannot be written ({error.strerror or error})",
            where=str(target),
            fix=f"Choose another file: {option} FILE.json.",
        ) from error


def _why_not(target: Path, kind: Kind, inputs: Iterable[Path | str]) -> str | None:
    if any(_is_same(target, Path(word)) for word in inputs):
        return f"the {kind.words} would overwrite a file that this command reads"
    if target.name in RUN_FILES and has_any(target.parent, JOB_MARKS):
        return f"this is a file of the run {target.parent}"
    try:
        if not target.exists():
            return None
        if not target.is_file():
            return f"the {kind.words} must be written to a file, but this is a folder"
        is_free = target.stat().st_size == 0 or kind.is_ours(target)
    except OSError:
        return None  # writing the file will raise the error
    return (
        None
        if is_free
        else f"the file already exists, and would be lost: it is not a {kind.words} written by "
        "stepladder"
    )


def _is_same(target: Path, other: Path) -> bool:
    try:
        return target.samefile(other)
    except OSError:
        return os.path.abspath(target) == os.path.abspath(other)  # noqa: PTH100  (never raises)


def _is_page(file: Path) -> bool:
    with file.open("rb") as opened:
        return _TITLE.search(opened.read(_HEAD_BYTES)) is not None


def _has_keys(*keys: str) -> Callable[[Path], bool]:
    """Return a function that returns True for a JSON file with an object with all these keys."""

    def has_keys(file: Path) -> bool:
        if file.stat().st_size > _MAX_JSON_BYTES:
            return False
        try:
            value = json.loads(file.read_bytes())
        except ValueError:
            return False
        return isinstance(value, dict) and value.keys() >= set(keys)

    return has_keys


_ANOTHER_FOLDER: Final = "Choose another folder: {option} FOLDER."
PAGE: Final = Kind(words="page", fix="Choose another file: {option} mine.html.", is_ours=_is_page)
AUDIT: Final = Kind(
    words="audit",
    fix="Choose another file: {option} mine.json.",
    is_ours=_has_keys("runs", "differences", "unreadable"),
)
WATCH: Final = Kind(
    words="report", fix=_ANOTHER_FOLDER, is_ours=_has_keys("script", "findings", "watched_s")
)
WATCH_PAGE: Final = Kind(words="page", fix=_ANOTHER_FOLDER, is_ours=_is_page)
FACTS: Final = Kind(
    words="description of a model", is_ours=_has_keys("input", "output", "stepladder")
)
MODEL: Final = Kind(
    words="model",
    is_ours=lambda file: (facts := file.with_suffix(".json")).is_file() and FACTS.is_ours(facts),
)
