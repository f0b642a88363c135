"""Require a pyarrow release that can safely open untrusted files; shorten its messages."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from stepladder.errors import UsageError

FLOOR = (23, 0, 1)


@cache
def require_safe_pyarrow() -> None:
    """Raise an error if the installed pyarrow can execute code from an untrusted file.

    Raises:
        UsageError: names the required version.

    Source: CVE-2023-47248 (pickled extension types) and those fixed since.
    """
    import pyarrow

    refuse_older(pyarrow.__version__)


def refuse_older(found: str) -> None:
    """Raise an error if a version is older than the minimum.

    Raises:
        UsageError: names both versions.
    """
    if tuple(map(int, re.findall(r"\d+", found)[:3])) < FLOOR:
        floor = ".".join(map(str, FLOOR))
        raise UsageError(
            f"the installed pyarrow {found} is too old: a malicious file could run code on this "
            f"machine, which pyarrow {floor} prevents",
            fix=f"Upgrade it: pip install 'pyarrow>={floor}'",
        )


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message, truncated."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def extension_of(field: Any) -> str | None:
    """Return the name of a field's extension type; None if it is a plain type."""
    from pyarrow import BaseExtensionType

    if isinstance(field.type, BaseExtensionType):
        return str(field.type.extension_name)
    name = (field.metadata or {}).get(b"ARROW:extension:name")
    return None if name is None else name.decode(errors="replace")
