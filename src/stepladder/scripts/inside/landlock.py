"""Let the kernel refuse writes outside of a few folders, by native code as well (Linux).

Source: the kernel's documentation, "Landlock: unprivileged access control"; `linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_VERSION: Final = 1  # a flag: return the version instead of a ruleset
_PATH_BENEATH: Final = 1
_NO_NEW_PRIVS: Final = 38
_WRITE_FILE: Final = 1 << 1
_CHANGE_FOLDERS: Final = sum(1 << bit for bit in range(4, 13))  # remove and make all kinds of files
_REFER: Final = 1 << 13  # move between folders; version 2
_TRUNCATE: Final = 1 << 14  # version 3


def allow_writes_only(folders: Sequence[Path]) -> bool:
    """Restrict this process, and all that it starts, to writing below these folders.

    A folder may also be a file. Those that do not exist are left out.

    Returns:
        Whether the kernel does it: not before Linux 5.19, nor where Landlock is switched off.
    """
    try:
        call = ctypes.CDLL(None, use_errno=True).syscall
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (AttributeError, OSError):
        return False
    version = call(_CREATE_RULESET, None, 0, _VERSION)
    if version < 2:  # without the right to move, a rename between folders is always refused
        return False
    handled = _WRITE_FILE | _CHANGE_FOLDERS | _REFER | (_TRUNCATE if version >= 3 else 0)
    attribute = ctypes.create_string_buffer(struct.pack("=Q", handled), 8)
    rules = call(_CREATE_RULESET, attribute, 8, 0)
    if rules < 0:
        return False
    try:
        for folder in folders:
            _allow(call, rules, folder, handled)
        if prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        return bool(call(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def _allow(call: Callable[..., int], rules: int, path: Path, handled: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        is_folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        allowed = handled if is_folder else handled & (_WRITE_FILE | _TRUNCATE)
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, fd), 12)
        call(_ADD_RULE, rules, _PATH_BENEATH, rule, 0)
    finally:
        os.close(fd)
