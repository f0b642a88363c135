"""Places in an object store: the one file that knows what becomes of `s3://` in a Path.

`Path("s3://bucket/key")` is `s3:/bucket/key`: two slashes become one. Options are Paths all the
same, so that a store, a mirror or an output may lie in either kind of place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

from stepladder.errors import UsageError

_ROOT: Final = "s3:"
_ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+")
_OF_S3: Final = {"s3", "s3a", "s3n"}
_SUPPORTED: Final = (
    "Give a folder of this machine or a mount, or s3://BUCKET/PREFIX; AWS_ENDPOINT_URL names any "
    "store that speaks S3."
)


@dataclass(frozen=True)
class ObjectPlace:
    """An object, or all objects whose keys begin alike.

    Attributes:
        bucket: its bucket.
        key: names within the bucket, joined by slashes; empty for the bucket itself.
    """

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @property
    def path(self) -> Path:
        """The place as an option holds it."""
        return Path(_ROOT, self.bucket, self.key)

    @property
    def name(self) -> str:
        """Last part of the key, or the bucket's name."""
        return self.key.rpartition("/")[2] or self.bucket

    def join(self, *names: str) -> ObjectPlace:
        """Return a place below this one."""
        return ObjectPlace(self.bucket, "/".join(part for part in (self.key, *names) if part))

    def beside(self, suffix: str) -> ObjectPlace:
        """Return the place whose name is this one's with an ending, as `STORE.features`."""
        return ObjectPlace(self.bucket, f"{self.key or self.bucket}{suffix}")


def object_place(path: PurePath | str) -> ObjectPlace | None:
    """Read a path that begins with `s3://`; None for any other, which is one of this machine.

    Raises:
        UsageError: if it names no bucket, a key that leads upwards, or a secret.
    """
    parts = PurePath(path).parts
    if not parts or parts[0] != _ROOT:
        return None
    if len(parts) == 1:
        raise UsageError("it names no bucket", where="s3://", fix="Write s3://BUCKET/PREFIX.")
    is_arn = parts[1].startswith("arn:")
    if "@" in parts[1] or (":" in parts[1] and not is_arn):
        raise secret_refused("s3", "/".join(parts[1:]))
    if ".." in parts:
        where = str(ObjectPlace(parts[1], "/".join(parts[2:])))
        raise UsageError("a key has no .. in it", where=where, fix="Write the place in full.")
    return ObjectPlace(parts[1], "/".join(parts[2:]))


def supported_place(path: PurePath | str, *, fix: str = _SUPPORTED) -> ObjectPlace | None:
    """Read a path that is written to, or read where it lies; None for one of this machine.

    Args:
        fix: what to give in place of an address that means no such place.

    Raises:
        UsageError: as `object_place` does, and for an address of another kind, which would become a
            folder here: `gs:/bucket`.
    """
    place = object_place(path)
    if place is None and is_address(path):
        raise address_refused(path, fix=place_meant(path) or fix)
    return place


def is_address(path: PurePath | str) -> bool:
    """Return True if a path is an address with a scheme, such as hdfs://host/photos."""
    return _ADDRESS.match(str(path)) is not None


def address_refused(path: PurePath | str, *, fix: str) -> UsageError:
    """Say that an address is not taken, without telling what may be secret in it."""
    shown = address_shown(path)
    scheme = shown.partition(":")[0]
    return UsageError(f"{scheme}:// addresses are not supported here", where=shown, fix=fix)


def place_meant(path: PurePath | str) -> str | None:
    """Say how a place is written that has another name among users of Spark."""
    scheme, _, place = address_shown(path).partition("://")
    if scheme.lower() in _OF_S3:
        return f"Write s3://{place.removeprefix('…@')}"
    if scheme.lower() in {"dbfs", "file"}:
        return f"Write {'/dbfs' if scheme.lower() == 'dbfs' else ''}/{place}"
    return None


def address_shown(path: PurePath | str) -> str:
    """Return an address as a person types it, without what may be secret in it."""
    match = _ADDRESS.match(str(path))
    if match is None:
        return str(path)
    return f"{match[1]}://{_without_secret(match[1], str(path)[match.end() :])}"


def _without_secret(scheme: str, rest: str) -> str:
    _, at, place = rest.rpartition("@")
    place, query, _ = place.partition("?")  # it may hold a signature
    if scheme.lower() in _OF_S3 and ":" in place.partition("/")[0]:
        place = "…"  # a key without the bucket that it was for
    return f"{'…@' if at else ''}{place}{'?…' if query else ''}"


def secret_refused(scheme: str, rest: str) -> UsageError:
    """Say that an address holds a key or a password, without telling it.

    Args:
        rest: what follows the scheme and two slashes.
    """
    _, at, place = rest.rpartition("@")
    return UsageError(
        "an address must not hold a key or a password",
        where=f"{scheme}://…{at}{place if at else ''}",
        why="Addresses are written into records and logs.",
        fix="Take it out, and give it by the environment; for S3 set AWS_PROFILE, or "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    )


def shown(path: PurePath) -> str:
    """Return a path as a person types it."""
    place = object_place(path)
    return str(path) if place is None else str(place)
