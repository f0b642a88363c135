"""Average precision as Detectron2 and pycocotools print it: tables, and lines with parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from stepladder.diagnosis.logs.meaning.column_names import read_number

_COPY = re.compile(r"\bcopypaste: (.*)")
_TASK = re.compile(r"Task: (\w+)")
_DATASET = re.compile(r"Evaluation results for (\S+) in csv format")
_RESULTS = re.compile(r"Evaluation results for (bbox|segm|keypoints):")
_CELLS = re.compile(r"\s*\|(.+)\|\s*")
_TYPE = re.compile(r"IoU metric: (\w+)|annotation type \*(\w+)\*")
_SUMMARY = re.compile(r"Average (?:Precision|Recall)\s+\(A[PR]\)\s+@\[")
_AP = re.compile(
    r"\(AP\)\s+@\[ IoU=0\.50:0\.95 +\| area= *all \| maxDets= *\d+ \] = (-?\d+(?:\.\d+)?)"
)
_MEAN = re.compile(r"\b(?:bbox|segm)_mAP\b")  # of OpenMMLab, which repeats the summary
_ITERATION = re.compile(r"\biter: (\d+)\b(?!/)")


def with_precisions(lines: Sequence[str]) -> list[str]:
    """Return lines in which each evaluation is one line, such as `iter: 499 bbox/AP: 31.2`.

    Of Detectron2 its lines `copypaste` are used, else its tables, else the summary of pycocotools,
    whose thresholds (`IoU=0.50:0.95`) are parameters. Detectron2 writes an evaluation before the
    line of its iteration if it evaluates within the training, and after it at the end.
    """
    if not any(_SUMMARY.search(line) or _COPY.search(line) or _RESULTS.search(line)
               for line in lines):  # fmt: skip
        return list(lines)
    if any(map(_COPY.search, lines)):
        found = list(_copied(lines))
    elif any(map(_RESULTS.search, lines)):
        found = list(_tabled(lines))
    elif any(map(_MEAN.search, lines)):
        found = []
    else:
        found = list(_summed_up(lines))
    places = _iterations(lines, sorted({idx for idx, _ in found}))
    new = {idx: f"{places.get(idx, '')}{said}" for idx, said in found}
    return [
        new.get(idx, line)
        for idx, line in enumerate(lines)
        if idx in new or not (_SUMMARY.search(line) or _COPY.search(line) or _CELLS.fullmatch(line))
    ]


def _copied(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the first metric of each task; of several datasets, those of the first one."""
    task = dataset = first = ""
    names: list[str] = []
    for idx, line in enumerate(lines):
        if of := _DATASET.search(line):
            dataset = of[1]
            first = first or dataset
        if (copy := _COPY.search(line)) is None:
            continue
        if named := _TASK.match(copy[1]):
            task, names = named[1], []
        elif not names:
            names = copy[1].split(",")
        elif dataset == first:
            yield from _first_value(idx, task, names, copy[1].split(","))


def _tabled(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    task = ""
    names: list[str] = []
    for idx, line in enumerate(lines):
        if results := _RESULTS.search(line):
            task, names = results[1], []
        elif task and (row := _CELLS.fullmatch(line)):
            cells = [cell.strip() for cell in row[1].split("|")]
            if not names:
                names = cells
            elif read_number(cells[0]) is not None:
                yield from _first_value(idx, task, names, cells)
                task = ""


def _first_value(
    idx: int, task: str, names: Sequence[str], values: Sequence[str]
) -> Iterator[tuple[int, str]]:
    value = read_number(values[0])
    if value is not None and math.isfinite(value):
        yield idx, f"{task}/{names[0].strip()}: {values[0].strip()}"


def _summed_up(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    task = "bbox"
    for idx, line in enumerate(lines):
        if kind := _TYPE.search(line):
            task = kind[1] or kind[2]
        elif (found := _AP.search(line)) and not found[1].startswith("-"):
            yield idx, f"{task} AP: {found[1]}"


def _iterations(lines: Sequence[str], at: Sequence[int]) -> dict[int, str]:
    """Return the iteration of each evaluation: the one before it in the log, or the one after.

    That of a regular period is the one with the larger common divisor.
    """
    steps = [(idx, int(found[1])) for idx, line in enumerate(lines) if
             (found := _ITERATION.search(line))]  # fmt: skip
    before = {i: max(((idx, step) for idx, step in steps if idx < i), default=None) for i in at}
    after = {i: min(((idx, step) for idx, step in steps if idx > i), default=None) for i in at}
    first = {i: found[1] for i, found in before.items() if found is not None}
    second = {i: found[1] for i, found in after.items() if found is not None}
    if not first or _is_started_again([step for _, step in steps]):
        return {}
    second = first | second
    is_after = math.gcd(*(step + 1 for step in second.values())) > math.gcd(
        *(step + 1 for step in first.values())
    )
    return {i: f"iter: {step} " for i, step in (second if is_after else first).items()}


def _is_started_again(steps: Sequence[int]) -> bool:
    return any(after < before for before, after in pairwise(steps))
