"""A source's folders while they are read: the options for them, their entries, and warnings."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from stepladder.config.choices import ClassesFrom
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.split_names import SPLIT_NAMES, split_candidates
from stepladder.data.sources.walk import Folder, Skipped, Walk

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

    def record_skipped(self, folder: Folder) -> None:
        """Record what is skipped beside the folders in a folder."""
        for _ in self.walk.entries(folder):
            pass

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
                self.walk.skipped.add(entry, "picture(s) outside any class folder")
        return folders

    def unwrap(self, folder: Folder) -> Folder:
        """Return the folder inside folders that contain nothing else, if it holds two or more."""
        inside = folder
        for _ in range(_MAX_WRAPPERS):
            entries = self.entries(inside)
            folders = [entry for entry in entries if isinstance(entry, Folder)]
            if len(folders) >= MIN_SHARED:
                return inside
            if len(entries) != 1 or not folders or folders[0].name.lower() in SPLIT_NAMES:
                is_lone_split = bool(folders) and len(entries) == 1
                return inside if is_lone_split else folder
            inside = folders[0]
        return folder
