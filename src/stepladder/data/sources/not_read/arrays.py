"""Pictures in arrays: NumPy's .npz and .npy, and MNIST's idx files, with how to convert them.

They are not read, because arrays have no files to name in reports: a typed command writes them as
class folders of PNG files.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from stepladder.data.sources.not_read.unread_formats import (
    AS_BYTES,
    Values,
    is_idx,
    range_of,
    start_of_array,
)
from stepladder.data.sources.splits.split_names import SPLIT_WORDS
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError

_IDX_UBYTE: Final = 8
_IMAGES: Final = frozenset({"x", "image", "images", "img", "imgs", "data", "picture", "pictures"})
_LABELS: Final = frozenset({"y", "label", "labels", "target", "targets", "class", "classes"})
_SPLITS: Final = {**{word: split.value for word, split in SPLIT_WORDS.items()}, "t10k": "test"}
_WORD: Final = re.compile(  # x_train, trainX, Xtrain
    r"(?<=train)(?=[xy]$)|(?<=test)(?=[xy]$)|(?<=val)(?=[xy]$)|(?<=^[xy])(?=train|test|val)|[^a-z0-9]+"
)
_MIN_DIMS: Final = 3  # of the pictures: n, h, w
_MAX_SHOWN: Final = 6
_Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """How a script reads arrays by name.

    Attributes:
        what: for messages.
        imports, read: Python code; `d(name)` is the array, `s[1]` the file or folder.
    """

    what: str
    imports: str
    read: str


_NPZ: Final = _Kind(
    what="NumPy arrays (.npz)", imports="numpy", read="d=numpy.load(s[1]).__getitem__;"
)
_NPY: Final = _Kind(
    what="NumPy arrays (.npy)", imports="numpy", read='d=lambda n:numpy.load(s[1]+"/"+n);'
)
_OF_IDX: Final = _Kind(
    what="arrays in MNIST's idx format",
    imports="gzip,numpy",
    read='d=lambda n:(lambda b:numpy.frombuffer(b,"u1",offset=4+4*b[3]).reshape('
    'numpy.frombuffer(b,">i4",b[3],4)))((gzip.open if n.endswith(".gz") else open)'
    '(s[1]+"/"+n,"rb").read());',
)


def arrays_refused(path: Path, prepare: str = "stepladder prepare") -> DataError | None:
    """Return the error for an .npz, or for a folder with .npy or idx files of many pictures each.

    None: it is neither, or of a folder, no arrays of pictures and their labels are in it.
    """
    kind, shapes = (_NPZ, _npz_shapes(path)) if path.is_file() else _of_folder(path)
    pairs = _pairs(shapes)
    if kind is None or not shapes or (path.is_dir() and not pairs):
        return None
    shown = [f"{name} {'x'.join(map(str, shape))}" for name, shape in sorted(shapes.items())]
    more = f", and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else ""
    return DataError(
        f"the pictures are in {kind.what}, which cannot be read",
        where=printable(str(path)),
        why=f"It has: {', '.join(shown[:_MAX_SHOWN])}{more}",
        fix=_conversion(path, kind, pairs, shapes, prepare)
        if pairs
        else "Save the pictures as PNG files, in one folder for each class.",
    )


def _conversion(
    path: Path,
    kind: _Kind,
    pairs: list[tuple[str, str, str]],
    shapes: Mapping[str, _Shape],
    prepare: str,
) -> str:
    is_one_hot = any(len(shapes[y]) > 1 and shapes[y][1] > 1 for _, _, y in pairs)
    of_label = "numpy.argmax(d(y),1)" if is_one_hot else "d(y).ravel()"
    told, bounds = "", ""
    if kind is not _OF_IDX:  # of bytes
        starts = _starts(path, kind, [x for _, x, _ in pairs])
        told, bounds = range_of(starts, place="before &&")
    script = (
        f"import sys,pathlib,{kind.imports};from PIL import Image;s=sys.argv;B=s[3:5];{kind.read}"
        f"P={json.dumps(pairs)};A=lambda:(d(x) for p,x,y in P);{AS_BYTES}"
        'w=lambda f,i,a:(f.mkdir(parents=True,exist_ok=True),g(a).save(f/(str(i)+".png")));'
        "[w(pathlib.Path(s[2],p,str(c)),i,a) for p,x,y in P "
        f"for i,(a,c) in enumerate(zip(d(x),{of_label}))]"
    )
    out = path.with_name(f"{path.stem if path.is_file() else path.name}-pictures")
    source, made = (shlex.quote(printable(str(one))) for one in (path, out))
    return (
        f"Write them as PNG files{told}: python -c {shlex.quote(script)} {source} {made}{bounds} "
        f"&& {prepare} {made}"
    )


def _starts(path: Path, kind: _Kind, names: Sequence[str]) -> Iterator[Values]:
    """Yield the first values of arrays of pictures."""
    for name in names:
        try:
            if kind is _NPY:
                with (path / name).open("rb") as file:
                    yield start_of_array(file)
            else:
                with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
                    yield start_of_array(member)  # type: ignore[arg-type]
        except (OSError, KeyError, zipfile.BadZipFile):
            continue


def _pairs(shapes: Mapping[str, _Shape]) -> list[tuple[str, str, str]]:
    """Return (split or "", name of the pictures, name of their labels) by names and shapes."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for name in shapes:
        words = [word for word in _WORD.split(name.lower()) if word]
        split = next((_SPLITS[word] for word in words if word in _SPLITS), "")
        images, labels = found.setdefault(split, ([], []))
        if _LABELS & {*words}:
            labels.append(name)
        elif _IMAGES & {*words}:
            images.append(name)
    splits = {split for split in found if split} or {""}
    return [
        (split, images[0], labels[0])
        for split, (images, labels) in found.items()
        if split in splits
        and len(images) == len(labels) == 1
        and len(shapes[images[0]]) >= _MIN_DIMS
        and shapes[images[0]][:1] == shapes[labels[0]][:1]
        and all(num == 1 for num in shapes[labels[0]][2:])
    ]


def _of_folder(folder: Path) -> tuple[_Kind | None, dict[str, _Shape]]:
    """Return the arrays of the files directly in a folder."""
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    for kind, wanted, shape_of in (
        (_OF_IDX, [file for file in files if is_idx(file.name)], _idx_shape),
        (_NPY, [file for file in files if file.suffix.lower() == ".npy"], _npy_shape),
    ):
        shapes = {file.name: shape for file in wanted if (shape := _read(file, shape_of))}
        if shapes:
            return kind, shapes
    return None, {}


def _read(path: Path, shape_of: Callable[[BinaryIO], _Shape]) -> _Shape:
    try:
        with path.open("rb") as file:
            if path.suffix != ".gz":
                return shape_of(file)
            with gzip.open(file) as unpacked:
                return shape_of(unpacked)  # type: ignore[arg-type]
    except (OSError, ValueError, EOFError):
        return ()


def _idx_shape(file: BinaryIO) -> _Shape:
    """Read the shape of an idx file: two zeros, the type, the number of dimensions, each size.

    Source: LeCun, Cortes and Burges, "The MNIST database of handwritten digits".
    """
    head = file.read(4)
    if len(head) < 4 or head[:3] != bytes((0, 0, _IDX_UBYTE)):
        return ()
    return tuple(int(size) for size in np.frombuffer(file.read(4 * head[3]), ">i4", head[3]))


def _npy_shape(file: BinaryIO) -> _Shape:
    version = np.lib.format.read_magic(file)
    is_first = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return () if dtype.hasobject else tuple(shape)  # objects are pickled


def _npz_shapes(path: Path) -> dict[str, _Shape]:
    shapes: dict[str, _Shape] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as file:
                    shapes[name.removesuffix(".npy")] = _npy_shape(file)  # type: ignore[arg-type]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return {}
    return shapes
