"""Detect the format of a source and open it."""

from __future__ import annotations

import json
import os
from functools import partial
from itertools import chain
from pathlib import Path
from zipfile import is_zipfile

from stepladder.config.choices import SourceFormat
from stepladder.config.options import PrepareConfig
from stepladder.data.remote.arrow_files import object_filesystem
from stepladder.data.remote.places import ObjectPlace, object_place, shown, supported_place
from stepladder.data.remote.retries import StoreAwayError
from stepladder.data.sources.containers.contract import Opened
from stepladder.data.sources.containers.files import (
    find_files,
    is_pattern,
    listing_named,
    splits_by_name,
)
from stepladder.data.sources.containers.pictures import ContainerPictures, OpenSource
from stepladder.data.sources.containers.pixel_table import open_pixel_table
from stepladder.data.sources.containers.tables import PARQUET_SUFFIXES, open_delta, open_tables
from stepladder.data.sources.containers.webdataset import TAR_SUFFIXES, TarContainer
from stepladder.data.sources.delta_log import LOG_FOLDER, is_delta
from stepladder.data.sources.not_read.other_files import zip_refused
from stepladder.data.sources.pictures import FilePictures, Pictures
from stepladder.data.sources.walk import is_hidden, why_no_picture
from stepladder.data.store.manifest import MANIFEST_NAME
from stepladder.errors import StepladderError, UsageError

_PACKED_BY_OTHERS = (".bz2", ".xz", ".zst", ".lz4", ".z")
_PACKED_TARS = (
    *(f".tar{packed}" for packed in _PACKED_BY_OTHERS),
    ".tbz2",
    ".tbz",
    ".txz",
    ".tzst",
)
_OTHER_ARCHIVES = (".zip", ".7z", ".rar")
_PARQUET_MAGIC = b"PAR1"
_ADDRESSES = "Let Spark read it: --engine spark. Or use a local path, or s3://BUCKET/PREFIX."


def open_pictures(config: PrepareConfig) -> Pictures:
    """Open a source of any format and validate it.

    Raises:
        UsageError: if it is missing or ambiguous.
        DataError: if it contains no usable pictures.
    """
    place = supported_place(config.source, fix=_ADDRESSES)
    refuse_store(config.source)
    kind = config.source_format
    if kind is SourceFormat.TABLE:
        raise UsageError(
            "--source-format table means that --source is the name of a table in Spark's catalog, "
            "which only Spark can read",
            where="prepare.source_format",
            fix="Add --engine spark. Or set --source to the files of the table, and leave out "
            "--source-format.",
        )
    if kind is SourceFormat.AUTO:
        kind = find_format(config.source.expanduser())
    require_delta(config, kind)
    if config.label_pattern is not None and kind is not SourceFormat.FOLDER:
        raise UsageError(
            "--label-pattern can only be used if the source is a folder of picture files, but "
            f"this source has the format {kind.value}",
            where=shown(config.source),
            fix="Leave out --label-pattern, and name the column or field that contains the class: "
            "--label-column NAME",
        )
    if kind in {SourceFormat.FOLDER, SourceFormat.CSV}:
        if place is not None:
            raise UsageError(
                "picture files that are single objects, and CSV tables of them, cannot be read "
                "from an object store",
                where=shown(config.source),
                fix="Copy them to this machine, or pack them into Parquet or tar files. If each "
                "class has its own folder, Spark can read them: --engine spark",
            )
        opened = open_pixel_table(config) if kind is SourceFormat.CSV else None
        return (
            FilePictures(config) if opened is None else ContainerPictures(config, lambda _: opened)
        )
    return ContainerPictures(config, opener(config, kind))


def refuse_store(source: Path) -> None:
    """Raise an error if the source is a store: its splits and crops would be lost.

    Raises:
        UsageError: if it is a store, local or in an object store.
    """
    place = object_place(source)
    try:
        data = (
            (source.expanduser() / MANIFEST_NAME).read_bytes()
            if place is None
            else _read_object(place.join(MANIFEST_NAME))
        )
        found = json.loads(data)
    except StoreAwayError:
        raise
    except (StepladderError, OSError, ValueError, RecursionError):
        return  # not a store; errors of the source itself are raised by its reader
    if isinstance(found, dict) and found.keys() >= {"shards", "encoding", "class_counts"}:
        raise UsageError(
            "the source is already a store, which stepladder prepare has written",
            where=shown(source),
            fix=f"Train on it: stepladder train --data.store {shown(source)}. To prepare it with "
            "other options, set --source to the original pictures.",
        )


def _read_object(place: ObjectPlace) -> bytes:
    filesystem = object_filesystem()
    with filesystem.open_input_stream(f"{place.bucket}/{place.key}") as file:
        data: bytes = file.read()
    return data


def require_delta(config: PrepareConfig, kind: SourceFormat) -> None:
    """Check that --delta-version is used only with a Delta table.

    Raises:
        UsageError: if it is used with another format.
    """
    if config.delta_version is not None and kind is not SourceFormat.DELTA:
        raise UsageError(
            "--delta-version can only be used if the source is a Delta table, but this source has "
            f"the format {kind.value}",
            where=shown(config.source),
            fix="Leave out --delta-version, or set --source to the folder of a Delta table, which "
            f"contains {LOG_FOLDER}.",
        )


def opener(config: PrepareConfig, kind: SourceFormat) -> OpenSource:
    """Return a function that opens files with many pictures each.

    Raises:
        UsageError: if they are missing or ambiguous.
        DataError: if they contain no usable pictures.
    """
    if kind is SourceFormat.DELTA:
        return partial(open_delta, config)
    is_tar = kind is SourceFormat.WEBDATASET
    opened = _open_tars(config) if is_tar else open_tables(config, kind)
    return lambda _: opened


def find_format(source: Path) -> SourceFormat:
    """Return the format of a source, by file names and the Parquet magic bytes.

    A folder with subfolders of pictures is a picture folder, whatever else it contains; otherwise
    the container files in it decide.
    """
    place = object_place(source)
    if place is not None:
        return _of_objects(place)
    if is_pattern(source):
        return kind_of_name(str(source)) or SourceFormat.FOLDER
    if source.is_file():
        if source.name.lower().endswith(_OTHER_ARCHIVES):
            raise zip_refused(source) if is_zipfile(source) else _archive_refused(str(source))
        with source.open("rb") as file:
            is_parquet = file.read(4) == _PARQUET_MAGIC
        return SourceFormat.PARQUET if is_parquet else kind_of_name(source.name) or SourceFormat.CSV
    if not source.is_dir():
        return SourceFormat.FOLDER  # its reader reports that the path does not exist
    if is_delta(source):
        return SourceFormat.DELTA
    return _of_folder(source)


def _of_folder(folder: Path) -> SourceFormat:
    folders, names = _entries(folder)
    below = next((kind for path in folders if (kind := _first_below(path))), None)
    if below is SourceFormat.FOLDER:
        return below
    found = {kind for name in names if (kind := kind_of_name(name))} | ({below} if below else set())
    if len(found) > 1:
        kinds = " and ".join(sorted(found))
        raise UsageError(
            f"the source folder contains files of several formats: {kinds}; only one can be read",
            where=str(folder),
            fix="Choose which of them to read; the other files are skipped: "
            + " or ".join(f"--source-format {kind}" for kind in sorted(found)),
        )
    return found.pop() if found else SourceFormat.FOLDER


def _first_below(folder: Path) -> SourceFormat | None:
    """Return the format of the first folder with files of a known format; pictures first."""
    folders, names = _entries(folder)
    if any(map(_is_picture, names)):
        return SourceFormat.FOLDER
    kinds = chain(map(_first_below, folders), map(kind_of_name, names))  # lazy
    return next((kind for kind in kinds if kind), None)


def _is_picture(name: str) -> bool:
    return bool(Path(name).suffix) and why_no_picture(name) is None


def _entries(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the subfolders and file names of a folder, without linked folders and hidden files."""
    try:
        with os.scandir(folder) as scan:
            found = sorted(
                (entry for entry in scan if not is_hidden(entry.name)),
                key=lambda entry: os.fsencode(entry.name),
            )
    except OSError:
        return [], []
    folders = [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]
    return folders, [entry.name for entry in found if _is_file(entry)]


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def _of_objects(place: ObjectPlace) -> SourceFormat:
    from pyarrow.fs import FileSelector, FileType

    kind = kind_of_name(place.key)
    if kind is not None:
        return kind
    if place.key.lower().endswith(".csv"):
        return SourceFormat.CSV
    filesystem = object_filesystem()
    root = f"{place.bucket}/{place.key}".rstrip("/")
    with listing_named(place):
        log = filesystem.get_file_info(f"{root}/{LOG_FOLDER}")
        if log.type == FileType.Directory:
            return SourceFormat.DELTA
        infos = filesystem.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
    names = [info.path for info in infos if info.type == FileType.File]
    kind = next(filter(None, map(kind_of_name, names)), None)
    is_folder = kind is None and any(map(_is_picture, names))
    return SourceFormat.FOLDER if is_folder else kind or SourceFormat.PARQUET


def kind_of_name(name: str) -> SourceFormat | None:
    """Return the format of a file by its extension; None if it is not a container."""
    lower = name.lower()
    if lower.endswith(PARQUET_SUFFIXES):
        return SourceFormat.PARQUET
    is_tar = lower.endswith((*TAR_SUFFIXES, *_PACKED_TARS))
    return SourceFormat.WEBDATASET if is_tar else None


def _archive_refused(where: str) -> UsageError:
    return UsageError(
        "archives of this format cannot be read, only .tar and .tar.gz",
        where=where,
        fix="Unpack the archive, and set --source to the folder with its contents.",
    )


def _open_tars(config: PrepareConfig) -> Opened:
    source = config.source.expanduser()
    suffixes = (*TAR_SUFFIXES, *_PACKED_TARS)
    found = find_files(source, suffixes=suffixes, follow_symlinks=config.follow_symlinks)
    for file in found.files:
        if file.name.lower().endswith(_PACKED_TARS):
            raise _archive_refused(file.name)
    splits = splits_by_name([file.name for file in found.files], source)
    pairs = zip(found.files, splits, strict=True)
    options = (config.image_column, config.label_column, config.split_column, config.group_by)
    return Opened(
        root=found.root,
        containers=[TarContainer(file, split, config) for file, split in pairs],
        key=f"tar {options} {config.max_pixels}",
        skipped=found.skipped,
    )
