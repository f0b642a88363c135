"""What tasks of Spark do with the rows of a frame: hash pictures, and read them once more."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepladder.config.choices import Encoding, JpegSize
from stepladder.data.decoding.formats import NPY_MAGIC
from stepladder.data.sources.containers.columns import Columns
from stepladder.data.sources.containers.parquet import BatchPictures, checked_label, split_of_cell
from stepladder.data.spark.row_tasks import RowTasks, handed
from stepladder.data.spark.site import telling
from stepladder.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    Batches = Iterator[pa.RecordBatch]
else:
    Batches = Any

FACTS = (
    "sha256 binary, size long, reason string, path string, label string, number long, "
    "split string, picture_group string"
)


@dataclass(frozen=True, kw_only=True)
class FrameTasks(RowTasks):
    """What tasks that are given rows of a frame are told.

    Attributes:
        columns: which hold what.
        has_labels: whether there is a column of labels; else folders of paths are the classes.
    """

    columns: Columns
    has_labels: bool

    def facts(self, batches: Batches) -> Batches:
        """Hash each picture, and give what a plan needs of its row."""
        with telling(self.site):
            yield from self._facts(handed(batches))

    def pictures(self, batches: Batches) -> Iterator[bytes]:
        """Read the pictures of a frame's rows."""
        for batch in batches:
            yield from (data for _, data, reason in self._read(batch) if reason is None)

    def _facts(self, batches: Batches) -> Batches:
        import pyarrow as pa

        for batch in batches:
            rows = [self._fact(batch, at, data, reason) for at, data, reason in self._read(batch)]
            names = [part.split()[0] for part in FACTS.split(", ")]
            kinds = [pa.binary(), pa.int64(), *[pa.string()] * 3, pa.int64(), *[pa.string()] * 2]
            columns = zip(*rows, strict=True) if rows else [[] for _ in names]
            arrays = [pa.array(list(c), kind) for c, kind in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names)

    def _fact(self, batch: pa.RecordBatch, at: int, data: bytes, reason: str | None) -> tuple:  # type: ignore[type-arg]
        columns, config = self.columns, self.config
        is_kept = config.encoding is Encoding.JPEG and config.jpeg_size is JpegSize.ORIGINAL
        if is_kept and data.startswith(NPY_MAGIC):
            raise UsageError(
                "the source holds pixels, and a store of original JPEGs keeps files as they are",
                where="DataFrame",
                fix="Choose --encoding pixels, or --jpeg-size resized.",
            )
        path = _cell(batch, columns.path, at)
        where = "DataFrame" if path is None else f"DataFrame: {path}"
        label: str | int | None = None
        if self.has_labels:
            label = checked_label(batch.column(columns.label)[at].as_py(), columns.label, where)
        split = None
        if columns.split is not None:
            split = split_of_cell(_cell(batch, columns.split, at), where).value
        group = _cell(batch, columns.group, at)
        is_number = isinstance(label, int)
        return (
            b"" if reason else hashlib.sha256(data).digest(),
            len(data),
            reason,
            path,
            None if is_number else label,
            label if is_number else None,
            split,
            None if group is None else str(group),
        )

    def _read(self, batch: pa.RecordBatch) -> Iterator[tuple[int, bytes, str | None]]:
        pictures = BatchPictures(batch, self.columns, self.config)
        for at in range(batch.num_rows):
            yield at, *pictures.read(at, "DataFrame")


def _cell(batch: pa.RecordBatch, name: str | None, at: int) -> Any:
    return None if name is None else batch.column(name)[at].as_py()
