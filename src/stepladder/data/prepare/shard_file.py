"""A file of a store while it is made: pictures in, a Parquet file and its record out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.encode import ReadyPicture, Seen
from stepladder.data.prepare.plan import ShardPlan
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.prepare.shard_record import Finished
from stepladder.data.prepare.writer import ShardWriter
from stepladder.records import write_json

Chunk = Sequence[ReadyPicture | Bad]
"""Pictures that were decoded together, in the order of the plan."""


class StoppedError(Exception):
    """The pictures of a file stopped coming; whoever handed them over knows why."""


class ShardFile:
    """A file that is being made; what is left of it after an error is removed.

    Args:
        plan: which pictures.
        folder: where the file goes.
        record: where its record goes, which says that it is finished.
        config: how pictures are kept.
    """

    def __init__(
        self, plan: ShardPlan, *, folder: Path, record: Path, config: PrepareConfig
    ) -> None:
        self._plan, self._record, self._config = plan, record, config
        self._path = folder / plan.name
        self._writer: ShardWriter | None = None  # none while there is no good picture
        self._seen: list[Seen] = []
        self._bad: list[Bad] = []

    def add(self, chunk: Chunk) -> None:
        """Write the next pictures."""
        for item in chunk:
            if isinstance(item, Bad):
                self._bad.append(item)
                continue
            if self._writer is None:
                self._writer = self._open()
            row = item.seen.row
            self._writer.add_page(sha256=row.sha256, path=row.path, label=row.label, page=item.page)
            self._seen.append(item.seen)

    def seal(self) -> None:
        """Write what is left: after it nothing is missing but that the disk has it.

        Raises:
            StoppedError: if not all pictures of the plan came.
        """
        if len(self._seen) + len(self._bad) < len(self._plan.rows):
            raise StoppedError
        if self._writer is not None:
            self._writer.seal()

    def finish(self) -> Finished:
        """Wait for the disk, show the file under its name, and write its record."""
        with self:
            info = None if self._writer is None else self._writer.close()
            finished = Finished.of(self._plan.key, info, self._seen, self._bad)
            write_json(self._record, finished.to_json())
        return finished

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._writer is not None:
            self._writer.abort()

    def _open(self) -> ShardWriter:
        config = self._config
        return ShardWriter(
            self._path, encoding=config.encoding, size=config.size, compression=config.compression
        )
