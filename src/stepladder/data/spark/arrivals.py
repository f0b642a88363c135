"""What executors have finished, as the driver sees it in the shared folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from stepladder.data.prepare.plan import ShardPlan
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.prepare.shard_record import Finished
from stepladder.data.prepare.shard_work import ShardMaker
from stepladder.errors import ResourceError


class Arrivals:
    """Tells of the shards of a plan as their records appear in the shared folder.

    Args:
        pending: the shards.
        records: reads the records.
        folder: where they appear.
        on_row: called for each picture of a shard, with what is wrong if it is bad.
    """

    def __init__(
        self,
        pending: Sequence[ShardPlan],
        records: ShardMaker,
        folder: Path,
        on_row: Callable[[Bad | None], None],
    ) -> None:
        self._pending = pending
        self._waiting = {f"{shard.name}.json": shard for shard in pending}
        self._records, self._folder, self._on_row = records, folder, on_row

    def look(self) -> None:
        """Tell of what has come since the last look."""
        with os.scandir(self._folder) as entries:
            new = [entry.name for entry in entries if entry.name in self._waiting]
        for name in new:
            done = self._records.recorded(self._waiting[name])
            if done is None:
                continue
            del self._waiting[name]
            for _ in done.labels:
                self._on_row(None)
            for bad in done.bad:
                self._on_row(bad)

    def finished(self) -> dict[str, Finished]:
        """Give what the records say now that no task is left, by name.

        All are read again: Spark may have had a shard made twice, and the last one is there.

        Raises:
            ResourceError: if some have not come.
        """
        self.look()
        found = {shard.name: self._records.recorded(shard) for shard in self._pending}
        done = {name: one for name, one in found.items() if one is not None}
        missing = sorted(found.keys() - done.keys())
        if missing:
            raise ResourceError(
                f"{len(missing)} files that executors wrote are not to be seen here, "
                f"{missing[0]} among them",
                where=str(self._folder),
                fix="The storage shows them late: type the same command again in a minute.",
            )
        return done
