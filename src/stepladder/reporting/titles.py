"""Readable titles of identifiers, such as those of rungs and checks."""

from __future__ import annotations

from typing import Final

_SPELLED: Final = {
    "cpu": "CPU",
    "gpu": "GPU",
    "jpeg": "JPEG",
    "lr": "learning rate",
    "num": "number of",
}


def titled(name: str) -> str:
    """Return the title of an identifier: `Cached features` for `cached_features`."""
    title = " ".join(_SPELLED.get(word, word) for word in name.split("_"))
    return title[:1].upper() + title[1:]
