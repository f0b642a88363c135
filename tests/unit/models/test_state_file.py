from __future__ import annotations

import random
from pathlib import Path

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from stepladder.errors import DataError
from stepladder.models.state_file import read_safetensors

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
