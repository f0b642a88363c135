"""Import timm where the installed torchvision was built for another torch.

A CPU-only torch beside a CUDA-built torchvision cannot import torchvision ("operator
torchvision::nms does not exist"), and timm imports torchvision. Declaring the operators' schemas is
enough for timm's models, which call none of them. We never import torchvision ourselves.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from stepladder.errors import ResourceError

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[torch.library.Library] = []  # a Library takes its schemas along when collected


def import_timm() -> ModuleType:
    """Return the timm module, declaring torchvision's operators only where the plain import fails.

    The garbage collector waits meanwhile: it would look again and again through hundreds of
    thousands of classes and functions, hardly one of them garbage, for a third of the time.

    Raises:
        ResourceError: if timm cannot be imported all the same.
    """
    with _no_collection():
        return _import()


def _import() -> ModuleType:
    try:
        return importlib.import_module("timm")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise _broken(error) from error
    except (ImportError, OSError) as error:
        raise _broken(error) from error
    _forget_half_imports()
    try:
        _declare_operators()
        return importlib.import_module("timm")
    except (RuntimeError, ImportError, OSError) as error:
        raise _broken(error) from error


@contextmanager
def _no_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _broken(error: Exception) -> ResourceError:
    return ResourceError(
        f"timm cannot be imported beside torch {torch.__version__} ({error})",
        why="It needs torchvision, of the release that belongs to this torch.",
        fix="Install both again: pip install --force-reinstall --no-deps timm torchvision",
    )


def _forget_half_imports() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in {"timm", "torchvision"}:
            del sys.modules[name]


def _declare_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in SCHEMAS:
        name = schema.partition("(")[0]
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)
