"""Write regular expressions on the paths of pictures, for --label-pattern and --group-by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from stepladder.data.sources.walk import printable

_PLAIN: Final = re.compile(r"\\([ \-&#~])")  # escaped by re.escape for verbose patterns only


def start_of(folders: Iterable[str]) -> str:
    """Return the start of an expression that matches what is above some folders.

    Args:
        folders: their paths, relative to the source.
    """
    above = sorted({folder.rpartition("/")[0] for folder in folders})
    if above == [""]:
        return "^"
    if len(above) == 1:
        return f"^{escaped(above[0])}/"
    depths = {folder.count("/") + 1 if folder else 0 for folder in above}
    if len(depths) == 1:
        return "^" + "[^/]+/" * depths.pop()
    return f"^(?:{'|'.join(f'{escaped(one)}/' if one else '' for one in reversed(above))})"


def escaped(path: str) -> str:
    """Return an expression for a path itself."""
    return _PLAIN.sub(r"\1", re.escape(printable(path)))
