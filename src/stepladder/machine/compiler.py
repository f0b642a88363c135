"""The compilers that torch.compile calls."""

from __future__ import annotations

import importlib.util
import os
import shutil


def compiler_missing(device: str) -> str | None:
    """Return what torch.compile is missing on a device ("cpu" or "cuda"), or None.

    On the CPU it needs the C++ compiler in the environment variable CXX, or g++; on CUDA it needs
    Triton, which calls a C compiler (CC, gcc or clang).
    """
    if device == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "the package triton"
        names = [os.environ.get("CC") or "", "gcc", "clang"]
        return None if any(shutil.which(name) for name in names if name) else "a C compiler"
    name = os.environ.get("CXX") or "g++"
    return None if shutil.which(name) else f"a C++ compiler ({name})"
