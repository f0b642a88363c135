"""Launchers that start stepladder themselves, so that they are no value of --launch."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from stepladder.errors import UsageError

_STARTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "torchrun": "torchrun --nproc-per-node {num} -m stepladder",
        "slurm": "srun -n {num} stepladder",
        "srun": "srun -n {num} stepladder",
    }
)
_LAUNCH: Final = ("--launch", "--run.launch")
_DEVICES: Final = ("--devices", "--device.count")


def refuse_outer_launchers(argv: Sequence[str], *, command: str) -> None:
    """Raise an error with the command to type if --launch names what starts stepladder.

    Args:
        argv: the arguments after the command.

    Raises:
        UsageError: for torchrun and Slurm.
    """
    words, given = _without(argv, (*_LAUNCH, *_DEVICES))
    name = next((given[flag] for flag in _LAUNCH if flag in given), "").lower()
    if name not in _STARTS:
        return
    num = next((given[flag] for flag in _DEVICES if flag in given), "2")
    start = _STARTS[name].format(num=shlex.quote(num))
    raise UsageError(
        f"{name} starts stepladder, not stepladder {name}",
        where="--launch",
        fix=f"Type: {start} {shlex.join([command, *words])}",
    )


def _without(argv: Sequence[str], flags: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without some flags, and the values of these."""
    words: list[str] = []
    given: dict[str, str] = {}
    left = list(argv)
    while left:
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        if flag not in flags:
            words.append(word)
        elif equals or left:
            given[flag] = value if equals else left.pop(0)
    return words, given
