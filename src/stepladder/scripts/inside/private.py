"""A private copy of the folder in which a script runs, so that its files are left alone.

The copy has links to everything in the original folder, and beside it, so that `../data` is found.
Before the script writes to a file or changes a folder, the link is replaced by a copy, or by a
folder of links, so that only the private one changes. Other places are refused, apart from
temporary files and caches; where the kernel has Landlock, native code is refused as well.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from stepladder.scripts.inside.landlock import allow_writes_only

_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGED: Final = {  # audit events, and which of their arguments are paths that they change
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "os.chmod": (0,),
    "os.rmdir": (0,),
    "os.remove": (0,),
    "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
    "shutil.copyfile": (1,),
}
_MAX_PARENTS: Final = 3
_MAX_ENTRIES: Final = 5000
_FREE: Final = ("/dev", "/proc", "/sys")
_DEVICES: Final = ("/dev/null", "/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/zero")
"""What is free below /dev in any case: the original folder may be in /dev/shm."""
_CACHES: Final = (".cache", ".triton", ".nv", ".config/matplotlib")
_CACHE_VARIABLES: Final = ("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR")


class WroteOutsideError(OSError):
    """The script writes to a place that has no private copy."""


def mirror(original: Path, private: Path, *, without: Path) -> None:
    """Fill a new folder with links to what the original one has, except one of its folders."""
    private.mkdir(parents=True)
    for entry in original.iterdir():
        if entry.resolve() != without.resolve():
            (private / entry.name).symlink_to(entry)


def mirror_with_parents(original: Path, top: Path, *, without: Path) -> Path:
    """Fill a new folder with links to a folder above the original one, and return its mirror.

    The folders in between are folders of links too. The one above is three levels up, or as far as
    folders can be listed and have no more than 5,000 entries.
    """
    original, skipped = original.resolve(), without.resolve()
    above: list[Path] = []
    for parent in original.parents[:_MAX_PARENTS]:
        if parent == parent.parent or not _has_few(parent):
            break
        above.append(parent)
    at = top
    chain = [*reversed(above), original]
    for folder, inner in pairwise(chain):
        at.mkdir(parents=True)
        for entry in folder.iterdir():
            if entry not in (inner, skipped):
                (at / entry.name).symlink_to(entry)
        at = at / inner.name
    mirror(original, at, without=without)
    return at


def _has_few(folder: Path) -> bool:
    try:
        return sum(1 for _ in islice(folder.iterdir(), _MAX_ENTRIES + 1)) <= _MAX_ENTRIES
    except OSError:
        return False


def replace_in_mirror(private: Path, relative: Path, text: str) -> None:
    """Write another text instead of a file of the original folder."""
    at = private
    for part in relative.parts[:-1]:
        at = at / part
        if at.is_symlink():
            _open_up(at)
    file = private / relative
    file.unlink(missing_ok=True)
    file.write_text(text, encoding="utf-8")


class Private:
    """Keeps what a script writes in its private folder.

    Args:
        original: the folder in which the user typed the command.
        private: the mirror that the script runs in, or the folder above it that has mirrors of what
            is beside.
        refused: called with the path before a write to another place is refused.
        free: folders to which it may write as well.
    """

    def __init__(
        self,
        original: Path,
        private: Path,
        refused: Callable[[str], None],
        free: Sequence[Path] = (),
    ) -> None:
        self._original = original.resolve()
        self._private = private.resolve()
        self._refused = refused
        self._busy = threading.local()  # several threads may write
        home = Path.home()
        caches = [home / name for name in _CACHES]
        caches += [Path(os.environ[name]) for name in _CACHE_VARIABLES if name in os.environ]
        places = [
            *map(Path, (*_FREE, *_DEVICES)),
            Path(tempfile.gettempdir()),
            Path(sys.prefix),
            *caches,
        ]
        resolved = [place.resolve() for place in (*places, *free)]
        self._free = [one for one in resolved if not self._original.is_relative_to(one)]

    def install(self) -> bool:
        """Follow what the script opens and changes, for as long as the process lives.

        Returns:
            Whether the kernel refuses what cannot be followed, such as writes of native code.
        """
        sys.addaudithook(self._hear)
        return allow_writes_only([self._private, *self._free])

    def follow_native(self) -> None:
        """Follow files that torch and safetensors write by native code; torch must be imported."""
        import safetensors
        import torch

        for owner, name, at in (
            (torch, "save", 1),
            (torch.jit, "save", 1),
            (safetensors, "serialize_file", 1),
        ):
            self._wrap(owner, name, at)

    def _wrap(self, owner: Any, name: str, at: int) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            target = args[at] if len(args) > at else kwargs.get("f", kwargs.get("filename"))
            if isinstance(target, (str, os.PathLike)):
                self.prepare(target)
            return original(*args, **kwargs)

        setattr(owner, name, wrapper)

    def prepare(self, path: Any) -> None:
        """Make a path private before it is written to.

        Raises:
            WroteOutsideError: if it is in another place.
        """
        if isinstance(path, int) or path is None or getattr(self._busy, "is_it", False):
            return
        self._busy.is_it = True
        try:
            self._make_private(Path(os.path.normpath(Path.cwd() / os.fsdecode(path))))
        finally:
            self._busy.is_it = False

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            is_writing = (
                any(letter in mode for letter in "wax+")
                if isinstance(mode, str)
                else bool(flags & _WRITES)
            )
            if is_writing:
                self.prepare(path)
        elif event in _CHANGED:
            for at in _CHANGED[event]:
                if at < len(args):
                    self.prepare(args[at])

    def _make_private(self, path: Path) -> None:
        if not path.is_relative_to(self._private):
            real = path.parent.resolve() / path.name
            is_own = real.is_relative_to(self._private)
            if is_own or "__pycache__" in real.parts or self._is_free(real):
                return
            self._refused(str(real))
            raise WroteOutsideError(f"stepladder: the script writes outside of its folder: {real}")
        at = self._private
        for part in path.relative_to(self._private).parts[:-1]:
            at = at / part
            if at.is_symlink() and at.is_dir():
                _open_up(at)
        if path.is_symlink():
            if path.is_dir():
                _open_up(path)
            elif path.exists():
                _copy(path)

    def _is_free(self, path: Path) -> bool:
        """Return True for a temporary file, a cache or a device."""
        return any(path.is_relative_to(place) for place in self._free)


def _open_up(link: Path) -> None:
    """Replace a link to a folder by a folder of links."""
    folder = link.resolve()
    link.unlink()
    link.mkdir()
    for entry in folder.iterdir():
        (link / entry.name).symlink_to(entry)


def _copy(link: Path) -> None:
    """Replace a link to a file by a copy of it."""
    file = link.resolve()
    link.unlink()
    shutil.copy2(file, link)
