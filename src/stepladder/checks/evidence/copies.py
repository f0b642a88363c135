"""Examples by content: which are copies of each other, and which are blank."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepladder.checks.evidence.sample import digest_of, tensors_of
from stepladder.checks.evidence.spread import Ints, by_row, read_chunks, spread_rows
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.data.decoding.resize import Pixels
from stepladder.data.prepare.near_duplicates import look, sampled

LEAST_NUMBERS = (
    32  # values in an example; with fewer, or few distinct ones, equal examples are expected
)
_LEAST_VALUES = 8
_OVER_CHANCE = 5.0
_MAX_EXAMPLES = 100_000
_MAX_S = 4.0  # a split
_MIN_LOOK_SIDE = 32  # of a picture: a thumbnail of 5x5 says little about smaller ones


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The contents of a split's examples.

    Attributes:
        rows: that were read, in order, (n,).
        digests: of the inputs of each.
        is_constant: whether the inputs of each have a single value.
        looks: uint8 (n, LOOK_LENGTH) of `stepladder.data.prepare.near_duplicates`; None: there are
            no pictures.
        num_all: examples of the split.
        targets: digests of the targets of each; None: of test.
        is_telling: whether inputs are large and varied enough that equal ones are no coincidence.
    """

    rows: Ints
    digests: list[bytes]
    is_constant: list[bool]
    looks: Tensor | None
    num_all: int
    targets: list[bytes] | None
    is_telling: bool


class _Content(NamedTuple):
    """The content of one example; see `Contents`."""

    digest: bytes
    is_constant: bool
    look: Tensor | None
    target: bytes


def contents(job: CheckedJob, split: Split) -> Contents | None:
    """Read as much of a split as time allows; None if it has no rows or no tensors."""
    if not by_row(job, split):
        return None
    return job.remember(f"contents.{split.value}", lambda: _read(job, split))


def _read(job: CheckedJob, split: Split) -> Contents | None:
    source = job.source(split)
    assert source is not None
    found: dict[int, _Content] = {}
    is_telling = True
    seconds = max(0.2, min(_MAX_S, job.left_s() / 8))
    for batch in read_chunks(job, split, spread_rows(len(source), _MAX_EXAMPLES), seconds=seconds):
        if not tensors_of(batch.inputs):
            return None
        is_telling = is_telling and (bool(found) or _is_telling(batch))
        for place, row in enumerate(batch.ids.tolist()):
            found[row] = _content(batch, place, split)
    rows = sorted(found)
    looks = [look for row in rows if (look := found[row].look) is not None]
    return Contents(
        rows=np.array(rows, dtype=np.int64),
        digests=[found[row].digest for row in rows],
        is_constant=[found[row].is_constant for row in rows],
        looks=torch.stack(looks) if len(looks) == len(rows) else None,
        num_all=len(source),
        targets=None if split is Split.TEST else [found[row].target for row in rows],
        is_telling=is_telling,
    )


def _is_telling(batch: Batch) -> bool:
    """Return True if two examples with equal inputs are worth reporting."""
    values = [value for value in tensors_of(batch.inputs) if value.layout is torch.strided]
    if not values:
        return False
    numbers = sum(value[0].numel() for value in values if value.dim() > 0)
    kinds = max(len(torch.unique(value.reshape(-1)[:100_000])) for value in values)
    return numbers >= LEAST_NUMBERS and kinds >= _LEAST_VALUES


def _content(batch: Batch, place: int, split: Split) -> _Content:
    parts = [value[place].detach().cpu() for value in tensors_of(batch.inputs) if value.dim() > 0]
    targets = [] if split is Split.TEST else tensors_of(batch.targets)
    return _Content(
        digest=digest_of(parts),
        is_constant=all(_is_constant(part) for part in parts),
        look=_look(batch, place),
        target=digest_of([value[place].detach().cpu() for value in targets if value.dim() > 0]),
    )


def _is_constant(part: Tensor) -> bool:
    plain = part.reshape(-1)
    if len(plain) == 0 or bool(plain[0] != plain[-1]):
        return len(plain) == 0  # true for nearly every picture, without comparing the rest
    return bool((plain == plain[0]).all())


def _look(batch: Batch, place: int) -> Tensor | None:
    """Shrink a picture to its look; None if it is small, or not a picture."""
    pixels = picture_of(batch, place)
    if pixels is None or min(pixels.shape[:2]) < _MIN_LOOK_SIDE:
        return None
    return torch.from_numpy(look(sampled(pixels)))


def picture_of(batch: Batch, place: int) -> Pixels | None:
    """Return an example as uint8 (h, w, 3), with its values scaled; None if it is no picture."""
    parts = [value[place].detach().cpu() for value in tensors_of(batch.inputs) if value.dim() > 0]
    picture = parts[0] if len(parts) == 1 else None
    if picture is None or picture.dim() != 3:
        return None
    if picture.shape[0] in (1, 3):
        picture = picture.permute(1, 2, 0)
    height, width, colours = picture.shape
    if colours not in (1, 3):
        return None
    pixels = picture.numpy()
    if pixels.dtype != np.uint8:
        low, high = float(pixels.min()), float(pixels.max())
        shares = (pixels.astype(np.float32) - low) / max(high - low, 1e-12)
        pixels = (255 * shares).round().astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(pixels, (height, width, 3)))


def copies_within(contents: Contents) -> list[list[int]]:
    """Return groups of two or more rows with equal inputs, without constant ones."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    each = zip(contents.rows.tolist(), contents.digests, contents.is_constant, strict=True)
    for row, digest, is_constant in each:
        if not is_constant:
            groups[digest].append(row)
    return sorted((rows for rows in groups.values() if len(rows) > 1), key=len, reverse=True)


def copies_between(train: Contents, held_out: Contents) -> list[tuple[int, int]]:
    """Return (held-out row, train row) of equal inputs, without constant ones.

    If inputs are small, targets must be equal as well, and there must be more pairs than expected
    from equal examples within the held-out split.
    """
    train_keys, held_out_keys = _keys(train), _keys(held_out)
    if train_keys is None or held_out_keys is None:
        return []
    where = dict(zip(train_keys, train.rows.tolist(), strict=True))
    each = zip(held_out.rows.tolist(), held_out_keys, held_out.is_constant, strict=True)
    pairs = [
        (row, where[key])
        for row, key, is_constant in each
        if key in where and not (is_constant and held_out.is_telling)
    ]
    num = len(held_out_keys)
    by_chance = (num - len(set(held_out_keys))) * 2 * len(train_keys) / max(1, num)
    is_chance = not held_out.is_telling and len(pairs) <= _OVER_CHANCE * by_chance
    return [] if is_chance else pairs


def _keys(contents: Contents) -> list[bytes] | None:
    """Return the keys to compare; None for small inputs of test, whose targets are not read."""
    if contents.is_telling:
        return contents.digests
    if contents.targets is None:
        return None
    return [a + b for a, b in zip(contents.digests, contents.targets, strict=True)]
