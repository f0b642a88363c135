"""The limit of preparing with what a store cannot do without: sha256 of each file, on the disk."""

from __future__ import annotations

from bench.loaders.contenders.bound import write

__all__ = ["LINES", "PACKAGE", "WRITER", "WRITE_SETTINGS", "write"]

PACKAGE = None
WRITER = "bound"
LINES = ()
WRITE_SETTINGS = ({"workers": 2, "is_hashed": True},)
