"""Formats of pictures that are not read, with the command that converts a folder of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class _Format:
    """A format, and how to convert it.

    Attributes:
        name: as in messages.
        endings: of its files, in lower case.
        packages: that the conversion needs, besides Pillow.
        imports, picture: Python code: what to import, and the picture of the file `p`.
        out: ending of the files that are written.
        as_bytes: Python code: `g`, which makes a picture of an array; None: each is stretched.
        is_often_beside: such files beside pictures are often no pictures themselves.
    """

    name: str
    endings: tuple[str, ...]
    packages: str
    imports: str
    picture: str
    out: str
    as_bytes: str | None = None
    is_often_beside: bool = False


AS_BYTES: Final = (
    'q=lambda a:a if str(a.dtype)=="uint8" or a.min()>=0 and 1<a.max()<256 else a*255. '
    "if a.min()>=0 and a.max()<=1 else (a-a.min())*255./max(float(a.max()-a.min()),1e-9);"
    "g=lambda a:Image.fromarray((lambda b:b.transpose(1,2,0) if b.ndim==3 and b.shape[0]==3 else b)"
    '(q(numpy.squeeze(a))).astype("uint8"));'
)
"""Python code: `g(array)` is a picture; shares, other ranges and (c, h, w) become 8-bit pixels."""
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
_TO_8_BITS: Final = "(a-a.min())*255./max(float(a.max()-a.min()),1e-9)"
_FORMATS: Final = (
    _Format(
        name="DICOM",
        endings=(".dcm", ".dicom"),
        packages="pydicom numpy",
        imports="numpy,pydicom",
        picture="pydicom.dcmread(p).pixel_array",
        out=".png",
    ),
    _Format(
        name="NIfTI",
        endings=(".nii", ".nii.gz"),
        packages="nibabel numpy",
        imports="numpy,nibabel",
        picture="(lambda v:v.reshape(v.shape[:3])[:,:,v.shape[2]//2])(nibabel.load(p).get_fdata())",
        out=".png",
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
    ),
    _Format(
        name="NumPy array",
        endings=(".npy",),
        packages="numpy",
        imports="numpy",
        picture="numpy.load(p)",
        out=".png",
        as_bytes=AS_BYTES,
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
    found = next((one for name in names if (one := _format_of(name)) is not None), None)
    if found is None or (is_beside_pictures and found.is_often_beside):
        return None
    to_picture = found.as_bytes or f'g=lambda a:Image.fromarray(({_TO_8_BITS}).astype("uint8"));'
    script = (
        f"import sys,pathlib,{found.imports};from PIL import Image;"
        f'f=[p for p in pathlib.Path(sys.argv[1]).rglob("*") '
        f'if p.name.lower().endswith({_quoted(found.endings)}) and p.name[0]!="."];'
        f"{to_picture}"
        f'[g(numpy.asarray({found.picture})).save(str(p)+"{found.out}") for p in f]'
    )
    return (
        f"Convert them: pip install {found.packages} pillow && python -c {shlex.quote(script)} "
        f"{shlex.quote(folder)}"
    )


def _format_of(name: str) -> _Format | None:
    lower = name.lower()
    return next((one for one in _FORMATS if lower.endswith(one.endings)), None)


def _quoted(endings: tuple[str, ...]) -> str:
    return "(" + "".join(f'"{ending}",' for ending in endings) + ")"
