"""Read examples again, after the last step: are masks mirrored together with their pictures?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from stepladder.watching.hooks.inputs.stored import reading_line, without_subsets
from stepladder.watching.probe.clearing import same_draws
from stepladder.watching.probe.independence import silent
from stepladder.watching.seen.labels import MirroredSeen
from stepladder.watching.watcher import Watcher

_MIN_SIDE: Final = 8
_MAX_SIDE: Final = 2048
_MAX_CHANNELS: Final = 4
_NUM_EXAMPLES: Final = 6
_NUM_READS: Final = 6
_MAX_READ_S: Final = 2.0  # for all of them
_MAX_CLASSES: Final = 32  # distinct values of a mask; a picture has more
_ALIKE: Final = 0.8  # correlation of a picture with the same one, mirrored
_SAME: Final = 0.98  # of the pixels of a mask
_GAP: Final = 0.1  # in correlation, to the second best way of mirroring
_MASK_GAP: Final = 0.02
_Array = np.ndarray[Any, Any]


class Mirrored:
    """Keeps a dataset whose targets are masks, and compares several reads of its examples."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._latest: Any = None  # of the last loader that began a pass
        self._kept: Any = None

    def install(self, watcher: Watcher) -> None:
        """Follow passes over loaders, and losses."""
        self._watcher = watcher
        watcher.patches.wrap(DataLoader, "__iter__", before=self._begins)
        watcher.on_loss.append(self._note)

    def settle(self) -> None:
        """Forget the dataset of the last pass."""
        self._latest = None

    def _begins(self, args: tuple[Any, ...], _kwargs: Any) -> None:
        self._latest = args[0].dataset if self._kept is None else None

    def _note(self, target: Tensor, scores: Tensor) -> None:
        is_mask = target.dim() >= 3 and min(target.shape[-2:]) >= _MIN_SIDE
        if self._latest is None or not is_mask or scores.dim() < 3 or not torch.is_grad_enabled():
            return
        self._kept, self._latest = self._latest, None

    def replay(self) -> None:
        """Read a few examples several times; nothing is printed, random states are restored."""
        dataset, self._kept = self._kept, None
        if dataset is None or isinstance(dataset, IterableDataset):
            return
        inner = without_subsets(dataset)
        where = reading_line(self._watcher.own, inner)
        seen = MirroredSeen(where=where, dataset=type(inner).__name__)
        try:
            with same_draws(), silent():
                _compare_reads(dataset, seen)
        except Exception as error:  # such as a file that the script has closed
            seen.why_not = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        self._watcher.seen.mirrored = seen


def _compare_reads(dataset: Any, seen: MirroredSeen) -> None:
    began = perf_counter()
    num = len(dataset)
    for idx in sorted({num * at // _NUM_EXAMPLES for at in range(_NUM_EXAMPLES)}):
        reads: list[tuple[_Array, _Array]] = []
        for _ in range(_NUM_READS):
            if perf_counter() - began > _MAX_READ_S:
                return
            found = picture_and_mask(dataset[idx])
            if found is None:
                return
            reads.append(found)
        num_apart = 0
        for picture, mask in reads[1:]:
            of_picture = _way(reads[0][0], picture, _correlation, _ALIKE, _GAP)
            of_mask = _way(reads[0][1], mask, _share, _SAME, _MASK_GAP)
            if of_picture is not None and of_mask is not None:
                seen.num_pairs += 1
                num_apart += of_picture != of_mask
        seen.num_apart += num_apart
        seen.num_examples_apart += num_apart > 0


def picture_and_mask(example: Any) -> tuple[_Array, _Array] | None:
    """Return a picture and its mask as (channels, height, width); None if it is no such example.

    A mask has a few values, and a picture of the same size has more.
    """
    planes = [plane for leaf in _leaves(example) if (plane := _planes(leaf)) is not None]
    if len(planes) != 2 or planes[0].shape[1:] != planes[1].shape[1:]:
        return None
    few = [len(np.unique(one)) <= _MAX_CLASSES for one in planes]
    if few[0] == few[1]:
        return None
    mask, picture = planes if few[0] else planes[::-1]
    return (picture, mask) if len(mask) == 1 else None


def _leaves(example: Any, depth: int = 2) -> Iterator[Any]:
    if isinstance(example, dict):
        example = list(example.values())
    if isinstance(example, (list, tuple)):
        for one in example if depth else ():
            yield from _leaves(one, depth - 1)
    else:
        yield example


def _planes(value: Any) -> _Array | None:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    elif hasattr(value, "getbands"):  # a picture of PIL
        value = np.asarray(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        return None
    if value.ndim not in (2, 3):
        return None
    if value.ndim == 2:
        value = value[None]
    elif value.shape[2] <= _MAX_CHANNELS < value.shape[0]:
        value = value.transpose(2, 0, 1)
    sides = value.shape[1:]
    is_picture = len(value) <= _MAX_CHANNELS and _MIN_SIDE <= min(sides) <= max(sides) <= _MAX_SIDE
    return value if is_picture else None


def _way(
    first: _Array,
    other: _Array,
    alike: Callable[[_Array, _Array], float],
    least: float,
    gap: float,
) -> int | None:
    """Return in which way one is the other, mirrored; None if it is neither."""
    if first.shape != other.shape:
        return None
    scores = [alike(one, other) for one in _mirrored(first)]
    second, best = sorted(scores)[-2:]
    return scores.index(best) if best >= least and second <= best - gap else None


def _mirrored(planes: _Array) -> Sequence[_Array]:
    flips = [planes, planes[:, :, ::-1], planes[:, ::-1], planes[:, ::-1, ::-1]]
    if planes.shape[1] == planes.shape[2]:
        flips += [one.transpose(0, 2, 1) for one in flips]
    return flips


def _correlation(one: _Array, other: _Array) -> float:
    first, second = (np.asarray(each, np.float64) for each in (one, other))
    first, second = first - first.mean(), second - second.mean()
    norm = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / norm if norm else 0.0


def _share(one: _Array, other: _Array) -> float:
    return float((one == other).mean())
