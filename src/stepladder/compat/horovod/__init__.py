"""Horovod's interface on torch.distributed, so that a script written for it runs unchanged."""

from stepladder.compat.horovod.runner import HorovodRunner
from stepladder.compat.horovod.torch import *  # noqa: F403
from stepladder.compat.horovod.torch import __all__ as _of_torch

__all__ = ["HorovodRunner", *_of_torch]
