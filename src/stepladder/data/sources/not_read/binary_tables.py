"""Tables in binary files, such as MATLAB's and Excel's, with the command that writes them as CSV.

They are not read: each format needs a package of its own, and a pickle runs code.
"""

from __future__ import annotations

import json
import re
import shlex
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepladder.data.decoding.formats import PICTURE_SUFFIXES
from stepladder.data.sources.walk import printable, quoted
from stepladder.errors import DataError

_MATLAB: Final = b"MATLAB "
_HDF5: Final = b"\x89HDF"
_NPY: Final = b"\x93NUMPY"
_MAX_SHEETS: Final = 5
_SHEET: Final = re.compile(r'<(?:\w+:)?sheet\s[^>]*?\bname="([^"]*)"')
_ENDINGS: Final = ",".join(f'"{one}"' for one in sorted(PICTURE_SUFFIXES))
_CORE: Final = (
    # one list for each variable, or field of a structure, that has scalar items
    'S=lambda v:getattr(getattr(v,"dtype",0),"names",0) or ();'
    'z=[(k,v) for k,v in d.items() if k[:1]!="_"]+[(f,v[f]) for v in d.values() '
    "for f in (S(v) or (v if isinstance(v,dict) else ()))];"
    'L=lambda v:v if isinstance(v,list) else list(v.ravel()) if getattr(v,"ndim",0) '
    "and max(v.shape)==v.size and not S(v) else [];"
    "V=lambda x:x.decode() if isinstance(x,bytes) else int(x) if "
    'getattr(x,"is_integer",bool)() else x;'
    "t={k:[V(x) for x in L(v)] for k,v in z};"
    "t={k:l for k,l in t.items() if len(l)>1 and not any(numpy.ndim(x) for x in l)};"
    # pictures in the order of their names, of all folders or of one
    f"E=({_ENDINGS});b=pathlib.Path(s[1]).parent;"
    'q=sorted((p.relative_to(b).as_posix() for p in b.rglob("*") if p.suffix.lower() in E),'
    'key=lambda p:[(0,int(x),"") if x.isdigit() else (1,0,x) for x in re.split("([0-9]+)",p)]);'
    'g=[q]+[[p for p in q if p.rpartition("/")[0]==f] '
    'for f in dict.fromkeys(p.rpartition("/")[0] for p in q)];'
    "m=next((len(l) for l in t.values() if str(l[0]).lower().endswith(E)),0);"
    "p=[] if m else next((c for c in g if any(len(l)==len(c) for l in t.values())),[]);"
    'm=m or len(p) or sys.exit("no list in "+s[1]+" names pictures, or has an item for each '
    'of the "+str(len(q))+" pictures in its folder: "+", ".join(k+" has "+str(len(l)) '
    "for k,l in t.items()));"
    't={**({"path":p} if p else {}),**{k:l for k,l in t.items() if len(l)==m}};'
    'w=csv.writer(open(s[2],"w",encoding="utf-8",newline=""));w.writerow(t);'
    "w.writerows(zip(*t.values()))"
)
"""Python code that writes the lists of a dictionary `d` as columns of the table s[2]."""


@dataclass(frozen=True, kw_only=True)
class _Format:
    """A format, and how to read it.

    Attributes:
        what: for messages.
        packages: to install for the command; empty if none is needed.
        imports, read: Python code; `d` is a dictionary of arrays and lists.
        why: a warning.
    """

    what: str
    packages: str
    imports: str
    read: str
    why: str | None = None


_MAT: Final = _Format(
    what="a MATLAB file (.mat)",
    packages="scipy",
    imports="scipy.io",
    read="d=scipy.io.loadmat(s[1],squeeze_me=True)",
)
_MAT_73: Final = _Format(
    what="a MATLAB 7.3 file (.mat)", packages="mat73", imports="mat73", read="d=mat73.loadmat(s[1])"
)
_OF_HDF5: Final = _Format(
    what="an HDF5 file",
    packages="h5py",
    imports="h5py",
    read='d={};h5py.File(s[1]).visititems(lambda k,v:d.update({k.rpartition("/")[2]:v[()]} '
    'if max(getattr(v,"shape",()) or (0,))==getattr(v,"size",-1) else {}))',
)
_OF_NPY: Final = _Format(
    what="a NumPy array", packages="", imports="numpy", read='d={"label":numpy.load(s[1])}'
)
_PICKLE: Final = _Format(
    what="a Python pickle",
    packages="pandas",
    imports="pandas",
    read="o=pandas.read_pickle(s[1]);I=lambda v:isinstance(v,(list,tuple,numpy.ndarray));"
    'd=o.to_dict("list") if hasattr(o,"to_dict") else {k:list(v) for k,v in o.items() if I(v)} '
    'if isinstance(o,dict) and any(map(I,o.values())) else {"path":list(o),"label":'
    'list(o.values())} if isinstance(o,dict) else {"column"+str(i+1):list(c) for i,c in '
    'enumerate(zip(*o))} if all(map(I,o)) else {"label":list(o)}',
    why="To open a pickle runs the code in it: convert it only if you trust its author.",
)
_READERS: Final = {
    ".xlsx": "openpyxl",
    ".xlsm": "openpyxl",
    ".xls": "xlrd",
    ".ods": "odfpy",
    ".xlsb": "pyxlsb",
}
"""Packages with which pandas reads spreadsheets."""


def refuse_binary_table(path: Path, head: bytes, options: str) -> None:
    """Refuse a file of a binary format that may hold a table.

    Args:
        path: the file.
        head: its first bytes.
        options: with which the table is read.

    Raises:
        DataError: if it is such a file; the fix writes a CSV.
    """
    found = _format_of(path, head)
    if found is None:
        return
    script = f"import csv,pathlib,re,sys,numpy,{found.imports};s=sys.argv;{found.read};{_CORE}"
    raise DataError(
        f"this file is {found.what}, not a table of text",
        where=str(path),
        why=found.why,
        fix="To write its lists as a CSV (labels without names of pictures, in the order of these "
        f"names): {_command(found.packages, script, path, options)}",
    )


def spreadsheet_refused(path: Path, what: str, ending: str, options: str) -> DataError:
    """Return the error for a spreadsheet; the fix writes its first sheet as CSV.

    Args:
        path: the file.
        what: it is, for the message.
        ending: usual ending of such files.
        options: with which the table is read.
    """
    sheets = _sheets(path)
    if len(sheets) > 1:
        shown = ", ".join(repr(printable(one)) for one in sheets[:_MAX_SHEETS])
        what += f" with {len(sheets)} sheets: {shown}{', …' if len(sheets) > _MAX_SHEETS else ''}"
    fix = "Open it in Excel or LibreOffice, and save it as CSV UTF-8. Then type: "
    fix += f"stepladder prepare {quoted(path.with_suffix('.csv'))} {options}".rstrip()
    if ending in _READERS:
        sheet = json.dumps(sheets[0], ensure_ascii=False) if len(sheets) > 1 else "0"
        script = (
            f"import sys,pandas;s=sys.argv;pandas.read_excel(s[1],sheet_name={sheet},dtype=str,"
            "keep_default_na=False).to_csv(s[2],index=False)"
        )
        which = f"its first sheet, {sheets[0]!r}," if len(sheets) > 1 else "it"
        fix = (
            f"In Excel or LibreOffice, save it as CSV UTF-8. Or write {which} as CSV with pandas: "
            + _command(f"pandas {_READERS[ending]}", script, path, options)
        )
    return DataError(f"this file is {what}, not a table of text", where=str(path), fix=fix)


def _command(packages: str, script: str, path: Path, options: str) -> str:
    """Return the command that converts a file, and reads the result."""
    table = path.with_suffix(".csv")
    if table == path or table.exists():
        table = next(
            one
            for at in range(1, 1000)
            if not (one := path.with_name(f"table{at}-{table.name}")).exists()
        )
    install = f"pip install {packages} && " if packages else ""
    return (
        f"{install}python -c {shlex.quote(script)} {quoted(path)} {quoted(table)} && "
        f"stepladder prepare {quoted(table)} {options}"
    ).rstrip()


def _format_of(path: Path, head: bytes) -> _Format | None:
    if head.startswith(_MATLAB) and (b"MAT-file" in head or path.suffix.lower() == ".mat"):
        return _MAT_73 if head.startswith(b"MATLAB 7.3") else _MAT
    if head.startswith(_HDF5):
        return _OF_HDF5
    if head.startswith(_NPY):
        return _OF_NPY
    is_pickle = len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5
    if is_pickle:
        return _PICKLE
    return _MAT if path.suffix.lower() == ".mat" and b"\0" in head else None  # MATLAB 4


def _sheets(path: Path) -> list[str]:
    """Return the names of the sheets of an .xlsx; an empty list if it is another file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _SHEET.findall(archive.read("xl/workbook.xml").decode())
    except (zipfile.BadZipFile, KeyError, OSError, UnicodeError):
        return []
