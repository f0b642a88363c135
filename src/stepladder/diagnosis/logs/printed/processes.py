"""Logs into which several processes wrote, such as the ranks of a distributed training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepladder.diagnosis.logs.printed.screen import screen_lines

_WORDS = r"rank|local_rank|global_rank|gpu|worker|process|proc|device|cuda|default"
_TAGS = (
    re.compile(  # [GPU2], [rank: 1]:, <rank 3>
        rf"[\[<(](?P<word>{_WORDS})[ :_=#-]{{0,2}}(?P<rank>\d+)[\])>]:?", re.IGNORECASE
    ),
    re.compile(  # of Ray
        r"\((?:(?P<word>\w+) )?pid=(?P<rank>\d+)(?:, ip=[\d.]+)?\)"
    ),
    re.compile(r"^\[\d+,(?P<rank>\d+)\](?:<std\w+>)?:?"),  # of mpirun --tag-output
    re.compile(  # Rank 1: …, `gpu=2, epoch=3`
        rf"(?:^|(?<=[\s,|:]))(?P<word>{_WORDS})[ :_=#-]{{0,2}}(?P<rank>\d+)(?=[\s,|:\]])[:,]?",
        re.IGNORECASE,
    ),
    re.compile(r"^ *(?P<rank>\d+): (?=.*\bepoch\b)", re.IGNORECASE),  # of srun --label
)
_OF_RAY = _TAGS[1]
_COUNTED_FROM_0 = _TAGS[3:]  # a bare `Rank-1`, `Rank-5` is a metric
_RAY_RANKS = frozenset({"RayTrainWorker", "BaseWorkerMixin", "TrainWorker"})  # of one training
_HEAD = 90  # characters in which a tag is looked for
_DIGITS = re.compile(r"\d+")
_DECIMAL = re.compile(r"\d\.\d")


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one process printed, with the lines that name none.

    Attributes:
        name: of the process; empty: the log names none.
        text: its lines, without its name.
        notes: which processes were left out.
    """

    name: str
    text: str
    notes: tuple[str, ...] = ()


def split_processes(text: str) -> list[Part]:
    """Split a log by the processes that wrote its lines.

    The ranks of one training print the same evaluations, each of its own: those of the first rank
    are read. The trials of Ray Tune are different trainings. A log that names no processes, or
    only one, is returned as it is.
    """
    lines = screen_lines(text)
    for tag in _TAGS:
        found = [tag.search(line[:_HEAD]) for line in lines]
        names = [None if one is None else _name(one) for one in found]
        by_name = {name: [] for name in names if name is not None}  # type: dict[str, list[str]]
        if len(by_name) < 2 or (tag in _COUNTED_FROM_0 and not _is_from_0(by_name)):
            continue
        for line, one, name in zip(lines, found, names, strict=True):
            if one is not None and name is not None:
                by_name[name].append(line[: one.start()] + line[one.end() :])
        if not _is_alike(by_name):
            continue
        is_trials = tag is _OF_RAY and not any(name.split()[0] in _RAY_RANKS for name in by_name)
        chosen = _with_values(by_name) if is_trials else [_first(by_name)]
        return [
            Part(
                name=name if is_trials else "",
                text="\n".join(
                    line if one is None else line[: one.start()] + line[one.end() :]
                    for line, one, own in zip(lines, found, names, strict=True)
                    if own in (None, name)
                ),
                notes=() if is_trials else (_note(by_name, name),),
            )
            for name in chosen
        ]
    return [Part(name="", text=text)]


def _name(found: re.Match[str]) -> str:
    word = found.groupdict().get("word")
    if found.re is _OF_RAY:
        return f"{word or 'pid'} {found['rank']}"
    return f"{(word or 'rank').lower()} {found['rank']}".replace("gpu", "GPU")


def _is_from_0(names: Mapping[str, object]) -> bool:
    return {_number(name) for name in names} == set(range(len(names)))


def _number(name: str) -> int:
    return int(name.split()[-1])


def _is_alike(by_name: Mapping[str, Sequence[str]]) -> bool:
    """Return True if at least two processes print lines that differ in their numbers only."""
    shapes = [
        {_DIGITS.sub("", line) for line in lines if _DECIMAL.search(line)}
        for lines in by_name.values()
    ]
    return any(first & second for idx, first in enumerate(shapes) for second in shapes[idx + 1 :])


def _first(by_name: Mapping[str, Sequence[str]]) -> str:
    """Return the first rank of those that print most; ids of processes are in their order."""
    names = _with_values(by_name)
    is_ids = any(name.split()[0] in _RAY_RANKS for name in names)
    return names[0] if is_ids else min(names, key=_number)


def _with_values(by_name: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the processes that print at least half as many numbers as the one with most."""
    num = {name: sum(map(bool, map(_DECIMAL.search, lines))) for name, lines in by_name.items()}
    return [name for name in by_name if 2 * num[name] >= max(num.values())]


def _note(by_name: Mapping[str, object], chosen: str) -> str:
    return (
        f"{len(by_name)} processes wrote this log, and only the lines of {chosen} are read; if "
        "each evaluated its own part of the validation set, the results are of that part"
    )
