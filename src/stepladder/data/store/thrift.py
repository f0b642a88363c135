"""The subset of Thrift's compact protocol that Parquet's page headers and footers need.

A struct is written from a list of (field number, value) and read into a dict by field number;
unknown fields are kept.

Source: Apache Thrift, "Thrift Compact protocol encoding", thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Struct: TypeAlias = "dict[int, Any]"

_TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MAX_DEPTH = 16
_MAX_VARINT_BYTES = 10


class ThriftError(ValueError):
    """The bytes are not valid compact protocol."""


@dataclass(frozen=True)
class I32:
    """An integer or enum value to be written as i32."""

    value: int


@dataclass(frozen=True)
class I64:
    """An integer to be written as i64."""

    value: int


@dataclass(frozen=True)
class Fields:
    """A struct to be written: (field number, value) in ascending order.

    A value is I32, I64, bytes, Fields, or a list of one kind of these.
    """

    items: Sequence[tuple[int, Any]]


def encode(value: Any) -> bytes:
    """Return the bytes of a value without a field header."""
    if isinstance(value, (I32, I64)):
        number = value.value
        return _varint((number << 1) ^ (number >> 63))  # zigzag: small negatives stay short
    if isinstance(value, bytes):
        return _varint(len(value)) + value
    if isinstance(value, list):
        kind = _kind(value[0]) if value else _STRUCT
        size = len(value)
        head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + _varint(size)
        return head + b"".join(encode(item) for item in value)
    if isinstance(value, Fields):
        parts, last = [], 0
        for number, item in value.items:
            parts.append(bytes([(number - last) << 4 | _kind(item)]))  # Parquet's gaps are below 15
            parts.append(encode(item))
            last = number
        return b"".join(parts) + b"\0"
    raise TypeError(f"{type(value).__name__} cannot be written as Thrift")


def _kind(value: Any) -> int:
    kinds: dict[type, int] = {I32: _I32, I64: _I64, bytes: _BINARY, list: _LIST, Fields: _STRUCT}
    return kinds[type(value)]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class Decoder:
    """Read structs from bytes; rejects data that is truncated, too deep or too long.

    Args:
        data: the bytes.
        position: start position; after a read, its end position.
    """

    def __init__(self, data: bytes | memoryview, position: int = 0) -> None:
        self.data = memoryview(data)
        self.position = position

    def struct(self, depth: int = 0) -> Struct:
        """Read a struct.

        Raises:
            ThriftError: if the bytes are not a struct.
        """
        found: Struct = {}
        last = 0
        while head := self._byte():
            delta, kind = head >> 4, head & 0x0F
            last = last + delta if delta else self._zigzag()
            found[last] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ThriftError("nested too deeply")
        if kind in (_I16, _I32, _I64):
            return self._zigzag()
        if kind == _BINARY:
            return bytes(self._take(self._varint()))
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind in (_TRUE, _FALSE, _I8):
            return self._byte()
        if kind == _DOUBLE:
            return bytes(self._take(8))
        raise ThriftError(f"unknown type {kind}")  # includes maps, which Parquet does not use

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        size, kind = head >> 4, head & 0x0F
        if size == 15:
            size = self._varint()
        if size > len(self.data) - self.position:  # an element takes at least a byte
            raise ThriftError("a list is longer than the data")
        return [self._value(kind, depth + 1) for _ in range(size)]

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self.data):
            raise ThriftError("truncated")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = self._byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ThriftError("an integer is too long")

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)
