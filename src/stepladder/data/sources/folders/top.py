"""Find the folder whose subfolders are classes or splits."""

from __future__ import annotations

from dataclasses import replace

from stepladder.config.choices import ClassesFrom
from stepladder.data.sources.folders.parts import are_numbered_parts, download_of
from stepladder.data.sources.folders.reading import MIN_SHARED, FolderReading
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.splits.split_names import is_of_annotations, is_of_files
from stepladder.data.sources.walk import LOOSE, Folder, Skipped, merge, printable
from stepladder.errors import UsageError


def find_top(reading: FolderReading) -> Folder:
    """Return the folder to read: inside single folders, beside annotations, of all parts.

    Raises:
        UsageError: if some of the folders are parts of one download.
    """
    top = reading.unwrap(reading.walk.start())
    if top.path:
        reading.record_skipped(reading.walk.start(), top)
        reading.warnings.append(
            f"{reading.root}: read the pictures in {printable(top.path)}, the only folder in it"
        )
    return _join_parts(reading, _beside_annotations(reading, top))


def _beside_annotations(reading: FolderReading, top: Folder) -> Folder:
    """Return the folder of pictures, such as `images`, beside folders of annotations only."""
    is_told = reading.options.split_folders or reading.options.label_pattern
    if is_told or reading.options.classes_from is ClassesFrom.TOP:
        return top
    entries = reading.entries(top)
    folders = [entry for entry in entries if isinstance(entry, Folder)]
    named = [folder for folder in folders if is_of_files(folder.name)]
    others = [folder for folder in folders if folder not in named]
    if len(named) != 1 or not others:
        return top
    walk = replace(reading.walk, skipped=Skipped())
    inside = reading.unwrap(named[0])
    are_others = all(
        is_of_annotations(one.name) or next(walk.files(one), None) is None for one in others
    )
    if not are_others or len(reading.names_below(inside)) < MIN_SHARED:
        return top
    for entry in entries:
        if isinstance(entry, str):
            reading.walk.skipped.add(entry, LOOSE)
    reading.warnings.append(
        f"{reading.root}: read the pictures in {printable(inside.path)}; skipped "
        f"{name_some([one.path for one in others])}"
    )
    return inside


def _join_parts(reading: FolderReading, top: Folder) -> Folder:
    """Return one folder in place of the parts of a download; else the folder itself."""
    folders = [entry for entry in reading.entries(top) if isinstance(entry, Folder)]
    names = [folder.name for folder in folders]
    downloads = {download_of(name) for name in names}
    is_one = len(downloads) == 1 and None not in downloads
    if not is_one and not (
        are_numbered_parts(names) and all(reading.names_below(one) for one in folders)
    ):
        if downloads - {None}:
            raise UsageError(
                "by their names, these folders are parts of one download that was unpacked in "
                f"parts: {name_some([name for name in names if download_of(name)])}; but there "
                "are other folders beside them",
                where=str(reading.root),
                fix="Move the parts to a new folder, and set --source to it. If instead each "
                "of all these folders is a class: --classes-from top",
            )
        return top
    if len(folders) > 1:
        reading.warnings.append(f"{reading.root}: read {name_some(names)} as parts of one folder")
    return reading.unwrap(merge(folders))
