"""Formats of pictures that are not read, with the command that converts a folder of them."""

from __future__ import annotations

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
    """

    name: str
    endings: tuple[str, ...]
    packages: str
    imports: str
    picture: str
    out: str


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
)


def unread_format(name: str) -> str | None:
    """Return the format of a file by its name, if it is one that can be converted."""
    found = _format_of(name)
    return None if found is None else found.name


def conversion(names: Iterable[str], folder: str) -> str | None:
    """Return how to convert the files in a folder, if one of the names is of such a format.

    The pictures are written beside the files. Of a volume, it is the middle slice.
    """
    found = next((one for name in names if (one := _format_of(name)) is not None), None)
    if found is None:
        return None
    script = (
        f"import sys,pathlib,{found.imports};from PIL import Image;"
        f'f=[p for p in pathlib.Path(sys.argv[1]).rglob("*") '
        f"if p.name.lower().endswith({_quoted(found.endings)})];"
        f'g=lambda a:Image.fromarray(({_TO_8_BITS}).astype("uint8"));'
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
