"""Which files of a store a picture goes into, by its sha256: looked up in a mapped, sorted file."""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path

_HASH_BYTES = 32
_ENTRY_BYTES = _HASH_BYTES + 4


def write_routing(path: Path, entries: Iterable[tuple[bytes, int]]) -> None:
    """Write (sha256, number of a file) of each picture that is wanted."""
    lines = sorted({sha256 + number.to_bytes(4) for sha256, number in entries})
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(b"".join(lines))
    temporary.replace(path)


class Routing(Sequence[bytes]):
    """What `write_routing` wrote, as a sorted sequence of hashes."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size = path.stat().st_size
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._num = size // _ENTRY_BYTES

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, at: int) -> bytes:  # type: ignore[override]
        return self._data[at * _ENTRY_BYTES : at * _ENTRY_BYTES + _HASH_BYTES]

    def files_of(self, sha256: bytes) -> list[int]:
        """Give the numbers of the files that want a picture; none for most of a finished store."""
        numbers = []
        at = bisect.bisect_left(self, sha256)
        while at < self._num and self[at] == sha256:
            start = at * _ENTRY_BYTES + _HASH_BYTES
            numbers.append(int.from_bytes(self._data[start : start + 4]))
            at += 1
        return numbers
