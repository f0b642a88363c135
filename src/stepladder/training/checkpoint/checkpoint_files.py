"""The files of one checkpoint folder: written durably, and verified byte by byte on reading.

    step-000000123/
      model.safetensors ...   one for each group of tensors
      frozen.safetensors      tensors that training does not change
      state.json              everything that is not a tensor
      MANIFEST.json           written last: size and sha256 of each file above, and its own sha256

A folder is not trusted: members are opened without following links, names that contain a path are
rejected, and nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import platform
import re
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch
from safetensors import SafetensorError, TensorSpec
from torch import Tensor

import stepladder
from stepladder.errors import DataError, ResourceError
from stepladder.machine.activity import moved
from stepladder.models.sharded_tensors import is_sharded, whole
from stepladder.models.state_file import read_tensors
from stepladder.records import Json, fsync_file

FORMAT_VERSION: Final = 1
MANIFEST: Final = "MANIFEST.json"
MANIFEST_END: Final = b"\n}\n"
"""Its last bytes, which occur only at its end: everything inside is indented."""
STATE: Final = "state.json"
FROZEN: Final = "frozen.safetensors"
_TENSOR_FILE: Final = re.compile(r"[a-z][a-z0-9_]*\.safetensors")
_MAX_MANIFEST_BYTES: Final = 16_000_000
_FLOAT_KEY: Final = "$float"


def serialize(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, one tensor at a time.

    A tensor that shares memory with another, or is a view, is written in full; one that is divided
    among ranks is put together, for which the others call this with theirs.

    Raises:
        DataError: if the file format does not support a tensor's dtype or layout.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in ordered:
        dtype = _dtype(name, tensor)
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in ordered:
        plain = whole(tensor).detach().resolve_conj().resolve_neg().cpu().contiguous()
        # contiguous() keeps any stride of a tensor with at most one element, which view rejects
        flat = plain.reshape(-1).as_strided((plain.numel(),), (1,))
        array: Any = flat.view(torch.uint8).numpy()
        yield memoryview(array)


def _dtype(name: str, tensor: Tensor) -> str:
    """Return the name of a tensor's dtype in the file format."""
    is_here = not tensor.is_meta or is_sharded(tensor)
    if tensor.layout == torch.strided and is_here and name != "__metadata__":
        kind = str(tensor.dtype).removeprefix("torch.")
        with contextlib.suppress(SafetensorError):  # the file format lacks this dtype
            return TensorSpec(dtype=kind, shape=[0], data_ptr=0, data_len=0).dtype
    raise DataError(
        f"the tensor {name!r} ({tensor.dtype}, {tensor.layout}, on {tensor.device}) cannot be "
        "saved in a checkpoint",
        fix="Make it a dense tensor; or, if it need not be saved, register it with "
        "register_buffer(name, tensor, persistent=False).",
    )


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """Size and hash of a file in the manifest."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A checkpoint in memory, on the CPU.

    Attributes:
        name: of its folder.
        tensors: by group, then by name.
        frozen: tensors that training did not change, by name in the model.
    """

    name: str
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    frozen: dict[str, Tensor]

    @property
    def weights(self) -> dict[str, Tensor]:
        """All weights of the model, under the names of its state_dict."""
        return {**self.frozen, **self.tensors.get("model", {})}


def group_file(group: str) -> str:
    """Return the file name of a group of tensors.

    Raises:
        ValueError: if the group's name could be a path or the file of frozen weights.
    """
    name = f"{group}.safetensors"
    if not _TENSOR_FILE.fullmatch(name) or name == FROZEN:
        raise ValueError(f"not the name of a group of tensors: {group!r}")
    return name


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileRecord:
    """Write and hash a file, so that it survives a power cut."""
    digest = hashlib.sha256()
    num_bytes = 0
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            num_bytes += len(chunk)
            moved()
        file.flush()
        fsync_file(file.fileno())
    moved()
    return FileRecord(num_bytes=num_bytes, sha256=digest.hexdigest())


def hash_tensors(tensors: Mapping[str, Tensor]) -> FileRecord:
    """Return what `write_file` would return for these tensors, without writing."""
    digest = hashlib.sha256()
    num_bytes = 0
    for chunk in serialize(tensors):
        digest.update(chunk)
        num_bytes += len(chunk)
    return FileRecord(num_bytes=num_bytes, sha256=digest.hexdigest())


def hash_file(folder: Path, name: str) -> FileRecord:
    """Hash a file; raises the errors of `open_member`."""
    with open_member(folder, name) as (file, size):
        digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]  # BinaryIO will do
    return FileRecord(num_bytes=size, sha256=digest.hexdigest())


def write_manifest(folder: Path, records: Mapping[str, FileRecord]) -> FileRecord:
    """Write the manifest, which makes the folder a checkpoint."""
    content = {
        "format_version": FORMAT_VERSION,
        "files": {
            name: {"bytes": record.num_bytes, "sha256": record.sha256}
            for name, record in records.items()
        },
        "versions": {
            "python": platform.python_version(),
            "stepladder": stepladder.__version__,
            "torch": str(torch.__version__),
        },
    }
    return write_file(folder / MANIFEST, [_seal(content)])


def read_manifest(folder: Path) -> dict[str, FileRecord]:
    """Read the list of files of a checkpoint.

    Raises:
        DataError: if it is missing, damaged, of another format, or lists a file elsewhere.
    """
    where = str(folder / MANIFEST)
    with open_member(folder, MANIFEST) as (file, _):
        text = file.read(_MAX_MANIFEST_BYTES)
    content = _parse(text, where)
    if not isinstance(content, dict) or "format_version" not in content:
        raise DataError("not the manifest of a checkpoint", where=where)
    if content["format_version"] != FORMAT_VERSION:
        found = (
            f"the checkpoint has format {content['format_version']!r}, but this release of "
            f"stepladder reads format {FORMAT_VERSION} only"
        )
        raise DataError(found, where=where, fix="Install the release of stepladder that wrote it.")
    if _seal({key: item for key, item in content.items() if key != "sha256"}) != text:
        raise DataError(
            "this file of a checkpoint was changed after it was written (its sha256 does not "
            "match)",
            where=where,
        )
    try:
        records = {
            name: FileRecord(num_bytes=int(entry["bytes"]), sha256=str(entry["sha256"]))
            for name, entry in content["files"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError(
            "the list of the files of a checkpoint cannot be read from this file", where=where
        ) from None
    for name in records:
        if name != STATE and not _TENSOR_FILE.fullmatch(name):
            raise DataError(
                f"this list of the files of a checkpoint names {name!r}, which is not one",
                where=where,
            )
    if STATE not in records:
        raise DataError(
            f"this list of the files of a checkpoint lacks {STATE}, which each checkpoint has",
            where=where,
        )
    return records


def read_folder(folder: Path, name: str) -> Loaded:
    """Load a checkpoint, verifying every byte.

    Raises:
        DataError: at the first problem, with the file.
        ResourceError: if there is no permission to read a file.
    """
    records = read_manifest(folder)
    state = _read_member(folder, STATE, records.pop(STATE))
    groups = {file: _read_member(folder, file, record) for file, record in records.items()}
    frozen = groups.pop(FROZEN, {})
    tensors = {file.removesuffix(".safetensors"): group for file, group in groups.items()}
    return Loaded(name=name, tensors=tensors, state=state, frozen=frozen)


def find_problems(folder: Path) -> list[str]:
    """List all problems of a checkpoint folder; empty if it is intact."""
    problems = []
    try:
        records = read_manifest(folder)
    except (DataError, ResourceError) as error:
        return [str(error)]
    for name, record in records.items():
        try:
            _read_member(folder, name, record)
        except (DataError, ResourceError) as error:
            problems.append(str(error))
    return problems


@contextmanager
def open_member(folder: Path, name: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file of a checkpoint folder without following links; yield it and its size.

    Raises:
        DataError: if it is missing, a link or not a file, or the disk cannot read it.
        ResourceError: if there is no permission to read it.
    """
    where = str(folder / name)
    try:
        if folder.is_symlink():
            raise DataError(
                "this checkpoint is a symbolic link, which is not followed", where=str(folder)
            )
        handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise DataError("this is not a regular file", where=where)
            yield file, status.st_size
    except PermissionError as error:
        raise ResourceError("no permission to read the file", where=where) from error
    except FileNotFoundError:
        raise DataError("the file is missing", where=where) from None
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        what = "a symbolic link" if is_link else f"not readable ({error.strerror})"
        raise DataError(f"the file is {what}", where=where) from error


def encode_state(state: Mapping[str, Json]) -> bytes:
    """Encode a state as JSON; non-finite floats become {"$float": "nan"}.

    Raises:
        TypeError: if a key is not a string, or a value is not JSON serializable.
    """
    text = json.dumps(_to_plain(state), indent=1, sort_keys=True, allow_nan=False)
    return (text + "\n").encode()


def decode_state(text: bytes, *, where: str) -> dict[str, Any]:
    """Decode a state from `encode_state`.

    Raises:
        DataError: if it is not JSON or not an object.
    """
    state = _from_plain(_parse(text, where))
    if not isinstance(state, dict):
        raise DataError("not a JSON object", where=where)
    return state


def _read_member(folder: Path, name: str, record: FileRecord) -> Any:
    """Return the state or the tensors of a member, after checking it against the manifest."""
    where = str(folder / name)
    with open_member(folder, name) as (file, size):
        if size != record.num_bytes:
            raise DataError(
                f"the file has {size} bytes, but the manifest says {record.num_bytes}", where=where
            )
        digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]  # BinaryIO will do
        if digest.hexdigest() != record.sha256:
            raise DataError("damaged: its sha256 differs from the manifest", where=where)
        file.seek(0)
        if name == STATE:
            return decode_state(file.read(), where=where)
        return read_tensors(file, where=where)


def _seal(content: Mapping[str, Any]) -> bytes:
    """Return the canonical bytes of a manifest, with its own sha256."""
    plain = json.dumps(content, indent=2, sort_keys=True).encode()
    sealed = {**content, "sha256": hashlib.sha256(plain).hexdigest()}
    return (json.dumps(sealed, indent=2, sort_keys=True) + "\n").encode()


def _parse(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error})", where=where) from None


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        if _FLOAT_KEY in value or not all(isinstance(key, str) for key in value):
            raise TypeError(f"invalid keys in a checkpoint's state: {list(value)!r:.200}")
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT_KEY: str(value)}
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_FLOAT_KEY} and value[_FLOAT_KEY] in ("nan", "inf", "-inf"):
        return float(value[_FLOAT_KEY])
    return {key: _from_plain(item) for key, item in value.items()}
