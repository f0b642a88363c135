"""Walk folders of pictures: sorted, never out of the root, never into a loop, nothing opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_JUNK = frozenset({"thumbs.db", "desktop.ini", "__macosx", "@eadir"})
_TAKEN = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png"})
_PICTURES_TO_A_PERSON = frozenset(  # taken too, and put into quarantine.csv with a reason
    {".gif", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl"}
)
_NUM_EXAMPLES = 5


@dataclass
class Skipped:
    """What a walk left out: by reason, how many and the first few paths."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, path: str, reason: str) -> None:
        """Count one path."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _NUM_EXAMPLES:
            examples.append(printable(path))

    def merge(self, other: Skipped) -> None:
        """Add what another walk left out."""
        for reason, count in other.counts.items():
            self.counts[reason] = self.counts.get(reason, 0) + count
            examples = self.examples.setdefault(reason, [])
            examples += other.examples[reason][: _NUM_EXAMPLES - len(examples)]

    def describe(self) -> str:
        """Say in one line what was left out; empty if nothing was."""
        return "; ".join(
            f"{count} {reason} ({self.examples[reason][0]!r}{', …' if count > 1 else ''})"
            for reason, count in sorted(self.counts.items())
        )


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder found by a walk.

    Attributes:
        path: relative to the root, "/" between parts; empty for the root itself.
        chain: device and inode of the folders walked to come here, this one included.
    """

    path: str
    chain: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Walk:
    """How to walk below a root.

    Attributes:
        root: the folder, resolved.
        follow_symlinks: whether links may lead out of it.
        skipped: collects what is left out.
    """

    root: str
    follow_symlinks: bool
    skipped: Skipped

    def start(self) -> Folder:
        """Return the root."""
        return Folder("", (_identity(self.root),))

    def files(self, folder: Folder) -> Iterator[str]:
        """Yield the relative paths of the pictures at any depth below a folder, in sorted order."""
        for entry in self.entries(folder):
            if isinstance(entry, Folder):
                yield from self.files(entry)
            else:
                yield entry

    def entries(self, folder: Folder) -> Iterator[Folder | str]:
        """Yield a folder's subfolders and pictures, sorted by name as bytes."""
        try:
            with os.scandir(self._absolute(folder.path)) as scan:
                found = sorted(scan, key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            self.skipped.add(folder.path, f"folder(s) that cannot be read: {error.strerror}")
            return
        for entry in found:
            if is_hidden(entry.name):
                continue
            path = f"{folder.path}/{entry.name}" if folder.path else entry.name
            reason = self._why_not(entry)
            if reason:
                self.skipped.add(path, reason)
            elif entry.is_dir():
                identity = _identity(entry.path)
                if identity in folder.chain:
                    self.skipped.add(path, "link(s) that leads back to a folder around it")
                else:
                    yield Folder(path, (*folder.chain, identity))
            else:
                yield path

    def _why_not(self, entry: os.DirEntry[str]) -> str | None:
        if entry.is_symlink():
            if not os.path.exists(entry.path):  # noqa: PTH110 (Path raises on a loop)
                return "link(s) that leads nowhere"
            if not self.follow_symlinks and not self._is_inside(os.path.realpath(entry.path)):
                return "link(s) that leads out of the source (--follow-symlinks)"
        if entry.is_dir():
            return None
        if not entry.is_file():
            return "neither file nor folder"
        return why_no_picture(entry.name)

    def _is_inside(self, real_path: str) -> bool:
        return os.path.commonpath([self.root, real_path]) == self.root

    def _absolute(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root


def is_hidden(name: str) -> bool:
    """Return True if a name is one that file managers and archives leave, and no person chose."""
    return name.startswith(".") or name.lower() in _JUNK


def why_no_picture(name: str) -> str | None:
    """Say why a file is none by its name; None: it may be one."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix and suffix not in _TAKEN | _PICTURES_TO_A_PERSON:
        return f"file(s) that are no pictures by name ({printable(suffix)})"
    return None


def printable(path: str) -> str:
    r"""Write a path as valid Unicode: bytes that are no UTF-8 become \xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 (a str: millions of Path objects cost)
    return status.st_dev, status.st_ino
