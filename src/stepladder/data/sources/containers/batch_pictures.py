"""Convert the pictures of a column, in any supported form, to JPEG, PNG or NPY."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.formats import (
    NPY_MAGIC,
    BadPictureError,
    name_format,
    read_npy_header,
)
from stepladder.data.sources.containers.columns import Columns, ImageKind, column_of
from stepladder.data.sources.label_tables.paths import flag_of, is_found, parse_format, search
from stepladder.data.sources.source_file import read_file
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyarrow import RecordBatch

    Pixels = NDArray[np.uint8]
else:
    RecordBatch = Pixels = Any

_SURE_FORMATS = frozenset({"JPEG", "PNG", "NPY"})  # magic bytes that pixels hardly begin with
_BYTES_PER_PIXEL = 8  # 16-bit RGBA, uncompressed
_BYTES_AROUND = 1 << 20


class BatchPictures:
    """The pictures of one batch.

    Args:
        batch: the rows.
        columns: the columns to read.
        config: options of prepare.
        folder: folder that relative paths of files start from; None: no files can be read.
        name: the table, for errors.

    Attributes:
        num_files: number of pictures that were read from files outside the table.
    """

    def __init__(
        self,
        batch: RecordBatch,
        columns: Columns,
        config: PrepareConfig,
        *,
        folder: Path | None = None,
        name: str = "",
    ) -> None:
        column = column_of(batch, columns.image)
        self.num_files = 0
        self._folder = folder
        self._name = name
        self._reader = parse_format(config.path_format)
        self._lengths: list[int | None] | None = None
        if columns.is_list:
            column, self._lengths = _first_of_lists(column)
        self._paths: list[str | None] | None = None
        if columns.kind in {ImageKind.STRUCT, ImageKind.PATH} and _is_struct(column.type):
            from pyarrow import compute, types

            at = column.type.get_field_index("path")
            if at >= 0 and not types.is_null(column.type.field(at).type):
                self._paths = compute.struct_field(column, "path").to_pylist()
            if columns.kind is ImageKind.STRUCT:
                column = compute.struct_field(column, "bytes")
        elif columns.kind is ImageKind.PATH:
            self._paths = column.to_pylist()
        self._column = column
        self._max_pixels = config.max_pixels
        self._sides = [
            [option] * batch.num_rows
            if option is not None
            else (column_of(batch, name).to_pylist() if name else [None] * batch.num_rows)
            for option, name in (
                (config.pixel_height, columns.height),
                (config.pixel_width, columns.width),
            )
        ]
        self._kind = columns.kind

    def path(self, at: int) -> str | None:
        """Return the file name that Hugging Face stores next to the bytes."""
        return self._paths[at] if self._paths else None

    def read(self, at: int, where: str) -> tuple[bytes, str | None]:
        """Return the picture of a row as JPEG, PNG or NPY, or the reason why it is unusable."""
        try:
            data = self._data(at, where)
        except BadPictureError as error:
            return b"", error.what
        if not data:
            return b"", "is empty (0 bytes)"
        if len(data) > self._max_pixels * _BYTES_PER_PIXEL + _BYTES_AROUND:
            return b"", f"is {len(data)} bytes, more than --max-pixels allows for a picture"
        return data, None

    def _data(self, at: int, where: str) -> bytes:
        num_pictures = 1 if self._lengths is None else self._lengths[at]
        if num_pictures != 1 and num_pictures is not None:
            raise BadPictureError(
                f"is a list of {num_pictures} pictures ({where}); a row must have one"
            )
        if self._kind is not ImageKind.PATH and self._column[at].is_valid:
            return self._convert(at)
        path = self.path(at)
        if not path:
            raise BadPictureError(f"is null ({where})")
        return self._file(path)

    def _file(self, path: str) -> bytes:
        """Read a picture that the table has only the path of."""
        self.num_files += 1
        if self._folder is None or "://" in path:
            raise BadPictureError(
                f"has only the path of a file, {path[:100]!r}, which cannot be read from here"
            )
        wanted = self._reader(path)
        if self.num_files == 1 and not is_found(self._folder, wanted):
            self._look_elsewhere(self._folder, wanted)
        try:
            return read_file(str(self._folder / wanted), max_pixels=self._max_pixels)[0]
        except BadPictureError as error:
            raise BadPictureError(
                f"{error.what}: the file {path[:100]!r}, which the table names"
            ) from None

    def _look_elsewhere(self, folder: Path, wanted: str) -> None:
        """Refuse to read paths that start from another folder, such as the one above."""
        paths = [path for path in self._paths or () if path]
        if any(is_found(folder, self._reader(path)) for path in paths):
            return
        found = search(paths, folder)[:1]
        if found and not found[0].cut:
            raise DataError(
                f"no picture {printable(wanted)[:100]!r} in {folder}: "
                f"{printable(found[0](paths[0]))} exists",
                where=self._name or None,
                fix=f"Add {flag_of(found[0])} to the command.",
            )

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
        kind = name_format(data)
        if height and width and kind not in _SURE_FORMATS:
            fits = len(data) in {height * width, 3 * height * width}
            if fits or kind == "an unknown format":
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
                raise BadPictureError("has nested lists of unequal length")
            shape.append(lengths[0].as_py())
            values = values.flatten()
        if len(shape) == 3 and shape[2] == 1:
            shape = shape[:2]
        return npy_bytes(values.to_numpy(zero_copy_only=False).reshape(shape))


def _is_struct(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_struct(kind))


def _first_of_lists(column: Any) -> tuple[Any, list[int | None]]:
    """Return the first picture of each list, null for an empty list, and the lengths."""
    from pyarrow import array, compute

    lengths: list[int | None] = compute.list_value_length(column).to_pylist()
    first, before = [], 0
    for length in lengths:
        first.append(before if length else None)
        before += length or 0
    return column.flatten().take(array(first, type="int64")), lengths


_HEADER_START = 10
_ALIGNED_TO = 64
_NPY_AROUND_BYTES = 4096
_ZIP_MAGIC = b"PK\x03\x04"
_UNDEFINED_MODE = -1  # Spark could not decode it


def npy_bytes(pixels: Pixels) -> bytes:
    """Return pixels, uint8 (h, w) or (h, w, c), as an NPY file; the bytes are deterministic."""
    shape = ", ".join(str(side) for side in pixels.shape)
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({shape}), }}"
    padded = -(-(_HEADER_START + len(text) + 1) // _ALIGNED_TO) * _ALIGNED_TO
    header = text.ljust(padded - _HEADER_START - 1).encode() + b"\n"
    magic = NPY_MAGIC + b"\x01\x00" + len(header).to_bytes(2, "little")
    return magic + header + np.ascontiguousarray(pixels).tobytes()


def from_flat(values: bytes, *, height: int | None, width: int | None) -> bytes:
    """Return row-major pixels, channels last, as an NPY file.

    Args:
        values: h · w grey values, or h · w · 3 RGB values.
        height, width: size of the picture; None: it is a square.

    Raises:
        BadPictureError: if the number of values does not match the size.
    """
    num_values = len(values)
    if height is None and width is None:
        height = width = _side_of_square(num_values)
    if not height or not width or height < 0 or width < 0:
        raise BadPictureError(
            f"has {num_values} pixel values, but its height and width are not known: set "
            "--pixel-height and --pixel-width"
        )
    num_channels, rest = divmod(num_values, height * width)
    if rest or num_channels not in {1, 3}:
        raise BadPictureError(
            f"has {num_values} pixel values, but {width}x{height} pixels have "
            f"{height * width} (grey) or {3 * height * width} (RGB)"
        )
    shape = (height, width) if num_channels == 1 else (height, width, 3)
    return npy_bytes(np.frombuffer(values, dtype=np.uint8).reshape(shape))


def from_spark_image(image: dict[str, Any]) -> bytes:
    """Return a row of Spark's image data source as an NPY file.

    BGR becomes RGB; alpha is blended onto white.

    Raises:
        BadPictureError: if Spark could not decode it, or its fields are inconsistent.

    Source: Apache Spark, `org.apache.spark.ml.image.ImageSchema`; modes are OpenCV types.
    """
    height, width = image["height"], image["width"]
    num_channels, mode, data = image["nChannels"], image["mode"], image["data"]
    if mode == _UNDEFINED_MODE or not data:
        raise BadPictureError("is empty, because Spark could not decode the picture file")
    is_8_bit = mode == 8 * (num_channels - 1)  # CV_8UC1, CV_8UC3, CV_8UC4
    if num_channels not in {1, 3, 4} or not is_8_bit or min(height, width) < 1:
        raise BadPictureError(
            f"is a Spark image of mode {mode} with {num_channels} channels; only 8-bit pictures "
            "with 1, 3 or 4 channels can be read"
        )
    if len(data) != height * width * num_channels:
        raise BadPictureError(
            f"has {len(data)} values, but {width}x{height} pixels with {num_channels} channels "
            f"need {height * width * num_channels}"
        )
    pixels = np.frombuffer(data, dtype=np.uint8).reshape(height, width, num_channels)
    if num_channels == 1:
        return npy_bytes(pixels[..., 0])
    colours = pixels[..., 2::-1]
    if num_channels == 3:
        return npy_bytes(colours)
    alpha = pixels[..., 3:].astype(np.uint16)
    blended = colours * alpha + 255 * (255 - alpha)
    return npy_bytes(((blended + 127) // 255).astype(np.uint8))


def from_array_file(data: bytes, *, max_pixels: int) -> bytes:
    """Return the only array in a file of `numpy.savez`; other data is returned unchanged.

    Raises:
        BadPictureError: if it is damaged, is not an array of pixels, or exceeds max_pixels.
    """
    if not data.startswith(_ZIP_MAGIC):
        return data
    most_bytes = 3 * max_pixels + _NPY_AROUND_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            if len(names) != 1:
                raise BadPictureError(
                    f"is an .npz file (of numpy.savez) with {len(names)} arrays instead of one"
                )
            with archive.open(names[0]) as file:  # the size in its header is not trusted
                found = file.read(most_bytes + 1)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise BadPictureError(f"cannot be decoded: {error}") from None
    if len(found) > most_bytes:
        raise BadPictureError(
            f"unpacks to more than {most_bytes} bytes, which --max-pixels does not allow"
        )
    read_npy_header(found)
    return found


def _side_of_square(num_values: int) -> int | None:
    """Return the side of an RGB or grey square; no number of values fits both."""
    for num_channels in (3, 1):
        side = math.isqrt(num_values // num_channels)
        if side and side * side * num_channels == num_values:
            return side
    return None
