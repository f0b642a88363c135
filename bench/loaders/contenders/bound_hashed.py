"""The limit of preparing with the minimum that a store needs: a sha256 of each file, and fsync."""

from __future__ import annotations

from bench.loaders.contenders.bound import write

__all__ = ["LINES", "PACKAGE", "WRITER", "WRITE_SETTINGS", "write"]

PACKAGE = None
WRITER = "bound"
LINES = ()
WRITE_SETTINGS = ({"workers": 2, "is_hashed": True},)
