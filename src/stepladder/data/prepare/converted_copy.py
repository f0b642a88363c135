"""Commands that copy a source and convert in the copy what `prepare` cannot read as it should."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from stepladder.data.decoding.by_pillow import BANDS
from stepladder.data.decoding.formats import SUFFIXES

_SENTINEL_2: Final = (8, "3,2,1", "as those of Sentinel-2 are")
_SMALL: Final = (4, "2,1,0", "as those in the order blue, green, red are")
_RGB: Final = (0, "0,1,2", "")
_MAX_WHOLE: Final = 1e15
_TO_16_BITS: Final = (
    'h=lambda a:a if a.dtype=="uint8" else numpy.clip(numpy.nan_to_num(a)'
    '*(65535 if a.dtype.kind=="f" else 1),0,65535).astype("uint16");'
)
"""Python code: `h(array)` has integers of 8 or 16 bits; floating-point numbers have white at 1."""


def scaled_copy(source: Path, form: str, *, white: float, factor: float) -> str:
    """Return the command that copies a folder and multiplies the samples of some pictures.

    It is part of a warning, after a store was written.

    Args:
        source: the folder.
        form: format of the pictures, which are grey and have 16 bits.
        white: only pictures without larger values are changed.
        factor: of their samples.
    """
    script = (
        "import sys,pathlib,shutil,numpy;from PIL import Image;"
        "d=pathlib.Path(shutil.copytree(sys.argv[1],sys.argv[2]));"
        f'[Image.fromarray((a*{written(factor)}).astype("uint16")).save(p) for p in d.rglob("*") '
        f"if p.suffix.lower() in {_quoted(SUFFIXES[form])} for i in [Image.open(p)] "
        f'if i.mode[0]=="I" for a in [numpy.asarray(i)] if a.max()<={written(white)}]'
    )
    copy = _beside(source, "scaled")
    return (
        f"{_python(script)} {_shown(source)} {_shown(copy)}; then prepare {_shown(copy)} with the "
        "same options and --overwrite"
    )


def divided_copy(source: Path, form: str, *, above: float, white: float, resets: bool) -> str:
    """Return the command that copies a folder and makes white 1 in some floating-point pictures.

    It is part of a warning, after a store was written.

    Args:
        source: the folder.
        form: format of the pictures, which are grey.
        above: only pictures with a larger value are changed.
        white: by which their samples are divided.
        resets: whether `--max-sample-value` was typed, which the copy must not have.
    """
    script = (
        "import sys,pathlib,shutil,numpy;from PIL import Image;"
        "d=pathlib.Path(shutil.copytree(sys.argv[1],sys.argv[2]));"
        f'[Image.fromarray((a/{written(white)}).astype("float32")).save(p) for p in d.rglob("*") '
        f"if p.suffix.lower() in {_quoted(SUFFIXES[form])} for i in [Image.open(p)] "
        f'if i.mode=="F" for a in [numpy.asarray(i)] if a.max()>{written(above)}]'
    )
    copy = _beside(source, "scaled")
    added = "--max-sample-value none --overwrite" if resets else "--overwrite"
    return (
        f"{_python(script)} {_shown(source)} {_shown(copy)}; then prepare {_shown(copy)} with the "
        f"same options and {added}"
    )


def three_bands(reason: str, source: Path) -> str | None:
    """Return how to make pictures of TIFFs with many bands; None if that is not the reason.

    Args:
        reason: why a picture cannot be used.
        source: the pictures.
    """
    found = BANDS.fullmatch(reason)
    if found is None:
        return None
    num = int(found[1])
    _, bands, order = next(one for one in (_SENTINEL_2, _SMALL, _RGB) if num >= one[0])
    said = f"A picture has red, green and blue. Take three bands, counted from 0: {bands}"
    said += f", {order}, or others. " if order else ". "
    if not source.is_dir():
        return (
            said + "Of each file, in Python: tifffile.imwrite(new, tifffile.imread(old)[..., "
            f'[{bands}]], photometric="rgb") (pip install tifffile imagecodecs)'
        )
    script = (
        'import sys,shutil,numpy,tifffile;s=sys.argv;b=list(map(int,s[3].split(",")));'
        f"g=lambda a:a if a.shape[-1]=={num} else numpy.moveaxis(a,0,-1);"
        + _TO_16_BITS
        + 'w=lambda p,o,a:tifffile.imwrite(o,h(g(a)[...,b]),photometric="rgb") '
        f"if a.ndim==3 and {num} in (a.shape[0],a.shape[-1]) else shutil.copy2(p,o);"
        f"f=lambda p,o:w(p,o,tifffile.imread(p)) "
        f"if p.lower().endswith({_quoted(SUFFIXES['TIFF'])}) else shutil.copy2(p,o);"
        "shutil.copytree(s[1],s[2],copy_function=f)"
    )
    copy = _beside(source, "rgb")
    return (
        f"{said}pip install tifffile imagecodecs && {_python(script)} {_shown(source)} "
        f"{_shown(copy)} {bands} && stepladder prepare {_shown(copy)}"
    )


def written(value: float) -> str:
    """Return a value of samples as text: all digits of a whole number, else six."""
    is_whole = value % 1 == 0 and abs(value) < _MAX_WHOLE
    return f"{value:.0f}" if is_whole else f"{value:g}"


def _python(script: str) -> str:
    return f"python -c {shlex.quote(script)}"


def _beside(source: Path, what: str) -> Path:
    whole = source.expanduser().absolute()
    return whole.with_name(f"{whole.name}_{what}")


def _shown(path: Path) -> str:
    return shlex.quote(str(path))


def _quoted(endings: tuple[str, ...]) -> str:
    return "(" + "".join(f'"{ending}",' for ending in endings) + ")"
