"""List file names from Spark by the same rules as a local folder."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.data.remote.places import secret_refused
from stepladder.data.sources.folders.folders import list_walk
from stepladder.data.sources.folders.reading import AS_NAMED, FolderOptions
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.walk import Folder, Skipped, Walk, is_hidden, why_no_picture

FRAME = "DataFrame"  # name of a source that is a DataFrame
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?=[^/])")
_WITHOUT_HOST = {"file", "dbfs"}
_SECRET = re.compile(r"[^/]*:[^/]*@")  # abfss://container@account/… is not a secret
_OF_S3 = {"s3", "s3a", "s3n"}
# a secret may contain slashes; bucket names contain neither : nor @
_SECRET_OF_S3 = re.compile(r"[^/]*[:@]")
_WILD = re.compile(r"[*?\[{]")


def spark_address(source: Path) -> str | None:
    """Return the address that Spark opens if a source is an address or a pattern; else None.

    Path has turned two slashes into one.

    Raises:
        UsageError: if it contains a password.
    """
    text = str(source)
    match = _ADDRESS.match(text)
    if match is not None:
        rest = text[match.end() :]
        secret = _SECRET_OF_S3 if match[1].lower() in _OF_S3 else _SECRET
        if secret.match(rest):
            raise secret_refused(match[1], rest)
        host = "" if match[1].lower() in _WITHOUT_HOST else "/"
        return f"{match[1]}:/{host}{rest}"
    is_pattern = _WILD.search(text) is not None and not source.exists()
    return str(source.expanduser().absolute()) if is_pattern else None


def is_url(source: Path) -> bool:
    """Return True if a source is an address with a scheme, such as hdfs://host/photos."""
    return _ADDRESS.match(str(source)) is not None


def split_pattern(address: str) -> tuple[str, str | None]:
    """Split an address into a folder and a file name pattern such as *.jpg, or None."""
    folder, _, name = address.rpartition("/")
    is_of_files = _WILD.search(name) is not None and "." in name
    return (folder, name) if is_of_files else (address, None)


def relative_names(names: Sequence[str], address: str | None) -> list[str]:
    """Return names relative to the source, without its host and folder.

    Args:
        names: names from a column or from Spark; relative names are unchanged.
        address: address that they were read from, up to the first pattern in it; None: remove the
            common prefix.
    """
    if not all(
        name.startswith("/") or _ADDRESS.match(re.sub(r":/+", ":/", name, count=1))
        for name in names
    ):
        return list(names)
    parts = [_parts(name) for name in names]
    if address is not None:
        wild = [part for part in _parts(address) if _WILD.search(part)]
        num_cut = _parts(address).index(wild[0]) if wild else len(_parts(address))
    else:
        folders = [part[:-1] for part in parts]
        ends = zip(min(folders), max(folders), strict=False)
        num_cut = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ends))
    return ["/".join(part[num_cut:]) for part in parts]


def list_names(
    names: Sequence[str], root: Path, skipped: Skipped, options: FolderOptions = AS_NAMED
) -> Listing:
    """List file names as class folders, or class folders inside train/val/test folders.

    Raises:
        UsageError, DataError: as for a folder.
    """
    tree: dict[str, Any] = {}
    for name in names:
        node = tree
        *folders, file = name.split("/")
        for part in folders:
            node = node.setdefault(part, {})
        node[file] = None
    return list_walk(NamesWalk(str(root), False, skipped, tree=tree), root, options)


@dataclass(frozen=True)
class NamesWalk(Walk):
    """A walk over a given tree of folders, with None for each file."""

    tree: dict[str, Any] = field(default_factory=dict)

    def start(self) -> Folder:
        """Return the root."""
        return Folder("", ())

    def scan(self, folder: Folder) -> Iterator[Folder | str]:
        """Yield the subfolders and pictures of one folder, sorted by name as bytes."""
        node = self.tree
        for part in folder.path.split("/") if folder.path else ():
            node = node[part]
        for name in sorted(node, key=os.fsencode):
            if is_hidden(name):
                continue
            path = f"{folder.path}/{name}" if folder.path else name
            if node[name] is not None:
                yield Folder(path, ())
                continue
            reason = why_no_picture(name)
            if reason:
                self.skipped.add(path, reason)
            else:
                yield path


def _parts(name: str) -> list[str]:
    """Return the path components of a name or an address, without scheme and host."""
    scheme, colon, rest = name.partition(":/")
    if colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+", scheme):
        # scheme://host/folder has a host, scheme:///folder and scheme:/folder have none
        rest = rest[1:].partition("/")[2] if rest[:1] == "/" and rest[1:2] != "/" else rest
    else:
        rest = name
    return [part for part in rest.split("/") if part]
