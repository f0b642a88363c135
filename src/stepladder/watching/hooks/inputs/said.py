"""Measure whether rows say anything about their labels."""

from __future__ import annotations

from math import log
from statistics import fmean
from typing import Final

import torch
from torch import Tensor

from stepladder.watching.hooks.hashes import hashes_of
from stepladder.watching.seen.labels import LabelsSeen

_MAX_ROWS: Final = 512
_MIN_ROWS: Final = 100
_MAX_CLASSES: Final = 20
_PER_CLASS: Final = 8
_NUM_NEAREST: Final = 5
_NUM_PERMUTATIONS: Final = 40
_MAX_COLUMNS: Final = 64
_BY_CHANCE: Final = 1.3  # times the expected largest correlation of independent columns
_RIDGE: Final = 0.1  # of the mean eigenvalue
_FLAT: Final = (0.95, 1.3)  # of the loss of a guess: the last losses of a training without success
_MIN_LOSSES: Final = 60
_MIN_FIRST: Final = 16


def guess_level(labels: Tensor) -> float:
    """Return the cross entropy of the shares of classes: the loss of the best constant guess."""
    counts = torch.unique(labels, return_counts=True)[1]
    shares: list[float] = (counts / counts.sum()).tolist()
    return -sum(share * log(share) for share in shares)


def is_flat(losses: list[float], guess: float) -> bool:
    """Return whether the losses ended where a constant guess is, and never were below it."""
    if len(losses) < _MIN_LOSSES or guess <= 0:
        return False
    size = len(losses) // 4
    means = [fmean(losses[at : at + size]) for at in range(0, len(losses) - size + 1, size)]
    return min(means) > _FLAT[0] * guess and means[-1] < _FLAT[1] * guess


def is_new_flat(losses: list[float], guess: float) -> bool:
    """Return whether the losses of a first epoch ended where a constant guess is."""
    if len(losses) < _MIN_FIRST or guess <= 0:
        return False
    last = fmean(losses[len(losses) // 2 :])
    return _FLAT[0] * guess < last < _FLAT[1] * guess


def said_by(rows: Tensor, labels: Tensor) -> LabelsSeen | None:
    """Compare what rows say about their labels with what they say about permuted ones.

    No random number of the script's generators is drawn.

    Returns:
        None if there are too few rows or too many classes.
    """
    is_whole = torch.isfinite(rows).all(1)
    rows, labels = rows[is_whole].double(), labels[is_whole]
    _, classes, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    is_fit = 2 <= len(counts) <= _MAX_CLASSES and int(counts.min()) >= _PER_CLASS
    if len(rows) < _MIN_ROWS or not is_fit:
        return None
    shares = counts / counts.sum()
    seen = LabelsSeen(
        num_rows=len(rows),
        num_classes=len(counts),
        guess=guess_level(classes),
        chance=1 - float(shares.square().sum()),
    )
    hashes = hashes_of([rows])
    known: dict[int, int] = {}
    first = []
    for at, (one, label) in enumerate(zip(hashes.tolist(), classes.tolist(), strict=True)):
        if one not in known:
            known[one] = label
            first.append(at)
        else:
            seen.num_again += 1
            seen.num_changed += known[one] != label
    some = torch.tensor(first[:_MAX_ROWS])
    seen.num_distinct = len(first)
    if len(some) >= _MIN_ROWS:
        seen.nearest, seen.linear = _scores(rows[some], classes[some], len(counts))
        seen.is_noise = _is_noise(rows[some])
    return seen


def _is_noise(rows: Tensor) -> bool:
    """Return whether columns are correlated no more than independent ones are by chance."""
    scale = rows.std(0)
    rows = (rows - rows.mean(0))[:, scale > 0] / scale[scale > 0]
    rows = rows[:, :: -(-rows.shape[1] // _MAX_COLUMNS)] if rows.shape[1] else rows
    num, width = rows.shape
    if width < 2:
        return True
    largest = float((rows.T @ rows / num).fill_diagonal_(0).abs().max())
    expected: float = (2 * log(width * width) / num) ** 0.5
    return largest < _BY_CHANCE * expected


def _scores(rows: Tensor, classes: Tensor, num: int) -> tuple[float, float]:
    """Return by how many deviations two probes beat permuted labels, without their own label."""
    scale = rows.std(0)
    rows = (rows - rows.mean(0))[:, scale > 0] / scale[scale > 0]
    if not rows.shape[1]:
        return 0.0, 0.0
    squares = rows.square().sum(1)
    apart = squares.unsqueeze(1) + squares - 2 * rows @ rows.T
    nearest = apart.fill_diagonal_(torch.inf).topk(_NUM_NEAREST, largest=False).indices
    product = rows @ rows.T
    ridge = _RIDGE * float(product.trace()) / len(rows) + 1e-9
    eye = torch.eye(len(rows), dtype=rows.dtype)
    fit = torch.linalg.solve(product + ridge * eye, product)
    own = fit.diagonal().unsqueeze(1)

    def right(labels: Tensor) -> tuple[float, float]:
        hot = torch.nn.functional.one_hot(labels, num).double()
        centred = hot - hot.mean(0)
        voted = hot[nearest].sum(1).argmax(1)
        fitted = ((fit @ centred - own * centred) / (1 - own).clamp(min=1e-6)).argmax(1)
        return float((voted == labels).double().mean()), float((fitted == labels).double().mean())

    draw = torch.Generator().manual_seed(0)
    drawn = [
        right(classes[torch.randperm(len(classes), generator=draw)])
        for _ in range(_NUM_PERMUTATIONS)
    ]
    found = right(classes)
    scores = []
    for at in (0, 1):
        values = torch.tensor([one[at] for one in drawn])
        scores.append((found[at] - float(values.mean())) / (float(values.std()) + 1e-6))
    return scores[0], scores[1]
