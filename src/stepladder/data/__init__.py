"""Convert pictures to a store; read batches from a store or an external table."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepladder.data.reading.loader import Loader
    from stepladder.data.store.store import Store
    from stepladder.data.tables.opening import open_table
    from stepladder.data.tables.spark_converter import from_spark

__all__ = ["Loader", "Store", "from_spark", "open_table"]

# Imported on first use, so that importing this package does not import torch.
_HOMES = {
    "Loader": "stepladder.data.reading.loader",
    "Store": "stepladder.data.store.store",
    "from_spark": "stepladder.data.tables.spark_converter",
    "open_table": "stepladder.data.tables.opening",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stepladder.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
