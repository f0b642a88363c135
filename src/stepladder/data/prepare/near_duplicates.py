"""Find held-out pictures that look like one of train, such as two shots of one scene.

A picture's look is a thumbnail of 5 x 5 pixels. Two pictures are near-duplicates if their looks
correlate both before and after the mean look of train is subtracted; without the second test, all
pictures of one kind (such as chest X-rays) would be near-duplicates of each other.

The numbers were chosen on photographs. Of the demo's bursts, split at random, 3.2 % and 5.6 %
of the held-out photographs are near one of train; of its own test split, which has other scenes,
0.15 %. Of 1,727 test photographs of Caltech 101, 1.5 % are near one of 2,995 others, all 35 pairs
within one class (drawings and shots that differ by a crop or a border). The usual 64-bit
difference hash with a distance of 4 bits found no burst, as the camera moves between shots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepladder.data.decoding.resize import Pixels, resize, resize_stack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Looks = NDArray[np.uint8]
    Vectors = NDArray[np.float32]
else:
    Looks = Vectors = Any

LOOK_SIDE = 5
LOOK_LENGTH = LOOK_SIDE * LOOK_SIDE * 3
_MIN_CORRELATION = 0.985
_MIN_CORRELATION_OFF_MEAN = 0.95
_MIN_LENGTH = 2.0 * LOOK_LENGTH**0.5  # grey levels: a blank picture is similar to no other
_MAX_PAIRS = 2_000_000_000  # some ten seconds on two cores
_BLOCK, _PART = 256, 65_536  # looks, held-out and of train, compared in one step


@dataclass(frozen=True)
class NearCount:
    """Number of compared held-out pictures, and of those that are near one of train."""

    num_near: int
    num_compared: int

    @property
    def frac(self) -> float:
        """Share of the compared pictures that are near, in [0, 1]."""
        return self.num_near / self.num_compared if self.num_compared else 0.0


def look(pixels: Pixels) -> Looks:
    """Shrink a picture (h, w, 3) to its look, uint8 (75,).

    The picture must have no padding: white bars would make pictures of one shape similar.
    """
    return resize(pixels, LOOK_SIDE, LOOK_SIDE).reshape(LOOK_LENGTH)


def looks(pictures: Sequence[Pixels]) -> list[Looks]:
    """Shrink pictures, batched by shape, as a call costs as much as a small picture."""
    found: list[Looks] = [np.zeros(0, dtype=np.uint8)] * len(pictures)
    places = defaultdict(list)
    for place, pixels in enumerate(pictures):
        places[pixels.shape].append(place)
    for some in places.values():
        stack = np.stack([pictures[place] for place in some])
        shrunk = resize_stack(stack, LOOK_SIDE, LOOK_SIDE).reshape(-1, LOOK_LENGTH)
        for place, one in zip(some, shrunk, strict=True):
            found[place] = one
    return found


def count_near(held_out: Looks, train: Looks, *, max_pairs: int = _MAX_PAIRS) -> NearCount:
    """Count the held-out looks that are near a look of train.

    Compares all pairs, or an evenly spaced sample of the held-out looks if there are more than
    max_pairs.

    Shapes: held_out (n, 75), train (m, 75), uint8.
    """
    if not len(held_out) or not len(train):
        return NearCount(0, len(held_out))
    num_compared = min(len(held_out), max(1, max_pairs // len(train)))
    sample = held_out[np.linspace(0, len(held_out) - 1, num_compared).astype(np.int64)]
    sample_looks = _off_grey(sample)
    parts = [train[start : start + _PART] for start in range(0, len(train), _PART)]
    total = sum(_off_grey(part).sum(axis=0, dtype=np.float64) for part in parts)
    mean = (total / len(train)).astype(np.float32)
    is_near = np.zeros(num_compared, dtype=bool)
    for part in parts:  # so that memory does not grow with the number of pictures
        looks = _off_grey(part)
        as_is, off_mean = _unit(looks), _unit(looks - mean)
        for start in range(0, num_compared, _BLOCK):
            block = sample_looks[start : start + _BLOCK]
            near = _unit(block) @ as_is.T >= _MIN_CORRELATION  # (block, part)
            if near.any():
                near &= _unit(block - mean) @ off_mean.T >= _MIN_CORRELATION_OFF_MEAN
                is_near[start : start + _BLOCK] |= near.any(axis=1)
    return NearCount(int(is_near.sum()), num_compared)


def _off_grey(looks: Looks) -> Vectors:
    """Subtract each look's mean brightness; looks without contrast become zero."""
    vectors = looks.astype(np.float32)
    vectors -= vectors.mean(axis=1, keepdims=True)
    vectors[np.linalg.norm(vectors, axis=1) < _MIN_LENGTH] = 0
    return vectors


def _unit(vectors: Vectors) -> Vectors:
    unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    return unit
