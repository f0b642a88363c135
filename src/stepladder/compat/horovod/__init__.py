"""Horovod's interface on torch.distributed, so that a script written for it runs unchanged."""

from stepladder.compat.horovod.runner import HorovodRunner as HorovodRunner
from stepladder.compat.horovod.torch import *  # noqa: F403
