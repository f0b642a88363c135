"""Files with many pictures each in formats that are not read: what they are, how to convert them.

Such files are recognised by their names and first bytes. Nothing is unpickled here: a pickle can
run any code.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from stepladder.data.sources.labels.labels_elsewhere import typed
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.not_read.arrays import arrays_refused
from stepladder.data.sources.not_read.tfrecords import conversion_of_tfrecords
from stepladder.data.sources.not_read.unread_formats import PICKLE, is_idx, unread_format
from stepladder.data.sources.walk import is_hidden, is_pickle
from stepladder.errors import DataError

_MAX_FILES: Final = 5000  # of a source that are checked
_SAVE: Final = (
    "w=lambda p,c,i,a:(f:=pathlib.Path(s[1],p,c),f.mkdir(parents=True,exist_ok=True),"
    'Image.fromarray(a).save(f/(i+".png")));'
    'q=lambda p:"test" if "test" in p.stem else "val" if "val" in p.stem else "train";'
)
"""Python code: `w(split, class, name, array)` saves a picture, `q(path)` is the split of a file."""
_HEAD: Final = "import sys,pathlib,numpy;from PIL import Image;s=sys.argv;"
_OF_PICKLES: Final = (
    "import pickle;" + _HEAD + _SAVE + "t=lambda x:x.decode() if isinstance(x,bytes) else str(x);"
    'l=lambda p:(lambda d:{t(k):v for k,v in d.items()} if isinstance(d,dict) else {})'
    '(pickle.load(p.open("rb"),encoding="latin1"));'
    "D={p:l(p) for p in map(pathlib.Path,s[2:])};"
    'n=next((d[k] for d in D.values() for k in ("fine_label_names","label_names") if k in d),None);'
    "g=lambda a:a if a.ndim==3 else (lambda r:a.reshape(3,r,r).transpose(1,2,0))"
    "(int((a.size/3)**.5));"
    '[w(q(p),t(n[c]) if n else str(c),p.stem+"-"+str(i),numpy.ascontiguousarray(g(a))) '
    'for p,d in D.items() if "data" in d for i,(a,c) in '
    'enumerate(zip(numpy.asarray(d["data"]),d.get("fine_labels",d.get("labels"))))]'
)  # fmt: skip
_OF_STL: Final = (
    _HEAD + _SAVE + "b=lambda p:numpy.fromfile(p,numpy.uint8);P=list(map(pathlib.Path,s[2:]));"
    'n=[p.read_text().split() for p in P if p.suffix==".txt"];'
    '[w(q(x),n[0][c-1] if n else str(c),x.stem+"-"+str(i),a) for x in P if x.stem.endswith("_X") '
    "for i,(a,c) in enumerate(zip(b(x).reshape(-1,3,96,96).transpose(0,3,2,1),"
    'b(x.with_name(x.name.replace("_X","_y")))))]'
)
_OF_CIFAR_BINARY: Final = (
    _HEAD + _SAVE + "P=list(map(pathlib.Path,s[2:]));"
    'n=[p.read_text().split() for p in P if p.suffix==".txt"];'
    'k=2 if any(p.stem=="train" for p in P) else 1;'
    '[w(q(p),n[0][r[k-1]] if n else str(r[k-1]),p.stem+"-"+str(i),'
    "numpy.ascontiguousarray(r[k:].reshape(3,32,32).transpose(1,2,0))) "
    'for p in P if p.suffix==".bin" '
    "for i,r in enumerate(numpy.fromfile(p,numpy.uint8).reshape(-1,3072+k))]"
)
_OF_SVHN: Final = (
    "import scipy.io;" + _HEAD + _SAVE + "[w(q(p),str(int(c)%10),p.stem+\"-\"+str(i),"
    'numpy.ascontiguousarray(d["X"][...,i])) for p in map(pathlib.Path,s[2:]) '
    'for d in [scipy.io.loadmat(p)] for i,c in enumerate(d["y"].ravel())]'
)  # fmt: skip
_TRUST: Final = (
    "Unpickling runs code that is in the files, so type this only if you trust where they are from"
)


@dataclass(frozen=True, kw_only=True)
class _Set:
    """Files of a known data set.

    Attributes:
        name: as in messages.
        names: expression for the names of its files that have pictures.
        others: for those that the script needs besides.
        script: Python code that writes the pictures of the files in `sys.argv[2:]`.
        packages: that it needs, besides Pillow and NumPy.
    """

    name: str
    names: str
    others: str
    script: str
    packages: str = ""


_SETS: Final = (
    _Set(
        name="pickles of CIFAR",
        names=r"(?:train_|val_)?data(?:_batch_[0-9]+)?|test_batch|train|test",
        others=r"batches\.meta|meta",
        script=_OF_PICKLES,
    ),
    _Set(
        name="arrays of STL-10",
        names=r"(?:train|test)_X\.bin",
        others=r"(?:train|test)_y\.bin|class_names\.txt",
        script=_OF_STL,
    ),
    _Set(
        name="records of CIFAR's binary version",
        names=r"data_batch_[0-9]+\.bin|test_batch\.bin|train\.bin|test\.bin",
        others=r"batches\.meta\.txt|fine_label_names\.txt",
        script=_OF_CIFAR_BINARY,
    ),
    _Set(
        name="MATLAB files of SVHN",
        names=r"(?:train|test|extra)_32x32\.mat",
        others="",
        script=_OF_SVHN,
        packages="scipy",
    ),
)
_SHOWN: Final[dict[str, tuple[str, str]]] = {
    "HDF5": ("h5py", "import sys,h5py;h5py.File(sys.argv[1]).visititems(print)"),
    "MATLAB": ("scipy", "import sys,scipy.io;print(scipy.io.whosmat(sys.argv[1]))"),
    "PyTorch": (
        "torch",
        "import sys,torch;d=torch.load(sys.argv[1],weights_only=True);"
        "print({k:getattr(v,'shape',type(v)) for k,v in d.items()} if isinstance(d,dict) else d)",
    ),
}
"""Package, and Python code, that shows what is in a file of a format."""
_WITH: Final = {
    PICKLE: "pickle.load of Python, which runs code that is in the file",
    "TFRecord": "tf.data.TFRecordDataset of TensorFlow",
    "LMDB": "the package lmdb",
    "RecordIO": "mxnet.recordio",
    "FFCV": "the package ffcv",
}
_BINARY: Final = "binary"
_FIX: Final = "Write the pictures in them as files, in one folder for each class"


def data_files_refused(root: Path) -> DataError | None:
    """Return the error for a folder whose pictures are in files of an unread format.

    None: it has no such files.
    """
    by_format: dict[str, list[Path]] = {}
    for file in islice(_files(root), _MAX_FILES):
        if kind := _kind_of(file):
            by_format.setdefault(kind, []).append(file)
    if not by_format:
        return None
    kind, files = max(by_format.items(), key=lambda item: len(item[1]))
    folder = files[0].parent
    if kind == "MNIST idx":
        return arrays_refused(folder)
    beside = [file for file in files if file.parent == folder]
    if kind == "TFRecord" and (how := conversion_of_tfrecords(root, files)):
        return _refused(root, "TFRecord files", files, how)
    return _of_known_set(folder, kind) or _of_format(kind, files, beside)


def known_set_refused(path: Path) -> DataError | None:
    """Return the error for one of the files of a known data set; None if it is another file."""
    if not any(re.fullmatch(one.names, path.name) for one in _SETS):
        return None
    kind = _kind_of(path)
    return _of_known_set(path.parent, kind) if kind else None


def _of_known_set(folder: Path, kind: str) -> DataError | None:
    """Return the error for a folder with the files of a data set, with the whole conversion."""
    inside = sorted(one for one in folder.iterdir() if one.is_file())
    for one in _SETS:
        is_pickled = one.script is _OF_PICKLES
        full = [
            file
            for file in inside
            if re.fullmatch(one.names, file.name) and is_pickled == (_kind_of(file) == PICKLE)
        ]
        if not full or is_pickled != (kind == PICKLE):
            continue
        others = [file for file in inside if re.fullmatch(one.others, file.name)]
        out = folder.with_name(f"{folder.name}-pictures")
        install = f"pip install {one.packages} && " if one.packages else ""
        words = [one.script, str(out), *(str(file) for file in (*full, *others))]
        script, *places = words
        command = (
            f"{install}python -c {shlex.quote(script)} "
            f"{' '.join(typed(Path(place)) for place in places)} && stepladder prepare {typed(out)}"
        )
        how = f"{_TRUST}. Write" if is_pickled else "Write"
        return _refused(folder, one.name, full, f"{how} the pictures as PNG files: {command}")
    return None


def _of_format(kind: str, files: Sequence[Path], beside: Sequence[Path]) -> DataError:
    """Return the error for files of a format, with the command that shows what is in them."""
    if kind not in _SHOWN:
        return _refused(beside[0].parent, f"{kind} files", files, f"{_FIX}, with {_WITH[kind]}.")
    package, script = _SHOWN[kind]
    command = f"pip install {package} && python -c {shlex.quote(script)} {typed(beside[0])}"
    return _refused(
        beside[0].parent, f"{kind} files", files, f"{_FIX}. To see what is in one: {command}"
    )


def _refused(folder: Path, what: str, files: Sequence[Path], fix: str) -> DataError:
    names = name_some([file.name for file in files])
    return DataError(
        f"the folder has no picture files, but {what}, which cannot be read",
        where=str(folder),
        why=f"It has: {names}",
        fix=fix,
    )


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        yield from (Path(folder, name) for name in sorted(names) if not is_hidden(name))


def _kind_of(file: Path) -> str | None:
    """Return the format of a file by its name, or a pickle's by its first bytes."""
    if is_idx(file.name):
        return "MNIST idx"
    kind = unread_format(file.name)
    if kind in {*_SHOWN, *_WITH}:
        return kind
    is_bare = file.suffix in {"", ".meta"}
    if is_bare and _is(file, is_pickle):
        return PICKLE
    is_of_set = any(re.fullmatch(one.names, file.name) for one in _SETS)
    return _BINARY if is_of_set and file.suffix == ".bin" else None


def _is(file: Path, test: Callable[[bytes], bool]) -> bool:
    try:
        with file.open("rb") as opened:
            return test(opened.read(2))
    except OSError:
        return False
