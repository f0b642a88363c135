"""Read a folder of pictures: which of its folders are classes, and which are splits.

The readings, in this order:

    train/cat, val/cat             splits, by name; other names of splits if they share classes
    cat/train, cat/test            splits one level down, if every class has only such folders
    dataset/cat, dataset/dog       a single folder around the others is skipped
    images/cat, annotations/1.xml  likewise, beside folders of annotations, masks or no pictures
    a/airfield, b/bakery           folders of letters are no classes, but those in them
    cat, dog                       classes, whatever is below them

Parts of one download are merged first. Folders that share subfolders in another way are ambiguous:
an error asks for `--split-folders` or `--classes-from top`. So do folders that all have the name of
a split: their classes are elsewhere, in a table or in the names of the pictures.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from stepladder.config.choices import ClassesFrom, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.label_pattern import LabelPattern
from stepladder.data.sources.labels_elsewhere import typed
from stepladder.data.sources.listing import Listing, Picture, name_some
from stepladder.data.sources.no_classes import (
    no_class_folders,
    refuse_folders_of_a_table,
    refuse_names_of_splits,
    refuse_one_folder,
    refuse_splits_without_classes,
)
from stepladder.data.sources.parts import are_numbered_parts, download_of
from stepladder.data.sources.split_labels import are_no_classes, label_by_table
from stepladder.data.sources.split_names import (
    SPLIT_NAMES,
    assign_splits,
    is_of_annotations,
    is_of_files,
    named_as_splits,
    parse_split_folders,
    split_candidates,
    write_split_folders,
)
from stepladder.data.sources.walk import Folder, Skipped, Walk, merge, printable
from stepladder.errors import DataError, UsageError

_MAX_WRAPPERS = 8
_MAX_COMPARED = 2000  # pictures of a folder whose names are compared with those in another
_MAX_PROBES = 50
_MIN_SAME = 2
_MAX_ASKED = 8  # folders in a flag that a message proposes
_COUNTED: Final = re.compile(r"[^\W\d_]{0,8}[ _-]*[0-9]*[ _]*(\([0-9]+\))?")
_OF_LETTERS: Final = re.compile(r"([^\W\d_])(?: ?- ?([^\W\d_]))?|0-9|#")
_IN_LETTERS: Final = "(?:^|/)[^/](?:-[^/])?/(.+)/[^/]+$"
_MIN_SHARED = 2  # class folders that make two folders look like splits: a class needs another one


@dataclass(frozen=True)
class FolderOptions:
    """What the user says of the folders.

    Attributes:
        split_folders: value of --split-folders, or None.
        classes_from: where the class folders are.
        label_pattern: value of --label-pattern, or None.
    """

    split_folders: str | None = None
    classes_from: ClassesFrom = ClassesFrom.AUTO
    label_pattern: str | None = None


AS_NAMED: Final = FolderOptions()
"""Read the folders by their names."""


def folder_options(config: PrepareConfig) -> FolderOptions:
    """Return the options of a source's folders."""
    return FolderOptions(config.split_folders, config.classes_from, config.label_pattern)


def list_walk(walk: Walk, root: Path, options: FolderOptions = AS_NAMED) -> Listing:
    """List class folders, or class folders inside or around folders of splits.

    Raises:
        UsageError: if the folders can be read in two ways, or an option names no folder.
        DataError: if there are no pictures, a class is empty, or there is no train folder.
    """
    reading = _Reading(walk, root, options)
    pictures = reading.pictures()
    skipped = walk.skipped
    if not pictures:
        raise no_class_folders(walk, root)
    labels = {picture.label for picture in pictures}
    is_told = options.classes_from is ClassesFrom.TOP or options.label_pattern is not None
    if len(labels) == 1 and not is_told:
        refuse_one_folder(root, labels.pop(), [picture.path for picture in pictures])
    if skipped.counts:
        how = skipped.conversion(str(root), is_beside_pictures=True)
        told = f"{root}: skipped {skipped.describe()}"
        reading.warnings.append(f"{told}. {how}" if how else told)
    return Listing(root, pictures, skipped, tuple(reading.warnings))


@dataclass
class _Reading:
    """One reading of a source's folders.

    Attributes:
        warnings: what the user should know of how the folders were read.
    """

    walk: Walk
    root: Path
    options: FolderOptions
    warnings: list[str] = field(default_factory=list)

    def pictures(self) -> list[Picture]:
        top = self._unwrap(self.walk.start())
        if top.path:
            self.warnings.append(
                f"{self.root}: read the pictures in {printable(top.path)}, the only folder in it"
            )
        top = self._beside_annotations(top)
        top = self._join_parts(top)
        if self.options.label_pattern is not None:
            return self._list_by_pattern(top, self.options.label_pattern)
        folders = self._subfolders(top)
        if self.options.split_folders is not None:
            return self._as_told(folders, parse_split_folders(self.options.split_folders))
        if self.options.classes_from is ClassesFrom.TOP:
            return self._list_classes(folders, split=None)
        refuse_splits_without_classes(self.walk, self.root, folders)
        below = {folder: self._names_in(folder) for folder in folders}
        splits = self._find_splits(folders, below)
        if splits is not None:
            return self._list_splits(folders, splits)
        inner = self._find_inner_splits(below)
        if inner is not None:
            self._refuse_versions_with_splits(folders)
            shown = ", ".join(f"{printable(name)} as {split}" for name, split in inner.items())
            self.warnings.append(
                f"{self.root}: took the folders inside the class folders for splits: {shown}"
            )
            return self._list_inner_splits(folders, inner)
        self._refuse_crossing(folders, below)
        refuse_names_of_splits(self.root, [folder.name for folder in folders])
        refuse_folders_of_a_table(self.walk, self.root, folders)
        return self._list_classes(folders, split=None)

    def _named_classes(self, folders: list[Folder]) -> list[tuple[Folder, str]]:
        """Return the folders of classes and their names; those in folders of letters are deeper."""
        is_told = self.options.classes_from is ClassesFrom.TOP
        inside = {folder: self._entries(folder) for folder in folders if _letters(folder.name)}
        if is_told or not folders or len(inside) < len(folders):
            return [(folder, folder.name) for folder in folders]
        below = {
            folder: [entry for entry in entries if isinstance(entry, Folder)]
            for folder, entries in inside.items()
        }
        if any(len(below[folder]) < max(len(entries), 1) for folder, entries in inside.items()):
            return [(folder, folder.name) for folder in folders]
        names = name_some([folder.path for folder in folders])
        if not all(_begins(one.name, folder.name) for folder in folders for one in below[folder]):
            self.warnings.append(
                f"{self.root}: took {names} for classes, although they contain folders, not "
                "pictures. If those are the classes: --label-pattern "
                f"{shlex.quote(_IN_LETTERS)}"
            )
            return [(folder, folder.name) for folder in folders]
        self.warnings.append(
            f"{self.root}: read the folders in {names} as classes, because their names begin with "
            "these letters. If the letters are the classes: --classes-from top"
        )
        return [
            (deep, deep.path.removeprefix(f"{folder.path}/"))
            for folder in folders
            for one in below[folder]
            for deep in self._with_pictures(one)
        ]

    def _with_pictures(self, folder: Folder) -> list[Folder]:
        """Return the folder if pictures are in it, else those folders below it that have some."""
        entries = self._entries(folder)
        inner = [entry for entry in entries if isinstance(entry, Folder)]
        if len(inner) < len(entries) or not inner:
            return [folder]
        return [deep for one in inner for deep in self._with_pictures(one)]

    def _beside_annotations(self, top: Folder) -> Folder:
        """Return the folder of pictures, such as `images`, beside folders of annotations only."""
        is_told = self.options.split_folders or self.options.label_pattern
        if is_told or self.options.classes_from is ClassesFrom.TOP:
            return top
        entries = self._entries(top)
        folders = [entry for entry in entries if isinstance(entry, Folder)]
        named = [folder for folder in folders if is_of_files(folder.name)]
        others = [folder for folder in folders if folder not in named]
        if len(named) != 1 or not others:
            return top
        walk = replace(self.walk, skipped=Skipped())
        inside = self._unwrap(named[0])
        are_others = all(
            is_of_annotations(one.name) or next(walk.files(one), None) is None for one in others
        )
        if not are_others or len(self._names_below(inside)) < _MIN_SHARED:
            return top
        for entry in entries:
            if isinstance(entry, str):
                self.walk.skipped.add(entry, "picture(s) outside any class folder")
        self.warnings.append(
            f"{self.root}: read the pictures in {printable(inside.path)}; skipped "
            f"{name_some([one.path for one in others])}"
        )
        return inside

    def _join_parts(self, top: Folder) -> Folder:
        """Return one folder in place of the parts of a download; else the folder itself."""
        folders = [entry for entry in self._entries(top) if isinstance(entry, Folder)]
        names = [folder.name for folder in folders]
        downloads = {download_of(name) for name in names}
        is_one = len(downloads) == 1 and None not in downloads
        if not is_one and not (
            are_numbered_parts(names) and all(self._names_below(one) for one in folders)
        ):
            if downloads - {None}:
                raise UsageError(
                    "by their names, these folders are parts of one download that was unpacked in "
                    f"parts: {name_some([name for name in names if download_of(name)])}; but there "
                    "are other folders beside them",
                    where=str(self.root),
                    fix="Move the parts to a new folder, and set --source to it. If instead each "
                    "of all these folders is a class: --classes-from top",
                )
            return top
        if len(folders) > 1:
            self.warnings.append(f"{self.root}: read {name_some(names)} as parts of one folder")
        return self._unwrap(merge(folders))

    def _list_by_pattern(self, top: Folder, pattern: str) -> list[Picture]:
        """List all pictures, whose classes are in their paths; folders may be splits."""
        label_in = LabelPattern.parse(pattern)
        folders = [entry for entry in self._entries(top) if isinstance(entry, Folder)]
        names = [folder.name for folder in folders]
        splits = assign_splits(named_as_splits(names))
        if self.options.split_folders is not None:
            splits = parse_split_folders(self.options.split_folders)
            if not splits.keys() <= set(names):
                raise self._unknown_folders(splits.keys() - set(names), names)
        elif Split.TRAIN not in splits.values():
            splits = {}
        self._tell_names(splits)
        pictures: list[Picture] = []
        others: list[str] = []
        for entry in self.walk.entries(top):
            name = entry.name if isinstance(entry, Folder) else None
            split = None if name is None else splits.get(name)
            if splits and split is None:
                others.append(entry.path if isinstance(entry, Folder) else entry)
                continue
            for path in self.walk.files(entry) if isinstance(entry, Folder) else (entry,):
                label = label_in(printable(path))
                if label is None:
                    self.walk.skipped.add(path, "picture(s) that --label-pattern does not match")
                else:
                    pictures.append(Picture(path, label, split))
        if others:
            self.warnings.append(
                f"{self.root}: skipped everything that is not in a folder of train, val or test: "
                f"{name_some(others)}"
            )
        if not pictures:
            raise label_in.matches_nothing(self.walk.skipped)
        return pictures

    def _as_told(self, folders: list[Folder], told: Mapping[str, Split]) -> list[Picture]:
        """List splits as --split-folders names them: at the top, or inside the classes."""
        top = {folder.name: folder for folder in folders}
        inner = {name for folder in folders for name in self._names_below(folder)}
        for names, is_inner in ((top.keys(), False), (inner, True)):
            if not told.keys() <= names:
                continue
            if Split.TRAIN not in told.values():
                raise UsageError(
                    "--split-folders names no folder for train",
                    why="A model is trained on the pictures of train.",
                    fix="Add the folder of training pictures to it, such as --split-folders "
                    f"{next(iter(told))}=train",
                )
            if is_inner:
                return self._list_inner_splits(folders, told)
            return self._list_splits(folders, {top[name]: split for name, split in told.items()})
        raise self._unknown_folders(told.keys() - top.keys() or told.keys(), top)

    def _unknown_folders(self, unknown: Iterable[str], names: Iterable[str]) -> UsageError:
        return UsageError(
            "--split-folders names folders that do not exist in the source: "
            f"{name_some(sorted(unknown))}",
            where=str(self.root),
            fix=f"Name some of these folders: {name_some(sorted(names))}",
        )

    def _find_splits(
        self, folders: list[Folder], below: Mapping[Folder, list[str]]
    ) -> dict[Folder, Split] | None:
        """Return the split of each folder; None if the folders are classes."""
        known = [folder for folder in folders if folder.name.lower() in SPLIT_NAMES]
        likely = [folder for folder in folders if split_candidates(folder.name)]
        shared = Counter(name for folder in likely for name in set(below[folder]))
        named = [
            folder
            for folder in likely
            if folder in known or any(shared[name] > 1 for name in below[folder])
        ]
        by_name = assign_splits(folder.name for folder in named)
        found = {folder: by_name[folder.name] for folder in named}
        splits = set(found.values())
        if not found or (
            len(found) < len(folders) and (Split.TRAIN not in splits or len(splits) == 1)
        ):
            return None  # "test" or "train" among other names is an ordinary class
        if len(found) > len(splits):
            raise UsageError(
                "by their names, two of these folders are for the same split: "
                f"{name_some([f'{one.path} ({split})' for one, split in found.items()])}",
                where=str(self.root),
                fix="Set the split of each folder yourself, and leave out a folder that is to be "
                f"skipped: {write_split_folders(by_name)}",
            )
        if Split.TRAIN not in splits:
            raise DataError(
                f"the source has a folder for {' and one for '.join(sorted(splits))}, but none for "
                "train",
                where=str(self.root),
                fix=f"Put the training pictures into {self.root / 'train'}, with one folder for "
                "each class.",
            )
        classes = {name for folder in found for name in below[folder]}
        for folder in folders:
            if folder not in found and len(classes & set(below[folder])) >= _MIN_SHARED:
                raise self._ambiguous(folders, classes & set(below[folder]), below)
        self._tell_names({folder.name: split for folder, split in found.items()})
        return found

    def _find_inner_splits(self, below: Mapping[Folder, list[str]]) -> dict[str, Split] | None:
        """Return the splits of the folders inside the classes; None if they are not splits."""
        names = sorted({name for inside in below.values() for name in inside})
        splits = assign_splits(names)
        if not {Split.TRAIN} < set(splits.values()) or len(splits) < len(names):
            return None
        if not all(below.values()) or any(map(self._has_pictures, below)):
            return None
        return splits if len(set(splits.values())) == len(splits) else None

    def _refuse_versions_with_splits(self, folders: list[Folder]) -> None:
        """Refuse `color/train/cat` and `gray/train/cat`: the outer folders are no classes.

        Raises:
            UsageError: if the folders of splits inside them share two class folders.
        """
        inside = {
            folder: {name for one in self._inner_folders(folder) for name in self._names_below(one)}
            for folder in folders
        }
        counts = Counter(name for names in inside.values() for name in names)
        shared = sorted(name for name, count in counts.items() if count > 1)
        if len(shared) >= _MIN_SHARED:
            both = [folder for folder in folders if inside[folder] & set(shared)]
            raise self._versions(both, shared, "one level deeper ")

    def _inner_folders(self, folder: Folder) -> list[Folder]:
        return [entry for entry in self._entries(folder) if isinstance(entry, Folder)]

    def _have_same_names(self, folders: list[Folder], shared: Iterable[str], counted: bool) -> bool:
        """Return whether most pictures of a class have the same name in another folder, too.

        A name may have an end of its own: `leaf_1_masked` for `leaf_1`.

        Args:
            folders: versions or splits.
            shared: names of the classes in them.
            counted: whether names such as `IMG_0001` count, which any camera writes.
        """
        names: list[set[str]] = []
        for folder in folders:
            inside = [one for one in self._inner_folders(folder) if one.name in set(shared)]
            walk = replace(self.walk, skipped=Skipped())
            files = islice((file for one in inside for file in walk.files(one)), _MAX_COMPARED)
            stems = {file[len(folder.path) + 1 :].rpartition(".")[0] for file in files}
            names.append(
                {one for one in stems if counted or not _COUNTED.fullmatch(one.rpartition("/")[2])}
            )
        first, *others = sorted(names, key=len)
        probes = sorted(first)[:_MAX_PROBES]
        num_found = sum(
            any(one in other or any(_is_version(one, name) for name in other) for other in others)
            for one in probes
        )
        return num_found >= _MIN_SAME and 2 * num_found > len(probes)

    def _versions(self, folders: list[Folder], shared: list[str], deeper: str = "") -> UsageError:
        names = name_some([folder.path for folder in folders])
        return UsageError(
            f"the folders {names} contain {deeper}folders of the same names ({name_some(shared)}), "
            "so they are probably versions of one data set",
            where=str(self.root),
            why="Pictures that are in several of them would be in train and in val or test.",
            fix=f"Read one of them: stepladder prepare {typed(self.root / folders[0].path)}. If "
            f"{names} are the classes: --classes-from top",
        )

    def _refuse_crossing(self, folders: list[Folder], below: Mapping[Folder, list[str]]) -> None:
        """Refuse folders that share subfolders: either of them may be the classes.

        Raises:
            UsageError: if two folders share two subfolders, or one that is named after a split
                shares one with a folder that is probably misspelled.
        """
        counts = Counter(name for inside in below.values() for name in set(inside))
        shared = {name for name, count in counts.items() if count > 1}
        if any(len(shared & set(inside)) >= _MIN_SHARED for inside in below.values()):
            raise self._ambiguous(folders, shared, below)
        wrapped = {folder: self._names_below(self._unwrap(folder)) for folder in folders}
        wrappers = {tuple(names) for names in below.values()}
        if len(folders) > 1 and len(wrappers) == 1 and len(wrappers.pop()) == 1:
            counts = Counter(name for inside in wrapped.values() for name in set(inside))
            shared = {name for name, count in counts.items() if count > 1}
            if len(shared) >= _MIN_SHARED:
                raise self._ambiguous(folders, shared, wrapped)
        named = [folder for folder in folders if folder.name.lower() in SPLIT_NAMES]
        beside = {name for folder in named for name in below[folder]}
        for folder in folders:
            is_near = _near_split(folder.name)
            if folder not in named and is_near and beside & set(below[folder]):
                raise self._ambiguous(folders, shared, below)

    def _ambiguous(
        self, folders: list[Folder], shared: Iterable[str], below: Mapping[Folder, list[str]]
    ) -> UsageError:
        both = [folder for folder in folders if set(shared) & set(below[folder])]
        has_splits = any(split_candidates(one.name) or _near_split(one.name) for one in both)
        if not has_splits and self._have_same_names(both, shared, counted=False):
            return self._versions(both, sorted(shared))
        outer = [folder.name for folder in both]
        inner = sorted({name for folder in both for name in below[folder]})
        likely = sorted(
            (names for names in (inner, outer) if _may_be_splits(names)),
            key=lambda names: not _are_numbered_or_splits(names),
        )
        flag = "--split-folders FOLDER=train,FOLDER=test"
        if likely and len(likely[0]) <= _MAX_ASKED:
            flag = write_split_folders(_guessed(likely[0]))
        fixes = [f"If one level is train, val and test: {flag} (correct the names)."]
        if not likely:
            one = f"To read one of them: stepladder prepare {typed(self.root / both[0].path)}."
            has_same = self._have_same_names(both, shared, counted=True)
            fixes = [one] if has_same else [*fixes, one]
        return UsageError(
            f"the folders {name_some(outer)} contain folders of the same names "
            f"({name_some(sorted(shared))}), so it is unknown which of both are the classes",
            where=str(self.root),
            fix=" ".join((*fixes, f"If {name_some(outer)} are the classes: --classes-from top")),
        )

    def _list_splits(self, folders: list[Folder], splits: Mapping[Folder, Split]) -> list[Picture]:
        others = [folder.path for folder in folders if folder not in splits]
        if others:
            self.warnings.append(
                f"{self.root}: skipped folders that are not train, val or test, with all pictures "
                f"in them: {name_some(others)}"
            )
        inner = {folder: self._unwrap(folder) for folder in splits}
        trains = [folder for folder, split in splits.items() if split is Split.TRAIN]
        if any(inner[folder] == folder for folder in trains):
            inner = {folder: folder for folder in splits}
        pictures: list[Picture] = []
        for folder in trains:
            pictures += self._list_classes(self._subfolders(inner[folder]), split=Split.TRAIN)
        classes = {picture.label for picture in pictures}
        for folder, split in splits.items():
            if split is not Split.TRAIN:
                pictures += self._list_held_out(inner[folder], split, classes)
        return pictures

    def _list_held_out(self, top: Folder, split: Split, classes: set[str]) -> list[Picture]:
        """List val or test: by its class folders, else by a table in it, else without a picture."""
        names = self._names_below(top)
        if not are_no_classes(names, classes):
            return self._list_classes(self._subfolders(top), split=split)
        paths = list(self.walk.files(top))
        found = label_by_table(self.root, top.path, paths, split, classes)
        if found is not None:
            pictures, table = found
            self.warnings.append(f"{self.root}: read the labels of {top.path} in {table}")
            labelled = {picture.path for picture in pictures}
            for path in paths:
                if path not in labelled:
                    self.walk.skipped.add(path, f"picture(s) without a label in {table}")
            return pictures
        for path in paths:
            self.walk.skipped.add(path, f"picture(s) without labels in {printable(top.path)}")
        return []

    def _list_inner_splits(
        self, folders: list[Folder], splits: Mapping[str, Split]
    ) -> list[Picture]:
        pictures: list[Picture] = []
        skipped: set[str] = set()
        for folder in folders:
            for inner in self._subfolders(folder):
                if inner.name not in splits:
                    skipped.add(inner.name)
                    continue
                label, split = printable(folder.name), splits[inner.name]
                pictures += (Picture(path, label, split) for path in self.walk.files(inner))
        if skipped:
            shown = name_some(sorted(skipped))
            self.warnings.append(
                f"{self.root}: inside the class folders, skipped folders that are not train, val "
                f"or test, with all pictures in them: {shown}"
            )
        return pictures

    def _list_classes(self, folders: list[Folder], *, split: Split | None) -> list[Picture]:
        pictures: list[Picture] = []
        full: list[Folder] = []
        empty: list[str] = []
        for folder, name in self._named_classes(folders):
            label = printable(name)
            num_before = len(pictures)
            pictures += (Picture(path, label, split) for path in self.walk.files(folder))
            if len(pictures) == num_before:
                empty.append(folder.path)
            else:
                full.append(folder)
        if empty and split in {None, Split.TRAIN}:
            skipped = self.walk.skipped
            fix = "Put pictures into these folders, or remove the folders."
            fix = skipped.conversion(str(self.root)) or fix
            if len(full) == 1 and len(self._names_below(full[0])) >= _MIN_SHARED:
                fix = "Remove these folders; or, if the classes are in the folder beside them, "
                fix += f"use --source {self.root / full[0].path}"
            raise DataError(
                f"these class folders contain no pictures that can be read: {name_some(empty)}",
                where=self.walk.root,
                why=f"Skipped: {skipped.describe()}" if skipped.counts else None,
                fix=fix,
            )
        return pictures

    def _unwrap(self, folder: Folder) -> Folder:
        """Return the folder inside folders that contain nothing else, if it holds two or more."""
        inside = folder
        for _ in range(_MAX_WRAPPERS):
            entries = self._entries(inside)
            folders = [entry for entry in entries if isinstance(entry, Folder)]
            if len(folders) >= _MIN_SHARED:
                return inside
            if len(entries) != 1 or not folders or folders[0].name.lower() in SPLIT_NAMES:
                is_lone_split = bool(folders) and len(entries) == 1
                return inside if is_lone_split else folder
            inside = folders[0]
        return folder

    def _tell_names(self, splits: Mapping[str, Split]) -> None:
        """Report how names that are not the usual ones were read."""
        unusual = [
            f"{printable(name)} as {split.value}"
            for name, split in splits.items()
            if name.lower() not in SPLIT_NAMES
        ]
        if unusual:
            self.warnings.append(f"{self.root}: took folders for splits: {', '.join(unusual)}")

    def _subfolders(self, folder: Folder) -> list[Folder]:
        folders: list[Folder] = []
        for entry in self.walk.entries(folder):
            if isinstance(entry, Folder):
                folders.append(entry)
            else:
                self.walk.skipped.add(entry, "picture(s) outside any class folder")
        return folders

    def _entries(self, folder: Folder) -> list[Folder | str]:
        """Return a folder's entries without recording what is skipped."""
        return list(replace(self.walk, skipped=Skipped()).entries(folder))

    def _names_in(self, folder: Folder) -> list[str]:
        """Return the names of the subfolders; of a likely split, without a folder around them."""
        is_likely = split_candidates(folder.name)
        return self._names_below(self._unwrap(folder) if is_likely else folder)

    def _names_below(self, folder: Folder) -> list[str]:
        return [entry.name for entry in self._entries(folder) if isinstance(entry, Folder)]

    def _has_pictures(self, folder: Folder) -> bool:
        return any(isinstance(entry, str) for entry in self._entries(folder))


def _is_version(name: str, other: str) -> bool:
    """Return whether one of two names is the other with an end: `leaf_1_masked`, `leaf_1-small`."""
    short, long = sorted((name, other), key=len)
    return long.startswith(short) and not long[len(short) : len(short) + 1].isdigit()


def _letters(name: str) -> tuple[str, str] | None:
    """Return the first and the last letter of `a` or `a-c`; None if a name is another."""
    match = _OF_LETTERS.fullmatch(name.lower())
    return None if match is None else (match[1] or "0", match[2] or match[1] or "9")


def _begins(name: str, letters: str) -> bool:
    """Return whether a name begins with a letter of a folder of letters; others do with none."""
    first, last = _letters(letters) or ("", "")
    start = name.lower()[:1]
    return first <= start <= last or not start.isalpha()


def _may_be_splits(names: list[str]) -> bool:
    """Return whether one of the names is similar to a split's, or has a number."""
    return any(
        split_candidates(name) or _near_split(name) or any(map(str.isdigit, name)) for name in names
    )


def _are_numbered_or_splits(names: list[str]) -> bool:
    """Return whether names are more than similar to a split's: fold_0 and fold_1, or seg_train."""
    prefixes = {name.rstrip("0123456789") for name in names}
    is_numbered = len(names) > 1 and len(prefixes) == 1 and prefixes.pop() not in {"", *names}
    return is_numbered or any(map(split_candidates, names))


def _near_split(name: str) -> list[str]:
    return difflib.get_close_matches(name.lower(), SPLIT_NAMES, n=1, cutoff=0.6)


def _guessed(names: list[str]) -> dict[str, Split]:
    """Guess splits for a proposal: by similar names, else train, and the last one test."""
    found = assign_splits(names)
    for name in names:
        near = _near_split(name)
        if name not in found and near:
            found[name] = SPLIT_NAMES[near[0]]
    others = [name for name in names if name not in found]
    found |= dict.fromkeys(others, Split.TRAIN)
    if others and set(found.values()) == {Split.TRAIN}:
        found[others[-1]] = Split.TEST
    return {name: found[name] for name in names}
