"""TF32, and comparisons without it: its ten bits hide what else may differ."""

from __future__ import annotations

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

    Nothing is set for a CPU, which has no TF32. Within the block torch's older
    `cudnn.allow_tf32` cannot be read, as everywhere once a newer setting is used.
    """
    found = [one for one in _SETTINGS if device.type == "cuda" and one.fp32_precision == _TF32]
    older = _older_setting() if torch.backends.cuda.matmul in found else None
    if older is not None:
        torch.set_float32_matmul_precision("highest")
    for setting in found:
        setting.fp32_precision = _FULL
    try:
        yield
    finally:
        for setting in found:
            setting.fp32_precision = _TF32
        if older is not None:
            torch.set_float32_matmul_precision(older)


def _older_setting() -> str | None:
    """Give what allows TF32 in matrix products by torch's older setting; None: the newer does.

    Both have to say the same, or torch's own compiler refuses. One who used the older has had the
    warning that torch gives of it, once.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # they differ already
        return None
