"""Thrift's compact protocol: round trips work, and damage is an error."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.data.store.thrift import I32, I64, Decoder, Fields, ThriftError, encode


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=300), st.integers(0, 40))
def test_what_is_written_is_read(number: int, text: bytes, size: int) -> None:
    items = [I64(index - size) for index in range(size)] or [I64(0)]
    inner = Fields([(1, text), (15, I64(number))])
    data = encode(Fields([(1, I32(-1)), (2, inner), (4, items), (5, [inner, inner])]))
    decoder = Decoder(data + b"rest")
    again = {1: text, 15: number}
    wanted = {1: -1, 2: again, 4: [item.value for item in items], 5: [again, again]}
    assert decoder.struct() == wanted
    assert decoder.position == len(data)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_struct_or_an_error(data: bytes) -> None:
    decoder = Decoder(data)
    with suppress(ThriftError):  # and no other error
        assert all(isinstance(field, int) for field in decoder.struct())
    assert decoder.position <= len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x15", "truncated"),
        (b"\x18\xff\xff\xff\xff\x0f", "truncated"),  # a text of 4 GB
        (b"\x19\xf5\xff\xff\xff\xff\x0f", "longer than the data"),  # a list of 4 billion
        (b"\x1c" * 100, "too deep"),
        (b"\x19" + b"\x19" * 100, "too deep"),
        (b"\x15" + b"\xff" * 20, "too long"),
        (b"\x1b\x00", "unknown type"),
    ],
)
def test_hostile_bytes_are_refused_at_no_cost(data: bytes, reason: str) -> None:
    with pytest.raises(ThriftError, match=reason):
        Decoder(data).struct()
