"""Files of NumPy, pickle, PyTorch and other programs: arrays are read, the others are named."""

from __future__ import annotations

import io
import json
import shlex
import zipfile
from pathlib import Path
from typing import Any

from stepladder.diagnosis.logs.meaning.column_names import meaning, score_rank
from stepladder.errors import DataError

_STARTS = (  # of files that are only named, with what to do
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "It usually has the weights of a model, not its log."),
    (b"MATLAB 5.0", "a MATLAB file", "Write its values as CSV, such as with writetable."),
    (b"PAR1", "a Parquet file", "Write it as CSV: pandas.read_parquet(…).to_csv(…)."),
    (b"ARROW1", "a Feather file", "Write it as CSV: pandas.read_feather(…).to_csv(…)."),
    (
        b"\x0a\x23\xd7\xce",
        "a RecordIO file of MXNet",
        "It has examples, not the log of a training.",
    ),
    (b"SQLite format 3\x00", "an SQLite database", "Export its table of values as CSV."),
)
_COMPRESSED = (
    (b"\x1f\x8b", "gzip", "gzip -dc"),
    (b"BZh", "bzip2", "bzip2 -dc"),
    (b"\xfd7zXZ\x00", "xz", "xz -dc"),
)
_PICKLES = (".pkl", ".pickle", ".p")
_TORCH = (".pt", ".pth", ".ckpt", ".bin", ".tar")
_TORCH_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # until PyTorch 1.5
_RECORDS = (".tfrecord", ".tfrecords", ".record")
_PROTOCOLS = range(2, 6)  # of pickle
_NUMERIC = "biuf"  # kinds of a NumPy type
_HISTORY = "h = getattr(h, 'history', h); h = h.to_dict('list') if hasattr(h, 'to_dict') else h"
_LOADS = {  # what Python runs to get a dictionary of lists
    "npy": ("numpy", "h = numpy.load(sys.argv[1], allow_pickle=True).tolist()"),
    "npz": (
        "numpy",
        "z = numpy.load(sys.argv[1], allow_pickle=True); h = {k: z[k].tolist() for k in z.files}; "
        "h = h['arr_0'] if list(h) == ['arr_0'] else h",
    ),
    "pickle": ("pickle", f"h = pickle.load(open(sys.argv[1], 'rb')); {_HISTORY}"),
    "joblib": ("joblib", f"h = joblib.load(sys.argv[1]); {_HISTORY}"),
    "torch": (
        "torch",
        "h = torch.load(sys.argv[1], map_location='cpu', weights_only=False); "
        "h = getattr(h, 'history', h); "
        "h = h.get('history') or {k: v for k, v in h.items() if isinstance(v, list)}",
    ),
}
_WORDS = {
    "npy": "a NumPy file with a pickled object",
    "npz": "a NumPy archive with pickled objects",
    "pickle": "a pickle",
    "joblib": "a file of joblib, which is a pickle",
    "torch": "a PyTorch file, which is a pickle",
}


def read_arrays(path: Path, data: bytes, *, max_bytes: int) -> str | None:
    """Return the arrays of a NumPy file as JSON, one list for each name; None for a text.

    Nothing is unpickled, because that runs the code in the file.

    Raises:
        DataError: for any other known format; says how to convert it.
    """
    suffix = path.suffix.lower()
    if data.startswith(b"\x93NUMPY"):
        return _read_npy(path, data)
    if data.startswith(b"PK\x03\x04"):
        return _read_zip(path, data, max_bytes)
    is_pickle = data[:1] == b"\x80" and data[1] in _PROTOCOLS if len(data) > 1 else False
    if suffix == ".joblib":
        raise _pickled(path, "joblib")
    if data.startswith(_TORCH_MAGIC) or (is_pickle and suffix in _TORCH):
        raise _pickled(path, "torch")
    if is_pickle or (suffix in _PICKLES and data.rstrip()[-1:] == b"."):
        raise _pickled(path, "pickle")
    _refuse_known(path, data)
    return None


def _refuse_known(path: Path, data: bytes) -> None:
    """Raise an error for a file of a known format that is no log.

    Raises:
        DataError: says what to do instead.
    """
    if path.suffix.lower() in _RECORDS and _is_records(data):
        raise _named(
            path,
            "a TFRecord file",
            "It has examples. Files of TensorBoard have `tfevents` in their names; they are read.",
        )
    if path.name.startswith("vdlrecords.") and _is_records(data):
        fix = "In VisualDL's page of scalars, export the values as CSV, and pass that file."
        raise _named(path, "a binary file of VisualDL", fix)
    for start, what, fix in _STARTS:
        if data.startswith(start):
            raise _named(path, what, f"{fix} Pass the log of the training as text, CSV or JSON.")
    for start, what, command in _COMPRESSED:
        if data.startswith(start):
            words = f"{command} {shlex.quote(str(path))} > {shlex.quote(str(_unpacked(path)))}"
            raise _named(
                path, f"compressed with {what}", f"Unpack it, and pass the result: {words}"
            )


def _is_records(data: bytes) -> bool:
    """Return True if a file begins with a record of TFRecord: length, its sum, bytes, their sum."""
    return len(data) >= int.from_bytes(data[:8], "little") + 16


def _read_npy(path: Path, data: bytes) -> str:
    import numpy as np

    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        if "allow_pickle" in str(error):
            raise _pickled(path, "npy") from None
        raise _damaged(path, "NumPy file", error) from None
    if array.dtype.names is not None:
        return _as_json({name: array[name] for name in array.dtype.names})
    is_known = meaning(path.stem) is not None or score_rank(path.stem) is not None
    if is_known and array.ndim == 1:
        return _as_json({path.stem: array})
    raise DataError(
        f"this NumPy file has an array of shape {array.shape} without names: it does not say which "
        "metrics these are",
        where=str(path),
        fix="If it has one value for each epoch, name the file after the metric, such as "
        "val_accuracy.npy. Or save several: numpy.savez('history.npz', loss=…, val_accuracy=…)",
    )


def _read_zip(path: Path, data: bytes, max_bytes: int) -> str:
    import numpy as np

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            size = sum(item.file_size for item in archive.infolist())
        if any(name.endswith("/data.pkl") for name in names):
            raise _pickled(path, "torch")
        if any(name.startswith("xl/") for name in names):
            raise _named(path, "a spreadsheet", "Save its sheet as CSV, and pass that file.")
        if not names or not all(name.endswith(".npy") for name in names):
            unpack = f"python -m zipfile -e {shlex.quote(str(path))} {shlex.quote(path.stem)}"
            raise _named(path, "a zip archive", f"Unpack it, and pass the log in it: {unpack}")
        if size > max_bytes:
            raise _named(
                path,
                f"a NumPy archive of {size / 1e6:,.0f} MB",
                f"Save only the lists of metrics; up to {max_bytes / 1e6:,.0f} MB are read.",
            )
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return _as_json({name: arrays[name] for name in arrays.files})
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, NotImplementedError) as error:
        if "allow_pickle" in str(error):
            raise _pickled(path, "npz") from None
        raise _damaged(path, "zip archive", error) from None


def _as_json(arrays: dict[str, Any]) -> str:
    """Return the numeric arrays with one axis as lists; of those with more axes of 1 as well."""
    kept = {name: array.squeeze() for name, array in arrays.items()}
    return json.dumps(
        {
            name: array.reshape(-1).tolist()
            for name, array in kept.items()
            if array.ndim <= 1 and array.dtype.kind in _NUMERIC
        }
    )


def _pickled(path: Path, kind: str) -> DataError:
    """Return the error for a pickle, with a command that converts a history to JSON."""
    module, load = _LOADS[kind]
    out = path.with_suffix(".json")
    out = path.with_name(f"{path.stem}_history.json") if out.exists() else out
    code = (
        f"import json, sys, {module}; {load}; "
        "json.dump(h, open(sys.argv[2], 'w'), default=lambda v: v.tolist())"
    )
    given = f"{shlex.quote(str(path))} {shlex.quote(str(out))}"
    return DataError(
        f"this file is {_WORDS[kind]}, which is not read",
        where=str(path),
        why="Unpickling runs the code in a file.",
        fix="If you trust the file, and it has the history of a training (a list for each "
        f'metric), convert it to JSON: python -c "{code}" {given} && '
        f"stepladder audit {shlex.quote(str(out))}",
    )


def _named(path: Path, what: str, fix: str) -> DataError:
    return DataError(f"this file is {what}, not a training log", where=str(path), fix=fix)


def _damaged(path: Path, what: str, error: Exception) -> DataError:
    return DataError(
        f"this {what} is damaged ({str(error).partition(chr(10))[0][:100]})",
        where=str(path),
        fix="Pass another copy of the file.",
    )


def _unpacked(path: Path) -> Path:
    """Return a name without the ending of the compression, of a file that does not exist."""
    out = path.with_suffix("") if path.suffix else path.with_name(f"{path.name}.log")
    out = out if out.suffix else out.with_name(f"{out.name}.log")
    return out.with_name(f"{out.stem}_unpacked{out.suffix}") if out.exists() else out
