"""Let packages that import torchvision be imported next to a torch built without CUDA."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

_declared: list[Any] = []  # keeps the declarations registered


def allow_torchvision() -> None:
    """Declare the CUDA operators that torchvision expects, in a torch built without CUDA.

    None of the contenders calls them.
    """
    import torch

    from stepladder.models.torchvision_shim import SCHEMAS

    try:
        is_mixed = "+cpu" in torch.__version__ and "+cpu" not in version("torchvision")
    except PackageNotFoundError:
        return
    if is_mixed and not _declared:
        library = torch.library.Library("torchvision", "DEF")
        for schema in SCHEMAS:
            library.define(schema)
        _declared.append(library)
