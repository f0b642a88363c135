"""Turn off TF32 for comparisons: its 10-bit mantissa hides other differences."""

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
    """Compute in full fp32 on a GPU within the block, even if torch allows TF32.

    Does nothing on a CPU, which has no TF32. Torch's older settings are changed with the newer ones
    within the block, so that user code that reads them keeps working.
    """
    if device.type != "cuda":
        yield
        return
    found = [one for one in _SETTINGS if one.fp32_precision == _TF32]
    matmul = _older_matmul() if torch.backends.cuda.matmul in found else None
    has_cudnn = len(found) > (torch.backends.cuda.matmul in found) and _older_cudnn()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own about the older settings
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
    """Return torch's older TF32 setting of matrix products; None if the newer one is used.

    Both have to agree, or torch's compiler raises an error. Users of the older one have already
    seen torch's warning about it.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # they differ already
        return None


def _older_cudnn() -> bool:
    """Return True if cuDNN's older setting allows TF32 and agrees with the newer ones."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # they differ already
        return False
