"""Suggest what was meant by an option that a command does not have."""

from __future__ import annotations

import dataclasses
import difflib
import re
import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from types import MappingProxyType
from typing import Annotated, Any, Final, get_args, get_origin

from tyro.conf import FlagCreatePairsOff, Positional

from stepladder.errors import UsageError

_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--batch-size": "b bs batch batchsize train-batch-size per-device-train-batch-size",
        "--epochs": "e n epoch num-epochs n-epochs nb-epochs num-train-epochs max-epochs",
        "--lr": "learning-rate learningrate lr0 base-lr",
        "--model": "m arch architecture backbone net network model-name",
        "--data": "d dataset data-dir data-path datadir dataset-dir input input-dir images",
        "--source": "from src source-dir",
        "--out": "o output out-dir output-dir save-dir into dest destination target-dir",
        "--val-frac": "val val-split validation-split val-size val-ratio val-percent test-size",
        "--run.dir": "o out output out-dir output-dir save-dir logdir log-dir run-dir project name",
        "--loader.threads": "j workers num-workers n-workers",
        "--workers": "j num-workers n-workers threads",
        "--optimizer.name": "optim opt optimizer optimizer-name",
        "--optimizer.weight-decay": "wd",
        "--optimizer.clip-norm": "clip grad-clip clip-grad clip-grad-norm max-grad-norm",
        "--schedule.kind": "schedule scheduler lr-scheduler lr-scheduler-type sched",
        "--schedule.warmup-steps": "warmup",
        "--device.kind": "device gpu gpus cuda accelerator",
        "--device.precision": "amp fp16 bf16 half mixed-precision dtype",
        "--device.compile": "torch-compile",
        "--loss.label-smoothing": "smoothing",
        "--augment.mixup-alpha": "mixup",
        "--stopping.patience": "early-stopping-patience",
        "--stopping.early": "early-stopping",
        "--size": "imgsz img-size image-size resolution",
        "--label-column": "label labels class-column target",
        "--image-column": "image",
    }
)
"""Options of other tools, by what they are called here."""


_OPTION: Final = re.compile(r"--?[A-Za-z]")  # not a negative number
_OF_ALL: Final = ("-h", "--help")
_MAX_SAME: Final = 3
_CUTOFF: Final = 0.65


def refuse_unknown(flags: type, argv: Sequence[str], *, command: str) -> None:
    """Raise an error for an option that a command does not have; suggests what was meant.

    Args:
        flags: the dataclass of the command.
        argv: the arguments after the command.

    Raises:
        UsageError: for the first unknown option.
    """
    names = tuple(flag_names(flags))
    for word, follower in zip_longest(argv, argv[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        if not _OPTION.match(word) or flag in _OF_ALL or flag.replace("_", "-") in names:
            continue
        if not equals and not _OPTION.match(follower):
            value = follower
        meant = _meant(flag.lstrip("-").replace("_", "-").lower(), names)
        shown = [f"{name} {shlex.quote(value)}" if value else name for name in meant]
        listed = f"`stepladder {command} --help` lists the options."
        fix = f"Did you mean {' or '.join(shown)}?" if shown else listed
        raise UsageError("this command has no such option", where=flag, fix=fix)


def _meant(word: str, names: Sequence[str]) -> list[str]:
    """Return the flags that a word may mean, the most likely one first."""
    known = {other: name for name in names for other in _WORDS.get(name, "").split()}
    same = [name for name in names if name[2:] == word]  # typed with one hyphen
    same = same or [known[word]] if word in known else same
    same = same or [name for name in names if _leaf(name) == _leaf(word)][:_MAX_SAME]
    if same:
        return same
    by_word = known | {_leaf(name): name for name in reversed(names)}
    by_word |= {name.removeprefix("--"): name for name in names}
    close = difflib.get_close_matches(word, by_word, n=1, cutoff=_CUTOFF)
    return [by_word[name] for name in close]


def _leaf(name: str) -> str:
    return name.removeprefix("--").rpartition(".")[2]


def flag_names(flags: type) -> Iterator[str]:
    """Yield the flags of a command, such as `--batch.lr`, in the order of its help."""
    for name in _names(flags, ""):
        yield name if name.startswith("-") else f"--{name.replace('_', '-')}"


def _names(group: type, prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        kind, marks = _unpacked(hints[field.name])
        if Positional in marks:
            continue
        own = next((mark.name for mark in marks if getattr(mark, "name", None) is not None), None)
        name = field.name if own is None else own
        if dataclasses.is_dataclass(kind):
            yield from _names(typing.cast(type, kind), f"{prefix}{name}." if name else prefix)
            continue
        yield f"{prefix}{name}"
        for mark in marks:
            yield from getattr(mark, "aliases", None) or ()
        if kind is bool and FlagCreatePairsOff not in marks:
            yield f"{prefix}no-{name}"


def _unpacked(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without `Annotated`, and its annotations."""
    return (get_args(hint)[0], get_args(hint)[1:]) if get_origin(hint) is Annotated else (hint, ())
