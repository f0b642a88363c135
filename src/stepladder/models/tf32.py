"""TF32, and comparisons without it: its ten bits hide what else may differ."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

_SETTINGS: Final[tuple[Any, ...]] = (
    torch.backends.cuda.matmul,
    torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    torch.backends.cudnn.rnn,
)
_TF32, _FULL = "tf32", "ieee"


@contextmanager
def without_tf32(device: torch.device) -> Iterator[None]:
    """Compute in all of 32 bits on a GPU for the block, where torch allows TF32.

    Nothing is set for a CPU, which has no TF32. Torch's older settings say the same as the newer
    ones within the block, so that code of the user's that reads them goes on.
    """
    if device.type != "cuda":
        yield
        return
    found = [one for one in _SETTINGS if one.fp32_precision == _TF32]
    matmul = _older_matmul() if torch.backends.cuda.matmul in found else None
    has_cudnn = len(found) > (torch.backends.cuda.matmul in found) and _older_cudnn()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of the older settings
        if matmul is not None:
            torch.set_float32_matmul_precision("highest")
        if has_cudnn:
            torch.backends.cudnn.allow_tf32 = False
    for setting in found:
        setting.fp32_precision = _FULL
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if has_cudnn:
                torch.backends.cudnn.allow_tf32 = True
            if matmul is not None:
                torch.set_float32_matmul_precision(matmul)
        for setting in found:
            setting.fp32_precision = _TF32


def _older_matmul() -> str | None:
    """Return what allows TF32 in matrix products by torch's older setting; None: the newer does.

    Both have to say the same, or torch's own compiler refuses. One who used the older has had the
    warning that torch gives of it, once.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # they differ already
        return None


def _older_cudnn() -> bool:
    """Return True if cuDNN's older setting allows TF32, and the newer ones say the same."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # they differ already
        return False
