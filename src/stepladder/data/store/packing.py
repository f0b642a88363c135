"""Pages of pixels, packed and unpacked, each by itself.

LZ4 leaves a third out and costs a reader little; zstd leaves more out and is slow. Both pay only
where the link is slower than they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from stepladder.config.choices import Compression

_CODECS = {Compression.LZ4: ("lz4_raw", None), Compression.ZSTD: ("zstd", 1)}


class PackedError(ValueError):
    """Bytes are not what `pack` gave."""


def pack(data: memoryview, compression: Compression) -> memoryview:
    """Pack the bytes of a page; as they are where nothing is asked for."""
    if compression is Compression.NONE:
        return data
    # as bytes: the view of an Arrow buffer that was shrunk gives its old length to writev
    return memoryview(_codec(compression).compress(data, asbytes=True))


def unpack_into(data: bytes, out: memoryview, compression: Compression) -> None:
    """Unpack a page into a buffer of exactly its size.

    Raises:
        PackedError: if the bytes are damaged or of another size.
    """
    try:
        raw = _codec(compression).decompress(data, len(out))
    except OSError as error:
        raise PackedError(str(error)) from None
    if raw.size != len(out):
        raise PackedError(f"{raw.size} bytes instead of {len(out)}")
    np.frombuffer(out, dtype=np.uint8)[:] = np.frombuffer(raw, dtype=np.uint8)  # without the lock


@cache
def _codec(compression: Compression) -> Any:
    import pyarrow as pa

    name, level = _CODECS[compression]
    return pa.Codec(name, compression_level=level)
