"""Colours of examples in the files or stored bytes that they are read from."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset

from stepladder.data.reading.datasets import DatasetSource
from stepladder.data.store.store import StoreSplit

_SUFFIXES: Final = frozenset(Image.registered_extensions()) - {".pdf", ".mpg", ".mpeg", ".h5"}
_MAX_DEPTH = 6  # of wrappers around the dataset with the list of files
_MAX_COLUMNS = 4  # lists of files that a dataset holds, such as pictures and masks
_DRAFT_SIDE = 64  # JPEG files are decoded to this size: only colours are needed
_KEYS = ("path", "file", "filename", "file_name", "image_path", "bytes", "image")

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]
Origin = Callable[[int], Path | bytes | Pixels | None]


def origins(data: Any, *, depth: int = _MAX_DEPTH) -> list[Origin]:
    """Return where each row of a split comes from; several if a dataset lists several files.

    Searches Subset, ConcatDataset and wrappers that hold a dataset of the same length for lists of
    paths or of encoded pictures, alone or in tuples such as (path, label). A row of a store is read
    with its own reader, always as RGB.
    """
    if depth == 0 or data is None:
        return []
    if isinstance(data, StoreSplit):
        return [lambda row: _stored(data, row)]
    if isinstance(data, (DatasetSource, Subset, ConcatDataset)):
        return _of_wrapper(data, depth - 1)
    return _listed(data) or _held(data, depth - 1)


def _of_wrapper(data: DatasetSource | Subset[Any] | ConcatDataset[Any], depth: int) -> list[Origin]:
    if isinstance(data, DatasetSource):
        return origins(data.data, depth=depth)
    if isinstance(data, Subset):
        return [_moved(origin, data.indices) for origin in origins(data.dataset, depth=depth)]
    parts = [origins(part, depth=depth) for part in data.datasets]
    return [_joined(parts, data.cumulative_sizes)] if all(parts) else []


def _listed(data: Any) -> list[Origin]:
    """Find a dataset's lists of files of its own length."""
    held, length = _attributes(data), _length(data)
    columns = [column for value in held for column in _columns(value, length)]
    roots = [Path(value) for value in held if isinstance(value, (str, Path)) and _is_folder(value)]
    named = (_named(column, roots) for column in columns)
    return list(islice((origin for origin in named if origin is not None), _MAX_COLUMNS))


def _held(data: Any, depth: int) -> list[Origin]:
    """Search a dataset's attributes for another dataset of the same length."""
    length = _length(data)
    inner = [
        value
        for value in _attributes(data)
        if isinstance(value, (Dataset, StoreSplit)) and _length(value) == length
    ]
    return next((found for value in inner if (found := origins(value, depth=depth))), [])


def colours(origin: Origin, rows: Sequence[int], *, seconds: float) -> Floats:
    """Return the mean red, green and blue of rows, 0 to 255; NaN where there is no picture.

    Args:
        seconds: after which the remaining rows are NaN, too.

    Shapes: (n, 3).
    """
    ends = time.perf_counter() + seconds
    found = np.full((len(rows), 3), np.nan)
    for place, row in enumerate(rows):
        if time.perf_counter() > ends:
            break
        found[place] = _mean(origin(row))
    return found


def _mean(picture: Path | bytes | Pixels | None) -> Floats | float:
    if picture is None:
        return np.nan
    if isinstance(picture, np.ndarray):
        return np.asarray(picture.reshape(-1, 3).mean(axis=0), dtype=np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about damaged files, which are reported elsewhere
        try:
            file = io.BytesIO(picture) if isinstance(picture, bytes) else picture
            with Image.open(file) as image:
                image.draft("RGB", (_DRAFT_SIDE, _DRAFT_SIDE))
                pixels = np.asarray(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            return np.nan
    return np.asarray(pixels.reshape(-1, 3).mean(axis=0), dtype=np.float64)


def _stored(split: StoreSplit, row: int) -> Pixels | None:
    out = np.empty((1, *split.picture_shape), dtype=np.uint8)
    StoreSplit.read_into(split, np.array([row]), out)  # a subclass may give other pixels
    return out[0] if out.shape[-1] == 3 else None


def _moved(origin: Origin, indices: Sequence[int]) -> Origin:
    return lambda row: origin(int(indices[row]))


def _joined(parts: list[list[Origin]], ends: Sequence[int]) -> Origin:
    def find(row: int) -> Path | bytes | Pixels | None:
        part = int(np.searchsorted(ends, row, side="right"))
        return parts[part][0](row - (ends[part - 1] if part else 0))

    return find


# --- lists that name files


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


def _attributes(data: Any) -> list[Any]:
    return list(getattr(data, "__dict__", {}).values())


def _is_folder(path: str | Path) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):  # a string that cannot be a path
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _columns(value: Any, length: int | None) -> Iterator[Any]:
    """Yield candidates for lists of files: lists, arrays, and columns of a DataFrame."""
    if _length(value) != length or not length:
        return
    is_names = isinstance(value, np.ndarray) and value.ndim >= 1 and value.dtype.kind in "OU"
    if isinstance(value, (list, tuple)) or is_names:
        yield value
    elif hasattr(value, "columns") and hasattr(value, "iloc"):
        for name in value.columns:
            yield value[name].to_numpy()


def _named(column: Any, roots: list[Path]) -> Origin | None:
    """Read a list as a list of files; None if its first or last entry is not a picture."""

    def find(row: int) -> Path | bytes | None:
        return _picture(column[row], roots)

    is_file = find(0) is not None and find(len(column) - 1) is not None
    return find if is_file else None


def _picture(entry: Any, roots: list[Path]) -> Path | bytes | None:
    """Return the first file or encoded picture in an entry, such as (path, label)."""
    parts: list[Any] = [entry]
    if isinstance(entry, Mapping):
        parts = [entry[key] for key in _KEYS if key in entry]
    elif isinstance(entry, (list, tuple, np.ndarray)):
        parts = list(entry)
    for part in parts:
        if isinstance(part, bytes) and len(part) > 16:
            return part if _opens(part) else None
        if not isinstance(part, (str, Path)) or Path(part).suffix.lower() not in _SUFFIXES:
            continue
        places = (Path(part), *(root / part for root in roots))
        return next((place for place in places if _is_file(place)), None)
    return None


def _opens(encoded: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(encoded)):
            return True
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return False
