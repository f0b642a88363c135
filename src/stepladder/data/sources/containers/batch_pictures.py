"""The pictures of a column, whatever it holds them as, as JPEG, PNG or NPY."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.formats import BadPictureError, name_format
from stepladder.data.sources.containers.columns import Columns, ImageKind
from stepladder.data.sources.containers.pixels import (
    from_array_file,
    from_flat,
    from_spark_image,
    npy_bytes,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch
else:
    RecordBatch = Any

_BYTES_PER_PIXEL = 8  # 16-bit RGBA, not compressed at all
_BYTES_AROUND = 1 << 20


class BatchPictures:
    """The pictures of one batch."""

    def __init__(self, batch: RecordBatch, columns: Columns, config: PrepareConfig) -> None:
        column = batch.column(columns.image)
        self._paths: list[str] | None = None
        if columns.kind is ImageKind.STRUCT:
            from pyarrow import compute, types

            at = column.type.get_field_index("path")
            if at >= 0 and not types.is_null(column.type.field(at).type):
                self._paths = compute.struct_field(column, "path").to_pylist()
            column = compute.struct_field(column, "bytes")
        self._column = column
        self._max_pixels = config.max_pixels
        self._sides = [
            [option] * batch.num_rows
            if option is not None
            else (batch.column(name).to_pylist() if name else [None] * batch.num_rows)
            for option, name in (
                (config.pixel_height, columns.height),
                (config.pixel_width, columns.width),
            )
        ]
        self._kind = columns.kind

    def path(self, at: int) -> str | None:
        """Give the name that Hugging Face keeps beside the bytes."""
        return self._paths[at] if self._paths else None

    def read(self, at: int, where: str) -> tuple[bytes, str | None]:
        """Give the picture of a row as JPEG, PNG or NPY, or why there is none."""
        if not self._column[at].is_valid:
            return b"", f"is null ({where})"
        try:
            data = self._convert(at)
        except BadPictureError as error:
            return b"", error.what
        if not data:
            return b"", "is empty (0 bytes)"
        if len(data) > self._max_pixels * _BYTES_PER_PIXEL + _BYTES_AROUND:
            return b"", f"is {len(data)} bytes, larger than any picture allowed"
        return data, None

    def _convert(self, at: int) -> bytes:
        match self._kind:
            case ImageKind.SPARK:
                return from_spark_image(self._column[at].as_py())
            case ImageKind.FLAT:
                return self._flat(at)
            case ImageKind.NESTED:
                return self._nested(at)
        return self._bytes(at)

    def _bytes(self, at: int) -> bytes:
        data: bytes = self._column[at].as_py()
        height, width = (sides[at] for sides in self._sides)
        if height and width and name_format(data) == "an unknown format":
            return from_flat(data, height=height, width=width)
        return from_array_file(data, max_pixels=self._max_pixels)

    def _flat(self, at: int) -> bytes:
        scalar = self._column[at]
        is_list = hasattr(scalar, "values")
        values = scalar.values.to_numpy().tobytes() if is_list else scalar.as_py()
        height, width = (sides[at] for sides in self._sides)
        return from_flat(values, height=height, width=width)

    def _nested(self, at: int) -> bytes:
        from pyarrow import compute, types

        values = self._column[at].values
        shape = [len(values)]
        while not types.is_uint8(values.type):
            lengths = compute.unique(compute.list_value_length(values))
            if len(lengths) != 1 or not lengths[0].is_valid:
                raise BadPictureError("is nested lists of unequal lengths")
            shape.append(lengths[0].as_py())
            values = values.flatten()
        if len(shape) == 3 and shape[2] == 1:
            shape = shape[:2]
        return npy_bytes(values.to_numpy(zero_copy_only=False).reshape(shape))
