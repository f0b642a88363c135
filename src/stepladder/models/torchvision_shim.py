"""Import timm even if the installed torchvision was built for another torch.

With a CPU-only torch and a CUDA build of torchvision, importing torchvision fails ("operator
torchvision::nms does not exist"), and timm imports torchvision. Declaring the operators' schemas is
enough for timm's models, which call none of them. stepladder itself never imports torchvision.
"""

from __future__ import annotations

import gc
import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from stepladder.errors import ResourceError
from stepladder.machine.torchvision_build import new_torchvision_problem

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[torch.library.Library] = []  # a Library removes its schemas when it is collected


def import_timm() -> ModuleType:
    """Return the timm module, declaring torchvision's operators only if the plain import fails.

    The first import warns of a torchvision whose release or build does not fit torch, even if it
    can be imported: its operators may fail later.

    The garbage collector is off during the import: it would scan hundreds of thousands of classes
    and functions again and again, for a third of the time.

    Raises:
        ResourceError: if timm still cannot be imported.
    """
    if "timm" not in sys.modules:
        _warn()
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
    _warn(is_broken=True)
    _forget_half_imports()
    try:
        _declare_operators()
        return importlib.import_module("timm")
    except (RuntimeError, ImportError, OSError) as error:
        raise _broken(error) from error


def _warn(*, is_broken: bool = False) -> None:
    problem = new_torchvision_problem(is_broken=is_broken)
    if problem is not None:
        warnings.warn(problem, stacklevel=1)  # the user's code has no part in it


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
        f"timm cannot be imported with torch {torch.__version__} ({error})",
        why="It needs the release of torchvision that matches this torch.",
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
