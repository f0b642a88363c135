"""Let packages that import torchvision be imported beside a torch built without CUDA."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

_declared: list[Any] = []  # what a torch Library declared goes when it goes


def allow_torchvision() -> None:
    """Declare the operators that a torchvision built for CUDA looks for in a torch built without.

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
