"""Formats of pictures that are not read, with the command that converts a folder of them."""

from __future__ import annotations

import re
import shlex
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]
else:
    Values = Any


@dataclass(frozen=True, kw_only=True)
class _Format:
    """A format, and how to convert it.

    Attributes:
        name: as in messages.
        endings: of its files, in lower case.
        packages: that the conversion needs, besides Pillow.
        imports, picture: Python code: what to import, and the picture of the file `p`.
        out: ending of the files that are written.
        own_range: which pictures are scaled by their own range, for messages; empty if none.
        is_8_bits: `picture` is always of 8 bits.
        is_often_beside: such files beside pictures are often no pictures themselves.
    """

    name: str
    endings: tuple[str, ...]
    packages: str
    imports: str
    picture: str
    out: str
    own_range: str = ""
    is_8_bits: bool = False
    is_often_beside: bool = False


AS_BYTES: Final = (
    'o=[float(x) for a in A() if a.dtype!="u1" for b in [a[numpy.isfinite(a)]] if b.size '
    "for x in (b.min(),b.max())];l,h=min(o,default=0),max(o,default=1);"
    "l,h=map(float,B) if B else (0,1) if l>=0 and h<=1 else (0,255) if l>=0 and h<256 else (l,h);"
    'o and print("values",l,"to",h,"become 0 to 255");'
    'q=lambda a:a if a.dtype=="u1" else '
    "numpy.nan_to_num(numpy.clip((a-l)*255./((h-l) or 1),0,255))+.5;"
    "g=lambda a:Image.fromarray((lambda b:b.transpose(1,2,0) if b.ndim==3 and b.shape[0]==3 else b)"
    '(q(numpy.squeeze(a))).astype("uint8"));'
)
"""Python code: `g(array)` is a picture of 8 bits; (c, h, w) becomes (h, w, c).

Arrays of uint8 stay as they are. Of the others, one range of values becomes 0 to 255. `A()` yields
all arrays, and `B` is a list of the two bounds that the user typed, or empty.
"""
_WINDOW: Final = "-1000 400"
_OTHER_WINDOW: Final = "-160 240"
_MAX_START_BYTES: Final = 1 << 22  # of an array, read for the range of its values
_NO_TISSUE: Final = -500
"""Hounsfield units: air is -1000, and nothing in a body but the lungs is below -500."""
_IDX: Final = re.compile(r"(?:^|[.-])idx\d-ubyte(?:\.gz)?$")
PICKLE: Final = "Python pickle"
TFRECORD: Final = r"\.tfrec(?:ords?)?(?:\.gz)?(?:-[0-9]+-of-[0-9]+)?$|-[0-9]{5}-of-[0-9]{5}$"
"""Expression for the end of the name of a TFRecord file."""
_OF_MANY: Final = {
    kind: re.compile(ends, re.IGNORECASE)
    for kind, ends in {
        PICKLE: r"\.(?:pkl|pickle)$",
        "HDF5": r"\.(?:h5|hdf5|hdf)$",
        "MATLAB": r"\.mat$",
        "PyTorch": r"\.pth?$",
        "TFRecord": TFRECORD,
        "LMDB": r"\.(?:lmdb|mdb)$",
        "RecordIO": r"\.rec$",
        "FFCV": r"\.beton$",
    }.items()
}
"""Formats of files that may have many pictures each, by the ends of their names."""
_OWN_RANGE: Final = (
    '(lambda a:a if a.dtype=="u1" else '
    '((a-float(a.min()))*255./max(float(a.max())-float(a.min()),1e-9)).astype("u1"))'
)
"""Python code of a function that scales one array by its own range, unless it has 8 bits."""
_OF_CT: Final = (
    f"(lambda d:d.pixel_array*float(d.RescaleSlope)+float(d.RescaleIntercept) "
    f'if d.get("Modality")=="CT" and "RescaleSlope" in d else {_OWN_RANGE}(d.pixel_array))'
)
_OF_VOLUME: Final = (
    f"(lambda v:v if v.min()<{_NO_TISSUE} else {_OWN_RANGE}(v))"
    "((lambda v:v.reshape(v.shape[:3])[:,:,v.shape[2]//2])(nibabel.load(p).get_fdata()))"
)
_FORMATS: Final = (
    _Format(
        name="DICOM",
        endings=(".dcm", ".dicom"),
        packages="pydicom numpy",
        imports="numpy,pydicom",
        picture=f"{_OF_CT}(pydicom.dcmread(p))",
        out=".png",
        own_range="pictures of more than 8 bits that are not CT",
    ),
    _Format(
        name="NIfTI",
        endings=(".nii", ".nii.gz"),
        packages="nibabel numpy",
        imports="numpy,nibabel",
        picture=_OF_VOLUME,
        out=".png",
        own_range=f"volumes without values below {_NO_TISSUE}, which are not CT,",
    ),
    _Format(
        name="camera raw",
        endings=(
            *(".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".srf", ".sr2", ".raf"),
            *(".orf", ".rw2", ".pef", ".srw"),
        ),
        packages="rawpy numpy",
        imports="numpy,rawpy",
        picture="rawpy.imread(str(p)).postprocess()",
        out=".jpg",
        is_8_bits=True,
    ),
    _Format(
        name="NumPy array",
        endings=(".npy",),
        packages="numpy",
        imports="numpy",
        picture="numpy.load(p)",
        out=".png",
        is_often_beside=True,  # masks, features
    ),
)


def unread_format(name: str) -> str | None:
    """Return the format of a file of one picture, or of many, by its name; None if unknown."""
    if is_idx(name):
        return "MNIST idx"
    found = _format_of(name)
    if found is not None:
        return found.name
    return next((kind for kind, ends in _OF_MANY.items() if ends.search(name)), None)


def is_idx(name: str) -> bool:
    """Return True if a file is one of MNIST's idx format by its name."""
    return _IDX.search(name.rpartition("/")[2]) is not None


def conversion(
    names: Iterable[str], folder: str, *, is_beside_pictures: bool = False
) -> str | None:
    """Return how to convert the files in a folder, if one of the names is of such a format.

    The pictures are written beside the files. Of a volume, it is the middle slice.
    """
    names = list(names)
    found = next((one for name in names if (one := _format_of(name)) is not None), None)
    if found is None or (is_beside_pictures and found.is_often_beside):
        return None
    of_all = "[]" if found.is_8_bits else "map(L,f)"
    script = (
        f"import sys,pathlib,{found.imports};from PIL import Image;s=sys.argv;B=s[2:4];"
        f'f=[p for p in pathlib.Path(s[1]).rglob("*") '
        f'if p.name.lower().endswith({_quoted(found.endings)}) and p.name[0]!="."];'
        f"L=lambda p:numpy.asarray({found.picture});A=lambda:{of_all};{AS_BYTES}"
        f'[g(L(p)).save(str(p)+"{found.out}") for p in f]'
    )
    told, bounds = "", ""
    if not found.is_8_bits:
        arrays = [_start_of(Path(folder, name)) for name in names if name.endswith(".npy")]
        told, bounds = range_of(arrays, own_range=found.own_range)
    return (
        f"Convert them{told}: pip install {found.packages} pillow && "
        f"python -c {shlex.quote(script)} {shlex.quote(folder)}{bounds}"
    )


def range_of(
    arrays: Iterable[Values], *, place: str = "at the end of the command", own_range: str = ""
) -> tuple[str, str]:
    """Return which range of values becomes 0 to 255, in words, and the bounds to be typed.

    Args:
        arrays: some of the values, which show if they are Hounsfield units, or pixels of 8 bits.
        place: where the bounds are typed.
        own_range: which pictures are scaled by their own range; empty if none.

    Returns:
        The words, which follow "Convert them", and the bounds with a space in front, or nothing.
    """
    some = [one for one in arrays if one.size]
    if some and all(one.dtype == np.uint8 for one in some):
        return "", ""
    low = min((float(one.min()) for one in some), default=0.0)
    high = max((float(one.max()) for one in some), default=0.0)
    if low < _NO_TISSUE < high and all(bool((one == one.round()).all()) for one in some):
        return (
            f" (values such as {low:g} to {high:g} are probably Hounsfield units of CT, so one "
            f"window is used for all pictures: {_WINDOW.replace(' ', ' to ')}, as is usual for "
            f"lungs; for soft tissue, write {_OTHER_WINDOW} in their place {place}; "
            "without them, the range is from the smallest to the largest value of all)"
        ), f" {_WINDOW}"
    told = (
        "one range of values is used for all pictures: 0 to 255 or 0 to 1 if all values are in it, "
        "else from the smallest to the largest of all; for another one, such as a window of CT, "
        f"write its bounds {place}, such as {_WINDOW}"
    )
    if own_range:
        told += f"; {own_range} are scaled each by its own smallest and largest value"
    return f" ({told})", ""


def _start_of(path: Path) -> Values:
    """Return the first values of an .npy file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return start_of_array(file)
    except OSError:
        return np.empty(0)


def start_of_array(file: BinaryIO) -> Values:
    """Return the first values of an array in NumPy's format; empty if they are no numbers."""
    try:
        version = np.lib.format.read_magic(file)
        is_first = version == (1, 0)
        read = (
            np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
        )
        _, _, dtype = read(file)
        if dtype.kind not in "iuf":
            return np.empty(0)
        data = file.read(_MAX_START_BYTES)
    except (OSError, ValueError, EOFError, zlib.error):
        return np.empty(0)
    found: Values = np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)
    finite: Values = found[np.isfinite(found)]
    return finite


def _format_of(name: str) -> _Format | None:
    lower = name.lower()
    return next((one for one in _FORMATS if lower.endswith(one.endings)), None)


def _quoted(endings: tuple[str, ...]) -> str:
    return "(" + "".join(f'"{ending}",' for ending in endings) + ")"
