"""Third-party safetensors files: read, or rejected with a message, and never executed."""

from __future__ import annotations

import json
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from stepladder.errors import DataError
from stepladder.models.state_file import read_safetensors, read_tensors

STATE = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.int64)}
SOUND = save(STATE)


def test_every_tensor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(SOUND)
    found = read_safetensors(path)
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[name], STATE[name]) for name in STATE)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(end=st.integers(0, len(SOUND)), num_flips=st.integers(0, 6), seed=st.integers(0, 2**32))
def test_a_damaged_file_is_read_or_refused_but_nothing_else(
    tmp_path: Path, end: int, num_flips: int, seed: int
) -> None:
    generator = random.Random(seed)
    data = bytearray(SOUND[:end])
    for _ in range(num_flips if data else 0):
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    path = tmp_path / "weights.safetensors"
    path.write_bytes(data)
    refused = None
    try:
        read_safetensors(path)
    except DataError as error:
        refused = error
    assert refused is None or (refused.where == str(path) and refused.fix)


def test_a_header_as_long_as_a_pickle_begins_is_not_a_pickle(tmp_path: Path) -> None:
    """0x0280 in little endian is the start of a pickle of protocol 2."""
    starts = set()
    for length in range(40, 700, 8):
        path = tmp_path / "weights.safetensors"
        path.write_bytes(save({"x" * length: torch.ones(1)}))
        starts.add(path.read_bytes()[:2])
        assert read_safetensors(path)["x" * length] == 1
    assert b"\x80\x02" in starts


def test_what_was_opened_is_read_where_its_name_was_given_to_another_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(SOUND)
    with path.open("rb") as file:
        path.unlink()
        path.write_bytes(save({"other": torch.zeros(1)}))
        found = read_tensors(file, where="here")
    path.write_bytes(b"")
    assert torch.equal(found["a"], STATE["a"])


class Harm:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was opened",))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5, None])
def test_a_pickle_is_named_and_never_opened(tmp_path: Path, protocol: int | None) -> None:
    path = tmp_path / "weights.safetensors"
    if protocol is None:
        torch.save({"x": torch.ones(2)}, path)
    else:
        path.write_bytes(pickle.dumps(Harm(), protocol=protocol) + b"\0" * 8)
    with pytest.raises(DataError, match="Python pickle"):
        read_safetensors(path)


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: list[Any], start: Any, end: Any, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HOSTILE = {
    "short": b"\x08\0\0",
    "header of 2**40 bytes": struct.pack("<Q", 1 << 40) + b"{}",
    "header beyond the file": struct.pack("<Q", 100) + b"{}",
    "not json": file_of(b"{]"),
    "a list": file_of([1, 2]),
    "deep": file_of(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "overlap": file_of({"a": entry([2], 0, 2), "b": entry([2], 1, 3)}, b"abc"),
    "gap": file_of({"a": entry([1], 0, 1), "b": entry([1], 2, 3)}, b"abc"),
    "trailing bytes": file_of({"a": entry([1], 0, 1)}, b"ab"),
    "false shape": file_of({"a": entry([1 << 40], 0, 1)}, b"a"),
    "unknown dtype": file_of({"a": entry([1], 0, 1, "PICKLE")}, b"a"),
    "empty but endless": file_of({"a": entry([0, 1 << 62, 1 << 62], 0, 0)}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_cleanly(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_safetensors(path)
    assert caught.value.where == str(path)
