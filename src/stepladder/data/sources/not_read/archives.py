"""Find archives in place of class folders, and print the command that unpacks them."""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
import zipfile
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from stepladder.data.sources.labels.labels_elsewhere import typed
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.walk import is_hidden, printable, why_no_picture
from stepladder.errors import DataError

_ENDING: Final = re.compile(
    r"(?<=.)\.(?:zip|7z|rar|tar(?:\.(?:gz|bz2|xz|zst))?|tgz|tbz2?|txz|tzst)$", re.IGNORECASE
)
_COMMANDS: Final = {
    ".zip": "python -m zipfile -e {file} {out}",
    ".7z": "7z x {file} -o{out}",
    ".rar": "unrar x {file} {out}/",
}
_TAR: Final = "mkdir -p {out} && tar -xf {file} -C {out}"
_MAX_DEPTH: Final = 2  # of folders below the source
_MAX_ENTRIES: Final = 10_000
_MAX_CHAINED: Final = 10  # archives with a command each; more are unpacked in a loop
_MAX_MEMBERS: Final = 50  # of an archive that are read


def archives_refused(root: Path) -> DataError | None:
    """Return the error for a folder whose pictures are all in archives; None if it has none.

    Args:
        root: the source's folder.
    """
    found = packed_folders(root, ())
    if not found:
        return None
    names = name_some([str(path.relative_to(root)) for path in found])
    return DataError(
        f"this folder has no picture files, but {len(found)} "
        f"{'archive' if len(found) == 1 else 'archives'}, which must be unpacked first: {names}",
        where=str(root),
        why=None if len(found) == 1 else "If there is one for each class, its name is the class.",
        fix=f"Unpack into a folder each: {unpack(found)} && stepladder prepare {typed(root)}",
    )


def packed_beside(root: Path, paths: Collection[str]) -> str | None:
    """Return the warning that pictures beside those that were read are in archives; None if not.

    Args:
        root: the source's folder.
        paths: the pictures that were read, relative to it.
    """
    found = packed_folders(root, {name for path in paths for name in path.split("/")[:-1]})
    if not found:
        return None
    names = name_some([str(path.relative_to(root)) for path in found])
    are = "archive is" if len(found) == 1 else "archives are"
    return (
        f"{root}: pictures in {len(found)} {are} not read, which may be classes: {names}. To "
        f"unpack them and read all: {unpack(found)} && stepladder prepare {typed(root)} --overwrite"
    )


def packed_folders(root: Path, known: Collection[str]) -> list[Path]:
    """Return the archives in a folder that may have pictures and are not unpacked beside it.

    Args:
        root: the source's folder.
        known: names of folders that were read; an archive that has one of them is their download.
    """
    return [
        path
        for path in islice(_archives(root, _MAX_DEPTH), _MAX_ENTRIES)
        if not _folder(path).exists() and _may_have_pictures(path, known)
    ]


def is_archive(name: str) -> bool:
    """Return True if a file is an archive by its name."""
    return _ENDING.search(name) is not None


def unpack(archives: Sequence[Path]) -> str:
    """Return the command that unpacks each archive into a folder of its name."""
    endings = {_ending(path) for path in archives}
    folders = {path.parent for path in archives}
    if len(archives) <= _MAX_CHAINED or len(endings) > 1 or len(folders) > 1:
        return " && ".join(map(_command, archives))
    ending = _ending(archives[0])
    each = _template(ending).format(file='"$f"', out=f'"${{f%{ending}}}"')
    files = f"{typed(archives[0].parent)}/*{ending}"
    return f'for f in {files}; do {each} || {{ f=; break; }}; done; test -n "$f"'


def _command(path: Path) -> str:
    return _template(_ending(path)).format(file=typed(path), out=typed(_folder(path)))


def _ending(path: Path) -> str:
    return path.name[len(_folder(path).name) :]


def _template(ending: str) -> str:
    return _COMMANDS.get(ending.lower(), _TAR)


def _folder(path: Path) -> Path:
    """Return the folder that an archive is unpacked into."""
    return path.with_name(_ENDING.sub("", path.name))


def _archives(folder: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as scan:
            entries = sorted(scan, key=lambda entry: os.fsencode(entry.name))
    except OSError:
        return
    for entry in entries:
        if is_hidden(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False) and depth:
            yield from _archives(Path(entry.path), depth - 1)
        elif _ENDING.search(entry.name) and entry.is_file():
            yield Path(entry.path)


def _may_have_pictures(path: Path, known: Collection[str]) -> bool:
    """Return False if the first entries of an archive are no pictures, or in a known folder."""
    names = _members(path)
    if names is None:
        return True  # of a format that is not opened here, or damaged
    pictures = [name for name in names if "." in name and why_no_picture(name) is None]
    return bool(pictures) and not any(set(name.split("/")[:-1]) & set(known) for name in pictures)


def _members(path: Path) -> list[str] | None:
    """Return the names of an archive's first files; None if it cannot be opened."""
    found: list[str] | None = None
    with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile, tarfile.TarError):
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive:
                found = [printable(name) for name in archive.namelist() if not name.endswith("/")]
        elif path.suffix.lower() not in {".7z", ".rar", ".zst", ".tzst"}:
            with tarfile.open(path) as tar:
                found = [one.name for one in islice(tar, _MAX_MEMBERS) if one.isfile()]
    return found
