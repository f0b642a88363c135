"""Write files of `torch.save` in a thread; `rungs/background_saves.py` has it as a diff's lines."""

from __future__ import annotations

import atexit
import copy
import functools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.records.script import Place
from stepladder.scripts.inside.places import call_place
from stepladder.watching.script.own_code import OwnCode

_MAX_WAITING: Final = 2  # files
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
_PAUSE: Final = 4.0  # times as long as the last file took
_MOVES: Final = frozenset({
    "os.rename", "os.remove", "os.link", "os.symlink", "os.rmdir", "os.truncate", "os.listdir",
    "os.scandir", "os.fork", "os.exec", "os.system", "os.posix_spawn", "subprocess.Popen",
})  # fmt: skip


class BackgroundSaves:
    """Writes copies of what is saved in a thread; of several for one file, the last.

    What opens such a file, moves or lists files, or starts a process, waits until all are written.
    """

    def __init__(self, save: Callable[..., None]) -> None:
        self._save = save
        self._waiting: dict[str, tuple[Any, list[Tensor]]] = {}
        self._spare: list[Tensor] = []
        self._writing: str | None = None
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._num_hurried = 0
        self._pid = os.getpid()
        self._errors: list[BaseException] = []
        sys.addaudithook(self._look)
        atexit.register(self.finish)

    def save(self, obj: Any, f: Any, *args: Any, **options: Any) -> None:
        """Save as `torch.save` does, but in the background if the file is given by its path."""
        self._raise()
        try:
            is_path = isinstance(f, (str, os.PathLike)) and not args and not options
            is_path = is_path and os.getpid() == self._pid  # threads do not survive a fork
            copied = self._copied(obj, os.path.abspath(f)) if is_path else None  # noqa: PTH100
        except Exception:  # such as a tensor within a graph, or too little memory
            copied = None
        if copied is None:
            self.finish()
            self._save(obj, f, *args, **options)
            return
        path = os.path.abspath(f)  # noqa: PTH100 - it may be a link, which is kept
        if not Path(path).parent.is_dir():
            self._save(obj, f)  # which raises
        with self._changed:
            while len(self._waiting) >= _MAX_WAITING and path not in self._waiting:
                self._hurry()
            self._waiting[path] = copied
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _copied(self, obj: Any, path: str) -> tuple[Any, list[Tensor]]:
        """Copy an object, into the tensors of a copy that is no longer needed if they fit.

        Freshly allocated memory would cost several times as much as copying into it.

        Returns:
            The copy, and those of its tensors that can be used again.
        """
        tensors = _tensors_in(obj)
        with self._changed:
            _, into = self._waiting.pop(path, (None, None))
            if into is None:
                into, self._spare = self._spare, []
        if [_look_of(one) for one in into] != [_look_of(one) for one in tensors]:
            into = [torch.empty_like(one) for one in tensors]
        for one, other in zip(into, tensors, strict=True):
            one.copy_(other)
        memo: dict[int, Any] = {id(one): other for one, other in zip(tensors, into, strict=True)}
        return copy.deepcopy(obj, memo), into

    def finish(self) -> None:
        """Wait until all files are written."""
        with self._changed:
            while self._waiting or self._writing is not None:
                self._hurry()
        self._raise()

    def _hurry(self) -> None:
        self._num_hurried += 1
        self._changed.notify_all()
        self._changed.wait()
        self._num_hurried -= 1

    def _raise(self) -> None:
        if self._errors:
            raise self._errors.pop()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                self._writing = path = next(iter(self._waiting))
                obj, spare = self._waiting.pop(path)
            began = perf_counter()
            try:
                self._save(obj, path)
            except BaseException as error:
                self._errors.append(error)
            del obj
            now = perf_counter()
            with self._changed:
                self._writing, self._spare = None, spare
                self._changed.notify_all()
                until = now + _PAUSE * (now - began)
                while not self._num_hurried and (left := until - perf_counter()) > 0:
                    self._changed.wait(left)

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        if (not self._waiting and self._writing is None) or os.getpid() != self._pid:
            return
        if event not in _MOVES and event != "open":
            return
        if threading.current_thread() is self._thread:
            return
        if event == "open":
            name = args[0]
            if not isinstance(name, (str, os.PathLike)):
                return
            path = os.path.abspath(name)  # noqa: PTH100
            if path not in self._waiting and path != self._writing:
                return
        self.finish()


def _tensors_in(obj: Any) -> list[Tensor]:
    """Return the tensors in containers that share their memory with no other.

    Empty where there may be others that are not seen, in an object of another kind.
    """
    waiting: list[Any] = [obj]
    seen: dict[int, Any] = {}
    found: dict[int, list[Tensor]] = {}
    while waiting:
        one = waiting.pop()
        if isinstance(one, _PLAIN) or id(one) in seen:
            continue
        seen[id(one)] = one
        if _is_copied(one):
            found.setdefault(one.untyped_storage().data_ptr(), []).append(one)
        elif isinstance(one, (dict, list, tuple)):
            waiting += one.values() if isinstance(one, dict) else one
        elif type(one).__name__ == "Namespace":  # the arguments
            waiting += vars(one).values()
        else:
            return []
    alone = [ones[0] for ones in found.values() if len(ones) == 1]
    return [one for one in alone if one.untyped_storage().nbytes() == one.nbytes]


def _is_copied(one: Any) -> bool:
    """Return whether `copy_` copies all that there is to a tensor."""
    is_plain = type(one) is Tensor and one.layout is torch.strided and not vars(one)
    is_as_is = is_plain and not (one.requires_grad or one.is_quantized or one.is_inference())
    return is_as_is and not one.is_conj() and not one.is_neg()


def _look_of(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _size_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the size of the file that was saved, in bytes; 0 if that is no file."""
    target = args[1] if len(args) > 1 else kwargs.get("f")
    try:
        return Path(target).stat().st_size if isinstance(target, (str, os.PathLike)) else 0
    except OSError:
        return 0


class SaveTimes:
    """Times the calls of `torch.save` in training.

    Attributes:
        seconds: in all of them.
        num_bytes: of the largest file.
        places: the calls, by key; None: in no file of the script.
    """

    def __init__(self, own: OwnCode) -> None:
        self._own = own
        self._is_training = False
        self.seconds = 0.0
        self.num_bytes = 0
        self.places: dict[str, Place | None] = {}

    def install(self) -> None:
        """Wrap `torch.save`."""
        original = torch.save

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            place, _ = call_place(self._own)
            began = perf_counter()
            try:
                original(*args, **kwargs)
            finally:
                if self._is_training:
                    self.seconds += perf_counter() - began
                    self.num_bytes = max(self.num_bytes, _size_of(args, kwargs))
                    self.places["" if place is None else place.key] = place

        torch.save = wrapper

    def begin(self) -> None:
        """Count from now on."""
        self._is_training = True
