"""The compilers that torch.compile calls."""

from __future__ import annotations

import importlib.util
import os
import shutil


def compiler_missing(device: str) -> str | None:
    """Name what torch.compile lacks on a device ("cpu" or "cuda"); None: nothing.

    On the CPU it calls the C++ compiler that the environment names as CXX, or else g++; on CUDA it
    takes Triton, which calls a C compiler (CC, gcc or clang).
    """
    if device == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "the package triton"
        names = [os.environ.get("CC") or "", "gcc", "clang"]
        return None if any(shutil.which(name) for name in names if name) else "a C compiler"
    name = os.environ.get("CXX") or "g++"
    return None if shutil.which(name) else f"a C++ compiler ({name})"
