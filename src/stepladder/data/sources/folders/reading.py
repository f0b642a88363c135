"""A source's folders while they are read: the options for them, their entries, and warnings."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from stepladder.config.choices import ClassesFrom
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.splits.split_names import SPLIT_NAMES, is_no_class, split_candidates
from stepladder.data.sources.walk import LOOSE, Folder, Skipped, Walk

MIN_SHARED: Final = 2
"""Class folders that make two folders look like splits: a class needs another one."""
_MAX_WRAPPERS: Final = 8


@dataclass(frozen=True)
class FolderOptions:
    """What the user says of the folders.

    Attributes:
        split_folders: value of --split-folders, or None.
        classes_from: where the class folders are.
        label_pattern: value of --label-pattern, or None.
        is_grouped: whether --group-by says what belongs together.
    """

    split_folders: str | None = None
    classes_from: ClassesFrom = ClassesFrom.AUTO
    label_pattern: str | None = None
    is_grouped: bool = False


AS_NAMED: Final = FolderOptions()
"""Read the folders by their names."""


def folder_options(config: PrepareConfig) -> FolderOptions:
    """Return the options of a source's folders."""
    return FolderOptions(
        config.split_folders, config.classes_from, config.label_pattern, bool(config.group_by)
    )


@dataclass(frozen=True)
class FolderReading:
    """One reading of a source's folders.

    Attributes:
        walk: the walk of the source.
        root: the source, for messages.
        options: what the user says of the folders.
        warnings: collects what the user should know of how the folders were read.
        nested: collects the class folders that have several folders of pictures in them, with the
            paths of these relative to the class folder; empty for the class folder itself.
    """

    walk: Walk
    root: Path
    options: FolderOptions
    warnings: list[str] = field(default_factory=list)
    nested: dict[Folder, list[str]] = field(default_factory=dict)

    def entries(self, folder: Folder) -> list[Folder | str]:
        """Return a folder's entries without recording what is skipped."""
        return list(replace(self.walk, skipped=Skipped()).entries(folder))

    def record_skipped(self, folder: Folder, inside: Folder) -> None:
        """Record what is skipped between a folder and one inside it that is read in its place."""
        for around in self._wrappers(folder):
            if around == inside:
                return
            self.subfolders(around)

    def flat(self, folder: Folder, around: Collection[str] = ()) -> Folder | None:
        """Return the folder of pictures in a folder that has no class folders; None if it has some.

        Args:
            folder: probably of a split.
            around: names that are no classes, besides those such as `images`.
        """
        for inside in self._wrappers(folder):
            if inside != folder and not (is_no_class(inside.name) or inside.name in around):
                return None
        return inside if self.has_pictures(inside) and not self.inner_folders(inside) else None

    def _wrappers(self, folder: Folder) -> Iterator[Folder]:
        """Yield a folder, then the only folder in it, and so on."""
        for _ in range(_MAX_WRAPPERS):
            yield folder
            folders = self.inner_folders(folder)
            if len(folders) != 1 or not self._are_strays(folder, folders[0]):
                return
            folder = folders[0]

    def _are_strays(self, folder: Folder, inner: Folder) -> bool:
        """Return True if a folder has fewer pictures than the only folder in it."""
        num_beside = sum(isinstance(entry, str) for entry in self.entries(folder))
        files = replace(self.walk, skipped=Skipped()).files(inner)
        return num_beside == 0 or sum(1 for _ in islice(files, num_beside + 1)) > num_beside

    def inner_folders(self, folder: Folder) -> list[Folder]:
        """Return a folder's subfolders without recording what is skipped."""
        return [entry for entry in self.entries(folder) if isinstance(entry, Folder)]

    def names_below(self, folder: Folder) -> list[str]:
        """Return the names of a folder's subfolders."""
        return [entry.name for entry in self.entries(folder) if isinstance(entry, Folder)]

    def names_in(self, folder: Folder) -> list[str]:
        """Return the names of the subfolders, in one Unicode form, to compare them.

        Those of a likely split are without a folder around them.
        """
        is_likely = split_candidates(folder.name)
        names = self.names_below(self.unwrap(folder) if is_likely else folder)
        return [unicodedata.normalize("NFC", name) for name in names]

    def has_pictures(self, folder: Folder) -> bool:
        """Return True if a folder has pictures that are not in a subfolder."""
        return any(isinstance(entry, str) for entry in self.entries(folder))

    def subfolders(self, folder: Folder) -> list[Folder]:
        """Return a folder's subfolders; pictures beside them are recorded as skipped."""
        folders: list[Folder] = []
        for entry in self.walk.entries(folder):
            if isinstance(entry, Folder):
                folders.append(entry)
            else:
                self.walk.skipped.add(entry, LOOSE)
        return folders

    def unwrap(self, folder: Folder) -> Folder:
        """Return the only folder in a folder, if it holds two or more; it may be deeper.

        Some pictures may be beside it. The folder of a split stays, except in one of the same split
        (`train/train/cat`).
        """
        splits = {*split_candidates(folder.name)}
        around = folder
        for inside in self._wrappers(folder):
            is_split = inside != folder and inside.name.lower() in SPLIT_NAMES
            if is_split and not splits & {*split_candidates(inside.name)}:
                return around
            around = inside
        return around if len(self.inner_folders(around)) >= MIN_SHARED else folder
