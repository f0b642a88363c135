"""Rows that were read before and lie in memory: what a batch of them costs is its copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepladder.data.store.shard import Shard

MAX_ROWS = 4_000_000
"""Rows whose places are kept in plain arrays, 13 bytes each; larger splits are read by shard."""


class HotRows:
    """Where each row of a split of pixels lies, and which were read and checked.

    Made anew when a file has changed: what was checked before then counts for nothing.

    Args:
        shards: of the split, in order; their pages not packed.
        num_bytes: of a picture.
        is_trusted: whether rows need no check before the first read.

    Raises:
        DataError: if a file or its index was cut or has grown.
    """

    def __init__(self, shards: Sequence[Shard], *, num_bytes: int, is_trusted: bool) -> None:
        for shard in shards:
            shard.check()
        sizes = [shard.info.num_rows for shard in shards]
        self._shards = shards
        self._num_bytes = num_bytes
        self._shard_of = np.repeat(np.arange(len(shards), dtype=np.int32), sizes)
        self._offsets = np.concatenate([shard.index.offsets for shard in shards])
        fits = [shard.index.lengths == num_bytes for shard in shards]
        self._checked = np.concatenate(fits) & is_trusted
        self._num_changes = [shard.num_changes for shard in shards]
        self._mappings: dict[int, np.ndarray] = {}

    def is_unchanged(self, rows: np.ndarray) -> bool:
        """Tell whether the files of these rows are as they were; call before `copy_into`.

        Raises:
            DataError: if one was cut or has grown.
        """
        for idx in set(self._shard_of[rows].tolist()):
            self._shards[idx].is_unchanged()
            if self._shards[idx].num_changes != self._num_changes[idx]:  # whoever has seen it
                return False
        return True

    def copy_into(self, rows: np.ndarray, out: np.ndarray) -> bool:
        """Fill `out`, uint8 (len(rows), num_bytes), if all of these rows can be had this way.

        Returns:
            False where a row was not checked yet: the shards read it, and `mark` says so after.
        """
        if not self._checked[rows].all():
            return False
        shard_of, num_bytes = self._shard_of[rows].tolist(), self._num_bytes
        mappings = self._mappings
        for idx in set(shard_of) - mappings.keys():
            mapped = self._shards[idx].mapping
            if mapped is None:
                return False
            mappings[idx] = mapped
        places = zip(shard_of, self._offsets[rows].tolist(), strict=True)
        for place, (idx, offset) in enumerate(places):
            out[place] = mappings[idx][offset : offset + num_bytes]
        return True

    def mark(self, rows: np.ndarray) -> None:
        """Say that rows were read and found sound, or need no check."""
        self._checked[rows] = True
