"""Pictures as data: URIs, so that a page loads nothing."""

from __future__ import annotations

import base64
from typing import Final

MAX_PICTURE_BYTES: Final = 9_000
"""Larger pictures are not shown: in base64, twelve of them are half of the largest report."""
_KINDS: Final = ((b"\xff\xd8\xff", "jpeg"), (b"\x89PNG\r\n\x1a\n", "png"))


def picture_address(data: bytes) -> str:
    """Return a picture as a data: URI; empty if it is not a small JPEG or PNG."""
    kind = next((kind for magic, kind in _KINDS if data.startswith(magic)), None)
    if kind is None or len(data) > MAX_PICTURE_BYTES:
        return ""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
