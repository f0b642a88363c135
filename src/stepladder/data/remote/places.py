"""Parse addresses in an object store, including `s3://` addresses stored in a Path.

`Path("s3://bucket/key")` is `s3:/bucket/key`: two slashes become one. Options are still Paths, so
that a store, a mirror or an output can be either local or in an object store.
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
    "Use a local or mounted folder, or s3://BUCKET/PREFIX. For other S3-compatible stores set "
    "AWS_ENDPOINT_URL."
)


@dataclass(frozen=True)
class ObjectPlace:
    """The address of an object, or of all objects below a prefix.

    Attributes:
        bucket: name of the bucket.
        key: key or prefix in the bucket; empty for the bucket itself.
    """

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @property
    def path(self) -> Path:
        """The address as a Path, as stored in options."""
        return Path(_ROOT, self.bucket, self.key)

    @property
    def name(self) -> str:
        """The last component of the key, or the bucket's name."""
        return self.key.rpartition("/")[2] or self.bucket

    def join(self, *names: str) -> ObjectPlace:
        """Return an address below this one."""
        return ObjectPlace(self.bucket, "/".join(part for part in (self.key, *names) if part))

    def beside(self, suffix: str) -> ObjectPlace:
        """Return the address with a suffix added to its name, such as `STORE.features`."""
        return ObjectPlace(self.bucket, f"{self.key or self.bucket}{suffix}")


def object_place(path: PurePath | str) -> ObjectPlace | None:
    """Parse a path that begins with `s3://`; return None for any other path.

    Raises:
        UsageError: if it has no bucket, has `..` in the key, or contains a secret.
    """
    parts = PurePath(path).parts
    if not parts or parts[0] != _ROOT:
        return None
    if len(parts) == 1:
        raise UsageError(
            "the address names no bucket", where="s3://", fix="Write s3://BUCKET/PREFIX."
        )
    is_arn = parts[1].startswith("arn:")
    if "@" in parts[1] or (":" in parts[1] and not is_arn):
        raise secret_refused("s3", "/".join(parts[1:]))
    if ".." in parts:
        where = str(ObjectPlace(parts[1], "/".join(parts[2:])))
        raise UsageError(
            "the address contains .., which has no meaning in an object store",
            where=where,
            fix="Write the full address, without .. in it.",
        )
    return ObjectPlace(parts[1], "/".join(parts[2:]))


def supported_place(path: PurePath | str, *, fix: str = _SUPPORTED) -> ObjectPlace | None:
    """Parse the address of a store or output; return None for a local path.

    Args:
        path: path or address.
        fix: the fix in the error for an unsupported address.

    Raises:
        UsageError: see `object_place`; also for unsupported schemes, which would otherwise become
            a local folder: `gs:/bucket`.
    """
    place = object_place(path)
    if place is None and is_address(path):
        raise address_refused(path, fix=place_meant(path) or fix)
    return place


def is_address(path: PurePath | str) -> bool:
    """Return True if a path is an address with a scheme, such as hdfs://host/photos."""
    return _ADDRESS.match(str(path)) is not None


def address_refused(path: PurePath | str, *, fix: str) -> UsageError:
    """Return the error for an unsupported address, without secrets in it."""
    shown = address_shown(path)
    scheme = shown.partition(":")[0]
    return UsageError(f"{scheme}:// addresses are not supported here", where=shown, fix=fix)


def place_meant(path: PurePath | str) -> str | None:
    """Return a fix for address schemes of Spark, such as s3a and dbfs; None for others."""
    scheme, _, place = address_shown(path).partition("://")
    if scheme.lower() in _OF_S3:
        return f"Use s3://{place.removeprefix('…@')}"
    if scheme.lower() in {"dbfs", "file"}:
        return f"Use {'/dbfs' if scheme.lower() == 'dbfs' else ''}/{place}"
    return None


def address_shown(path: PurePath | str) -> str:
    """Return an address as the user writes it, without secrets."""
    match = _ADDRESS.match(str(path))
    if match is None:
        return str(path)
    return f"{match[1]}://{_without_secret(match[1], str(path)[match.end() :])}"


def _without_secret(scheme: str, rest: str) -> str:
    _, at, place = rest.rpartition("@")
    place, query, _ = place.partition("?")  # may contain a signature
    if scheme.lower() in _OF_S3 and ":" in place.partition("/")[0]:
        place = "…"  # probably a secret key without its bucket
    return f"{'…@' if at else ''}{place}{'?…' if query else ''}"


def secret_refused(scheme: str, rest: str) -> UsageError:
    """Return the error for an address that contains a key or a password, without it.

    Args:
        scheme: scheme of the address.
        rest: the address after the scheme and two slashes.
    """
    _, at, place = rest.rpartition("@")
    return UsageError(
        "the address contains an access key or a password",
        where=f"{scheme}://…{at}{place if at else ''}",
        why="It would be saved in readable form, because addresses are written to logs.",
        fix="Remove it from the address, and set environment variables instead: for S3, "
        "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    )


def shown(path: PurePath) -> str:
    """Return a path or address as the user writes it."""
    place = object_place(path)
    return str(path) if place is None else str(place)
