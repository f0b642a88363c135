"""The files of one checkpoint folder: written durably, read only if every byte is accounted for.

    step-000000123/
      model.safetensors ...   one for each group of tensors
      frozen.safetensors      what training does not change
      state.json              everything that is not a tensor
      MANIFEST.json           written last: size and sha256 of each file above, and its own sha256

A folder is hostile until proven sound: members are opened without following links, names with a
path in them are refused, and nothing is unpickled.
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
from stepladder.models.state_file import read_tensors
from stepladder.records import Json, fsync_file

FORMAT_VERSION: Final = 1
MANIFEST: Final = "MANIFEST.json"
MANIFEST_END: Final = b"\n}\n"
"""Its last bytes, and found nowhere before: what lies inside is indented."""
STATE: Final = "state.json"
FROZEN: Final = "frozen.safetensors"
_TENSOR_FILE: Final = re.compile(r"[a-z][a-z0-9_]*\.safetensors")
_MAX_MANIFEST_BYTES: Final = 16_000_000
_FLOAT_KEY: Final = "$float"


def serialize(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, one tensor at a time.

    A tensor that shares memory with another, or is a view, is written in full.

    Raises:
        DataError: if a tensor has a number format or a layout that the format cannot hold.
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
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        # contiguous() leaves any stride on a tensor of one element or none; view accepts one alone
        flat = plain.reshape(-1).as_strided((plain.numel(),), (1,))
        array: Any = flat.view(torch.uint8).numpy()
        yield memoryview(array)


def _dtype(name: str, tensor: Tensor) -> str:
    """Return the format's name of a tensor's number format."""
    if tensor.layout == torch.strided and not tensor.is_meta and name != "__metadata__":
        kind = str(tensor.dtype).removeprefix("torch.")
        with contextlib.suppress(SafetensorError):  # the format has no such numbers
            return TensorSpec(dtype=kind, shape=[0], data_ptr=0, data_len=0).dtype
    raise DataError(
        f"the tensor {name!r} ({tensor.dtype}, {tensor.layout}, on {tensor.device}) cannot be kept "
        "in a checkpoint",
        fix="Where it need not be kept: register_buffer(name, tensor, persistent=False).",
    )


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """What the manifest says of a file."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A checkpoint in memory, on the CPU.

    Attributes:
        name: of its folder.
        tensors: by group, then by name.
        frozen: what training did not change, by name in the model.
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
    """Name the file of a group of tensors.

    Raises:
        ValueError: if the group's name could not be told from a path or from frozen weights.
    """
    name = f"{group}.safetensors"
    if not _TENSOR_FILE.fullmatch(name) or name == FROZEN:
        raise ValueError(f"not the name of a group of tensors: {group!r}")
    return name


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileRecord:
    """Write a file so that it survives a power cut, hashing on the way."""
    digest = hashlib.sha256()
    num_bytes = 0
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            num_bytes += len(chunk)
        file.flush()
        fsync_file(file.fileno())
    return FileRecord(num_bytes=num_bytes, sha256=digest.hexdigest())


def hash_tensors(tensors: Mapping[str, Tensor]) -> FileRecord:
    """Say what `write_file` would give for these tensors, without writing."""
    digest = hashlib.sha256()
    num_bytes = 0
    for chunk in serialize(tensors):
        digest.update(chunk)
        num_bytes += len(chunk)
    return FileRecord(num_bytes=num_bytes, sha256=digest.hexdigest())


def hash_file(folder: Path, name: str) -> FileRecord:
    """Read a whole file; refuses what `open_member` refuses."""
    with open_member(folder, name) as (file, size):
        digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]  # BinaryIO will do
    return FileRecord(num_bytes=size, sha256=digest.hexdigest())


def write_manifest(folder: Path, records: Mapping[str, FileRecord]) -> FileRecord:
    """Write the manifest: from here on the folder is a checkpoint."""
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
    """Read which files a checkpoint has.

    Raises:
        DataError: if it is missing, damaged, of another format, or names a file elsewhere.
    """
    where = str(folder / MANIFEST)
    with open_member(folder, MANIFEST) as (file, _):
        text = file.read(_MAX_MANIFEST_BYTES)
    content = _parse(text, where)
    if not isinstance(content, dict) or "format_version" not in content:
        raise DataError("not the manifest of a checkpoint", where=where)
    if content["format_version"] != FORMAT_VERSION:
        found = f"its format is {content['format_version']!r}, this version reads {FORMAT_VERSION}"
        raise DataError(found, where=where, fix="Use the version of stepladder that wrote it.")
    if _seal({key: item for key, item in content.items() if key != "sha256"}) != text:
        raise DataError("it is not as it was written: its sha256 differs", where=where)
    try:
        records = {
            name: FileRecord(num_bytes=int(entry["bytes"]), sha256=str(entry["sha256"]))
            for name, entry in content["files"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError("its list of files cannot be read", where=where) from None
    for name in records:
        if name != STATE and not _TENSOR_FILE.fullmatch(name):
            raise DataError(f"it names {name!r}, which is no file of a checkpoint", where=where)
    if STATE not in records:
        raise DataError(f"it names no {STATE}", where=where)
    return records


def read_folder(folder: Path, name: str) -> Loaded:
    """Load a checkpoint, verifying every byte.

    Raises:
        DataError: at the first thing that is wrong with it; names the file.
        ResourceError: if a file may not be read.
    """
    records = read_manifest(folder)
    state = _read_member(folder, STATE, records.pop(STATE))
    groups = {file: _read_member(folder, file, record) for file, record in records.items()}
    frozen = groups.pop(FROZEN, {})
    tensors = {file.removesuffix(".safetensors"): group for file, group in groups.items()}
    return Loaded(name=name, tensors=tensors, state=state, frozen=frozen)


def find_problems(folder: Path) -> list[str]:
    """List everything that is wrong with a checkpoint folder; empty if it is sound."""
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
    """Open a regular file of a checkpoint folder, following no link; gives it and its size.

    Raises:
        DataError: if it is missing, a link, no file, or the disk cannot read it.
        ResourceError: if it may not be read.
    """
    where = str(folder / name)
    try:
        if folder.is_symlink():
            raise DataError("a checkpoint may not be a symbolic link", where=str(folder))
        handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise DataError("this is not a regular file", where=where)
            yield file, status.st_size
    except PermissionError as error:
        raise ResourceError("the file may not be read", where=where) from error
    except FileNotFoundError:
        raise DataError("the file is missing", where=where) from None
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        what = "a symbolic link" if is_link else f"not readable ({error.strerror})"
        raise DataError(f"the file is {what}", where=where) from error


def encode_state(state: Mapping[str, Json]) -> bytes:
    """Write a state as JSON; a float that JSON has no number for becomes {"$float": "nan"}.

    Raises:
        TypeError: if a key is not a string, or a value has no place in JSON.
    """
    text = json.dumps(_to_plain(state), indent=1, sort_keys=True, allow_nan=False)
    return (text + "\n").encode()


def decode_state(text: bytes, *, where: str) -> dict[str, Any]:
    """Read what `encode_state` wrote.

    Raises:
        DataError: if it is not JSON or not an object.
    """
    state = _from_plain(_parse(text, where))
    if not isinstance(state, dict):
        raise DataError("it is not an object", where=where)
    return state


def _read_member(folder: Path, name: str, record: FileRecord) -> Any:
    """Return the state or the tensors of a member, once its bytes are as the manifest says."""
    where = str(folder / name)
    with open_member(folder, name) as (file, size):
        if size != record.num_bytes:
            raise DataError(
                f"it has {size} bytes, its manifest says {record.num_bytes}", where=where
            )
        digest = hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]  # BinaryIO will do
        if digest.hexdigest() != record.sha256:
            raise DataError("its sha256 differs from the manifest: bytes were changed", where=where)
        file.seek(0)
        if name == STATE:
            return decode_state(file.read(), where=where)
        return read_tensors(file, where=where)


def _seal(content: Mapping[str, Any]) -> bytes:
    """Return the one form in which a manifest is written, with its own sha256 in it."""
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
            raise TypeError(f"not names that a checkpoint's state can have: {list(value)!r:.200}")
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
