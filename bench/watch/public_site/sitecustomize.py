"""Preparation that every public script runs with, alone and watched.

Python imports this module if its folder is in PYTHONPATH. As soon as torch is imported, random
draws are seeded and each optimizer step is timed; the times are written at the end. A torchvision
built for another torch gets the schemas of the operators that are missing. The scripts themselves
are unmodified.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import random
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_FILE = os.environ.pop("PUBLIC_SCRIPTS_CLOCK", None)  # not inherited by child processes
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _Imports:
    """Import hook that acts right after torch is imported, and before torchvision is."""

    def __init__(self) -> None:
        self._has_seen_torch = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        if name == "torchvision":
            _declare_operators()
        if name != "torch" or self._has_seen_torch:
            return None
        self._has_seen_torch = True
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        load = loader.exec_module

        def load_then(module: ModuleType) -> None:
            load(module)
            _seed(module)
            _note_steps()

        loader.exec_module = load_then
        return spec


def _declare_operators() -> None:
    import torch

    if not hasattr(torch, "library") or "torchvision_schemas" in vars(torch.library):
        return  # torch itself is asking, partly imported, or it is done
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        library.define(schema)
    vars(torch.library)["torchvision_schemas"] = library  # keeps the schemas registered


def _seed(torch: Any) -> None:
    import numpy as np

    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # what scripts draw from


def _note_steps() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if _FILE is None:
        return
    pid, wall, cpu = os.getpid(), [], []

    def note(*_: object) -> None:
        wall.append(time.perf_counter())
        cpu.append(time.process_time())

    def write() -> None:
        if os.getpid() == pid:
            Path(_FILE).write_text(json.dumps({"wall_s": wall, "cpu_s": cpu}))

    register_optimizer_step_post_hook(note)
    atexit.register(write)


sys.meta_path.insert(0, _Imports())  # type: ignore[arg-type]
