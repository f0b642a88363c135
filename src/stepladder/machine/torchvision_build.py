"""Whether the installed torchvision fits the installed torch, from their versions alone."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib import metadata
from typing import Final

_RELEASE: Final = re.compile(r"(\d+)\.(\d+)(?:\.\d+)?[^+]*(?:\+([\w.]+))?")
_BUILDS: Final = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")  # of PyTorch's index; others are vendors'
_MINOR_OFFSET: Final = 15  # torchvision 0.25 belongs to torch 2.10
_RETURNED: Final = "STEPLADDER_TORCHVISION_WARNED"  # inherited by ranks and other children
_INDEX: Final = "https://download.pytorch.org/whl"


def torchvision_problem(
    torch: str | None = None, torchvision: str | None = None, *, is_broken: bool = False
) -> str | None:
    """Return what does not fit and the line to type, or None if nothing is known to be wrong.

    Args:
        torch, torchvision: their versions; None: those that are installed.
        is_broken: torchvision could not be imported.
    """
    torch, torchvision = torch or _installed("torch"), torchvision or _installed("torchvision")
    wanted = _RELEASE.match(torch or "")
    found = _RELEASE.match(torchvision or "")
    if wanted is None or found is None or wanted[1] != "2":
        return None
    minor, build = int(wanted[2]) + _MINOR_OFFSET, wanted[3]
    is_other_release = (found[1], int(found[2])) != ("0", minor)
    if not (is_broken or is_other_release or _are_other_builds(build, found[3])):
        return None
    index = f" --index-url {_INDEX}/{build}" if build and _BUILDS.fullmatch(build) else ""
    return (
        f"torchvision {torchvision} does not fit torch {torch}: programs that import it fail. "
        f"Type: pip install --force-reinstall --no-deps 'torchvision==0.{minor}.*'{index}"
    )


def new_torchvision_problem(*, is_broken: bool = False) -> str | None:
    """Return `torchvision_problem` of what is installed, once in this process and its children."""
    if _RETURNED in os.environ:
        return None
    problem = torchvision_problem(is_broken=is_broken)
    if problem is not None:
        os.environ[_RETURNED] = "1"
    return problem


def _are_other_builds(torch: str | None, torchvision: str | None) -> bool:
    """Return True if two tags are of different builds of PyTorch's index."""
    ours, theirs = _build(torch), _build(torchvision)
    if any(tag is not None and not _BUILDS.fullmatch(tag) for tag in (ours, theirs)):
        return False
    return ours != theirs


def _build(tag: str | None) -> str | None:
    """Return the build of a version's tag; without one, PyPI's: of CUDA only on Linux x86-64."""
    is_cuda = sys.platform == "linux" and platform.machine() == "x86_64"
    return tag if tag is not None or is_cuda else "cpu"


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
