"""Walk folders of pictures in sorted order, without leaving the root or following loops."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from stepladder.data.decoding.formats import (
    ANNEX_POINTER,
    LFS_POINTER,
    PICTURE_SUFFIXES,
    SUFFIXES,
    name_format,
)
from stepladder.data.sources.not_read.unread_formats import (
    PICKLE,
    conversion,
    is_idx,
    unread_format,
)
from stepladder.data.sources.splits.split_names import is_of_annotations, is_of_files

_JUNK: Final = re.compile(
    r"(?:[._ ]*ds_store|__macosx|icon[\r\uf00d]|network trash folder|temporary items"  # macOS
    r"|(?:eh)?thumbs(?:_vista)?\.db|desktop\.ini|folder\.htt|zbthumbnail\.info|picasa\.ini"
    r"|\$recycle\.bin|recycler|system volume information|found\.[0-9]{3}"  # Windows
    r"|[#@](?:recycle|snapshot|eadir|tmp|recently-snapshot)|lost\+found"  # servers of files, Linux
    r"|(?:readme|licen[cs]e|copying|citation|attribution)(?:[._-][\w-]+)*\.(?:txt|md|rst|html?|pdf|cff)"
    r"|__pycache__|~\$.*|.*:(?:encryptable|zone\.identifier))(?: \([0-9]+\))?",
    re.IGNORECASE | re.DOTALL,
)
"""Names that file managers, operating systems and editors give to what is no data."""
# formats that are not read are listed too, then written to quarantine.csv with a reason
_PICTURES_TO_A_PERSON = PICTURE_SUFFIXES | {".jp2", ".jxl"}
_NUM_EXAMPLES = 5
_MAX_DOCUMENTS: Final = 10
_DOCUMENTS: Final = (".txt", ".md", ".pdf", ".html", ".py", ".ipynb", ".yaml", ".yml", ".names")
"""Endings of files that may describe a data set; tables are not among them, as of labels."""
OF_MASKS = "picture(s) in folders of masks or annotations beside the pictures"
OF_MASK_FILES = "mask(s) of a picture in the same folder"
"""Why a picture is skipped that belongs to another one."""
OUTSIDE: Final = "link(s) that point outside the source (--follow-symlinks)"
BROKEN: Final = "broken link(s)"
LOOSE: Final = "picture(s) outside any class folder"
OF_ANNEX: Final = "link(s) of git-annex whose content is not on this machine"
OF_DVC: Final = "pointer(s) of DVC whose files are not on this machine"
_NAMED: Final = frozenset({BROKEN, OF_ANNEX, OF_DVC})
"""Reasons with which several of the files are named, as there is one to repair for each."""
_ANNEX_OBJECTS: Final = ".git/annex/objects/"
_DVC: Final = ".dvc"
_MASK_OF: Final = re.compile(
    r"(.+?)[ _.-]+(?:mask|seg|segmentation|gt|groundtruth|trimap)(?:[ _.-]*\d+)?\.\w+",
    re.IGNORECASE,
)
"""A name such as `benign (1)_mask.png` or `benign (1)_mask_2.png`; the group is the picture's."""
_HEAD_BYTES = 64
_CONTENTS: Final = frozenset(
    {*SUFFIXES, "JPEG 2000", "JPEG XL", "Photoshop", LFS_POINTER, ANNEX_POINTER}
)
"""What a file without an extension is listed with, by its first bytes."""


@dataclass
class Skipped:
    """Files that a walk skipped: the count and the first few paths for each reason."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, path: str, reason: str) -> None:
        """Add one skipped path."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _NUM_EXAMPLES:
            examples.append(printable(path))

    def merge(self, other: Skipped) -> None:
        """Add the skipped files of another walk."""
        for reason, count in other.counts.items():
            self.counts[reason] = self.counts.get(reason, 0) + count
            examples = self.examples.setdefault(reason, [])
            examples += other.examples[reason][: _NUM_EXAMPLES - len(examples)]

    def conversion(self, folder: str, *, is_beside_pictures: bool = False) -> str | None:
        """Return the command that converts the skipped files of a known format, if there are any.

        Args:
            folder: which they are in.
            is_beside_pictures: whether it has pictures that can be read, too.
        """
        paths = (path for some in self.examples.values() for path in some)
        return conversion(paths, folder, is_beside_pictures=is_beside_pictures)

    def place_of_arrays(self) -> str | None:
        """Return the first skipped .npz, or the folder of the first NumPy array or idx file."""
        paths = [path for some in self.examples.values() for path in some]
        found = next((path for path in paths if path.endswith(".npy") or is_idx(path)), None)
        if found is not None:
            return found.rpartition("/")[0]
        return next((path for path in paths if path.endswith(".npz")), None)

    def are_documents(self) -> bool:
        """Return True if all are a few documents, which are usual beside pictures."""
        usual = {why_no_picture(f"x{ending}") for ending in _DOCUMENTS}
        return self.counts.keys() <= usual and sum(self.counts.values()) <= _MAX_DOCUMENTS

    def describe(self) -> str:
        """Return a one-line summary of the skipped files; empty if nothing was skipped."""
        return "; ".join(
            f"{count} {reason} ({self._examples(reason)})"
            for reason, count in sorted(self.counts.items())
        )

    def _examples(self, reason: str) -> str:
        shown = self.examples[reason][: _NUM_EXAMPLES if reason in _NAMED else 1]
        more = ", …" if self.counts[reason] > len(shown) else ""
        return ", ".join(map(repr, shown)) + more


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder found by a walk.

    Attributes:
        path: path relative to the root, with "/" as separator; empty for the root itself.
        chain: device and inode of each folder on the way here, including this one.
        others: folders that are read as parts of this one.
    """

    path: str
    chain: tuple[tuple[int, int], ...]
    others: tuple[Folder, ...] = ()

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Walk:
    """A walk of the folders below a root.

    Attributes:
        root: the folder, resolved.
        follow_symlinks: whether links may point outside the root.
        skipped: collects skipped files.
        top: folder of the classes or splits. Below its subfolders, folders of masks are skipped;
            None: nowhere.
    """

    root: str
    follow_symlinks: bool
    skipped: Skipped
    top: str | None = None

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
        """Yield a folder's subfolders and pictures; those of its parts are merged by name."""
        if self.top is None or folder.path == self.top:
            yield from self._all_entries(folder)
            return
        found = list(self._all_entries(folder))
        masks = self._masks(found)
        files = _mask_files(entry for entry in found if isinstance(entry, str))
        for entry in found:
            if isinstance(entry, Folder) and entry in masks:
                for path in self.files(entry):
                    self.skipped.add(path, OF_MASKS)
            elif entry in files:
                self.skipped.add(str(entry), OF_MASK_FILES)
            else:
                yield entry

    def _masks(self, entries: Sequence[Folder | str]) -> Collection[Folder]:
        """Return the folders of masks or annotations beside `images`, or beside pictures.

        If there is another folder with pictures, all of them may be classes: live, photo, mask.
        """
        folders = [entry for entry in entries if isinstance(entry, Folder)]
        masks = [one for one in folders if is_of_annotations(one.name)]
        if not masks:
            return ()
        others = [one for one in folders if one not in masks]
        has_pictures = len(folders) < len(entries) or any(is_of_files(one.name) for one in others)
        silent = replace(self, skipped=Skipped())
        is_unknown = any(
            not is_of_files(one.name) and next(silent.files(one), None) is not None
            for one in others
        )
        return masks if has_pictures and not is_unknown else ()

    def _all_entries(self, folder: Folder) -> Iterator[Folder | str]:
        if not folder.others:
            yield from self.scan(folder)
            return
        folders: dict[str, list[Folder]] = {}
        for part in (replace(folder, others=()), *folder.others):
            for entry in self.entries(part):
                if isinstance(entry, Folder):
                    folders.setdefault(entry.name, []).append(entry)
                else:
                    yield entry
        for name in sorted(folders, key=os.fsencode):
            yield merge(folders[name])

    def scan(self, folder: Folder) -> Iterator[Folder | str]:
        """Yield the subfolders and pictures of one folder, sorted by name as bytes."""
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
                    self.skipped.add(path, "link(s) to a parent folder")
                else:
                    yield Folder(path, (*folder.chain, identity))
            elif "." not in entry.name[1:] and (reason := _content(entry.path)):
                self.skipped.add(path, reason)
            else:
                yield path

    def _why_not(self, entry: os.DirEntry[str]) -> str | None:
        if entry.is_symlink():
            if not os.path.exists(entry.path):  # noqa: PTH110 (Path raises on a loop)
                is_of_annex = _ANNEX_OBJECTS in os.readlink(entry.path)  # noqa: PTH115
                return OF_ANNEX if is_of_annex else BROKEN
            if not self.follow_symlinks and not self._is_inside(os.path.realpath(entry.path)):
                return OUTSIDE
        if entry.is_dir():
            return None
        if not entry.is_file():
            return "neither a file nor a folder"
        if entry.name.lower().endswith(_DVC):
            is_here = os.path.exists(entry.path[: -len(_DVC)])  # noqa: PTH110
            return why_no_picture(entry.name) if is_here else OF_DVC
        return why_no_picture(entry.name)

    def _is_inside(self, real_path: str) -> bool:
        return os.path.commonpath([self.root, real_path]) == self.root

    def _absolute(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root


def _mask_files(paths: Iterable[str]) -> Collection[str]:
    """Return the files of a folder that are masks of another of its pictures, by their names."""
    found = {}
    stems = set()
    for path in paths:
        mask = _MASK_OF.fullmatch(path)
        if mask is not None:
            found[path] = mask[1]
        else:
            stems.add(path.rpartition(".")[0])
    return {path for path, stem in found.items() if stem in stems}


def merge(folders: Sequence[Folder]) -> Folder:
    """Return one folder with the entries of several."""
    first, *others = folders
    return replace(first, others=(*first.others, *others))


def is_hidden(name: str) -> bool:
    """Return True if a file is hidden or was left by a file manager or an archive tool."""
    return name.startswith(".") or _JUNK.fullmatch(name) is not None


def why_no_picture(name: str) -> str | None:
    """Return why a file name is not a picture's; None: it may be a picture."""
    at = name.rfind(".")  # pathlib would intern the name, and keep memory for each file
    suffix = name[at:].lower() if 0 < at < len(name) - 1 else ""
    if (kind := unread_format(name)) is not None:
        return f"{kind} file(s), which cannot be read" + (f" ({printable(suffix)})" * bool(suffix))
    if suffix and suffix not in _PICTURES_TO_A_PERSON:
        return f"file(s) without a picture extension ({printable(suffix)})"
    return None


def is_pickle(head: bytes) -> bool:
    """Return True if the first bytes of a file are those of a pickle, of protocol 2 or later."""
    return head[:1] == b"\x80" and head[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}


def _content(path: str) -> str | None:
    """Return why a file without an extension is no picture, by its first bytes."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (faster than Path, for each such file)
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None  # reading it as a picture reports the error
    if is_pickle(head):
        return f"{PICKLE} file(s), which cannot be read"
    if not head:
        return "empty file(s) without an extension"
    if name_format(head) in _CONTENTS:
        return None
    return "file(s) of text" if _is_text(head) else "file(s) without an extension, no pictures"


def _is_text(head: bytes) -> bool:
    try:
        # the last letter of a long head may be cut
        letters = (head if len(head) < _HEAD_BYTES else head[:-3]).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(letter.isprintable() or letter in "\t\r\n" for letter in letters)


def printable(path: str) -> str:
    r"""Return a path as valid Unicode; bytes that are not UTF-8 become \xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def quoted(path: Path) -> str:
    """Return a path as it is typed in a shell."""
    return shlex.quote(printable(str(path)))


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 (a str: millions of Path objects cost)
    return status.st_dev, status.st_ino
