"""Find held-out pictures that are the same photograph as one of train, somewhat changed.

Near-duplicates are one photograph that was encoded again, resized, slightly cropped, or made
brighter or darker. Two photographs of one scene are not, unless they are as similar as that.

A picture is compared by its look: a thumbnail of its content, without a border of one colour, in 16
x 16 grey levels and 5 x 5 colours, and one of all of it, with the ground of an object. Two pictures
are near-duplicates if

1. their colours correlate, before and after the mean look of train is subtracted; without the
   second test, all pictures of one kind (such as chest X-rays) would be near-duplicates; and
2. the grey levels of one, or of a part of it that lacks up to a sixteenth at each side, are those
   of the other up to brightness and contrast, within the object alone if the ground has one
   colour. With the ground, any two garments on white would be similar; and
3. either all of both pictures is equal up to brightness and contrast, or they have detail in most
   places that other pictures of train do not have. Two discs of one colour, two spectrograms or
   two glyphs pass the first tests, as each is one of a kind with little variety: how similar other
   pictures of train are says so.

`prepare`, the check `duplicates` and all that shows its result use `find_near` with these numbers.
Measured by bench/data/near_duplicates.py; see docs/store.md.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from stepladder.data.decoding.resize import Pixels, resize_stack

if TYPE_CHECKING:
    Looks = NDArray[np.uint8]
    Vectors = NDArray[np.float32]
    Ints = NDArray[np.int64]
else:
    Looks = Vectors = Ints = Any

_SIDE: Final = 16  # of the grey levels
_COLOUR_SIDE: Final = 5
_NUM_GREY: Final = _SIDE * _SIDE
_NUM_COLOUR: Final = _COLOUR_SIDE * _COLOUR_SIDE * 3
_GROUND: Final = _NUM_GREY + _NUM_COLOUR  # place of the ground's grey level
_UNCUT, _ON_GROUND, _PADDED = 0, 1, 2  # after the ground's grey level
_WHOLE: Final = _GROUND + 2  # place of the grey levels with the ground
LOOK_LENGTH: Final = _WHOLE + _NUM_GREY

_MIN_COLOUR: Final = 0.95
_MIN_COLOUR_OFF_MEAN: Final = 0.85
_MIN_GREY: Final = 0.97
_NOISE: Final = 2.5  # grey levels by which encoding changes a thumbnail
_MAX_GAIN: Final = 1.8
_MIN_LENGTH: Final = 2.0 * _NUM_COLOUR**0.5  # grey levels: a blank picture is similar to no other
_LEAST_DETAIL: Final = 6.0  # grey levels; photographs have 10 to 70
_LEAST_OBJECT: Final = 32  # of 256 pixels: a smaller object has too little detail
_GROUND_RANGE: Final = 14  # grey levels within which pixels are the ground
_LEAST_GROUND_FRAC: Final = 0.25  # of the edge that is white
_LEAST_COLOURED_FRAC: Final = 0.7  # of the edge that has another colour
_WHITE: Final = np.full(3, 255, dtype=np.int16)
_LEAST_OBJECT_FRAC: Final = 0.02  # of a row or column
_EXACT_FRAC: Final = 0.015  # of the contrast, by which all of two equal pictures differ,
_MAX_LEFT_FRAC: Final = 0.02  # or this, or
_MAX_LEFT: Final = 0.5  # grey levels, if the contrast is low, and
_MAX_OF_NEAREST: Final = 0.35  # of the difference from other pictures of train
_MAX_MOVED: Final = 0.8  # of the contrast: an outline is in about the same place
_MIN_DETAIL: Final = 0.72  # correlation of detail,
_MIN_INSIDE: Final = 0.85  # or of that inside an object
_LEAST_PLACES: Final = 100  # of 196 that have detail,
_LEAST_INSIDE: Final = 35  # or inside an object, without its outline;
_PLAIN_KIND: Final = 0.35  # more if other pictures of train have a larger correlation of detail,
_PLACES_OF_KIND: Final = 300.0  # by this times the difference,
_PLAIN_OUTLINES, _PLACES_OF_OUTLINES = 0.3, 1000.0  # or so if outlines count
_LEAST_LEVELS: Final = 2.0  # of grey, which are detail
_NUM_OTHERS: Final = 256  # pictures of train that show how similar pictures of one kind are
_LEAST_OTHERS: Final = 12
_MAX_ALIKE: Final = 3  # of them may be further copies of a picture,
_MAX_ALIKE_FRAC: Final = 0.02  # and this share as well
_MAX_CANDIDATES: Final = 8  # pictures of train that one is compared with in detail
_CUTS: Final = (0.0, 0.5, 1.0)  # sixteenths cut off at a side
_MAX_PAIRS: Final = 2_000_000_000  # some ten seconds on two cores
SAMPLED_SIDE: Final = 64
"""Side to which a larger picture is reduced before its look is computed, or up to twice as much."""
_BLOCK, _PART = 256, 65_536  # looks, held-out and of train, compared in one step
_GREY: Final = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True, eq=False)
class NearPairs:
    """Held-out pictures that are near-duplicates of one of train.

    Attributes:
        held_out, train: positions of both pictures of each pair, (num_near,), by held_out.
        num_compared: held-out pictures that were compared.
    """

    held_out: Ints
    train: Ints
    num_compared: int

    def __len__(self) -> int:
        return len(self.held_out)


def sampled(pixels: Pixels) -> Pixels:
    """Take every n-th pixel of every n-th row, as `prepare` does of a picture in its square."""
    step = max(1, max(pixels.shape[:2]) // SAMPLED_SIDE)
    return np.ascontiguousarray(pixels[::step, ::step])


def look(pixels: Pixels) -> Looks:
    """Shrink a picture (h, w, 3) to its look, uint8 (LOOK_LENGTH,)."""
    return looks([pixels])[0]


def looks(pictures: Sequence[Pixels]) -> list[Looks]:
    """Shrink pictures, batched by shape, as a call costs as much as a small picture."""
    if not pictures:
        return []
    contents = [_without_border(pixels) for pixels in pictures]
    small = _small([pixels for pixels, _ in contents])
    grounds = np.array([ground for _, ground in contents], dtype=np.uint8)  # (n, 2)
    whole = small.copy()
    on_ground = np.flatnonzero(grounds[:, 1] == _ON_GROUND)
    if len(on_ground):
        whole[on_ground] = _small([pictures[place] for place in on_ground.tolist()])
    colour = resize_stack(small, _COLOUR_SIDE, _COLOUR_SIDE).reshape(-1, _NUM_COLOUR)
    return list(np.concatenate((_grey(small), colour, grounds, _grey(whole)), axis=1))


def _small(pictures: Sequence[Pixels]) -> Pixels:
    """Shrink pictures to (n, 16, 16, 3)."""
    places = defaultdict(list)
    for place, pixels in enumerate(pictures):
        places[pixels.shape].append(place)
    small = np.empty((len(pictures), _SIDE, _SIDE, 3), dtype=np.uint8)
    for some in places.values():
        small[some] = resize_stack(np.stack([pictures[place] for place in some]), _SIDE, _SIDE)
    return small


def _grey(small: Pixels) -> Looks:
    levels: Looks = np.rint(small.reshape(-1, 3).astype(np.float32) @ _GREY).astype(np.uint8)
    return levels.reshape(-1, _NUM_GREY)


def _without_border(pixels: Pixels) -> tuple[Pixels, tuple[int, int]]:
    """Cut off a border of one colour, such as the ground of an object, or padding.

    Returns:
        The rest, and the grey level of the ground with _ON_GROUND; 0 and _UNCUT without a border,
        0 and _PADDED if the rest has no ground.
    """
    if min(pixels.shape[:2]) < _COLOUR_SIDE:
        return pixels, (0, _UNCUT)
    colour = _border_colour(_edge(pixels))
    if colour is None:
        return pixels, (0, _UNCUT)
    is_object = (np.abs(pixels.astype(np.int16) - colour) > _GROUND_RANGE).any(axis=2)  # (h, w)
    rows = np.flatnonzero(is_object.mean(axis=1) > _LEAST_OBJECT_FRAC)
    columns = np.flatnonzero(is_object.mean(axis=0) > _LEAST_OBJECT_FRAC)
    if min(len(rows), len(columns)) < _COLOUR_SIDE:
        return pixels, (0, _UNCUT)
    inside = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    if _share(_edge(inside), colour) < _LEAST_GROUND_FRAC:  # padding around a photograph
        return inside, (0, _PADDED)
    return inside, (round(float(colour @ _GREY)), _ON_GROUND)


def _edge(pixels: Pixels) -> NDArray[np.int16]:
    lines = (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])
    return np.concatenate(lines).astype(np.int16)


def _border_colour(edge: NDArray[np.int16]) -> NDArray[np.int16] | None:
    """Return white if a part of the edge is white, or the colour of most of it, or None."""
    if _share(edge, _WHITE) >= _LEAST_GROUND_FRAC:
        return _WHITE
    colour: NDArray[np.int16] = np.median(edge, axis=0).astype(np.int16)
    return colour if _share(edge, colour) >= _LEAST_COLOURED_FRAC else None


def _share(edge: NDArray[np.int16], colour: NDArray[np.int16]) -> float:
    return float((np.abs(edge - colour) <= _GROUND_RANGE).all(axis=1).mean())


def find_near(held_out: Looks, train: Looks, *, max_pairs: int = _MAX_PAIRS) -> NearPairs:
    """Find the held-out looks that are near-duplicates of a look of train, each with the nearest.

    Compares all pairs, or an evenly spaced sample of the held-out looks if there are more than
    max_pairs.

    Shapes: held_out (n, LOOK_LENGTH), train (m, LOOK_LENGTH), uint8.
    """
    none = np.zeros(0, dtype=np.int64)
    if not len(held_out) or not len(train):
        return NearPairs(none, none, len(held_out))
    num_compared = num_compared_of(len(held_out), len(train), max_pairs=max_pairs)
    sample = np.linspace(0, len(held_out) - 1, num_compared).astype(np.int64)
    pairs: dict[int, tuple[float, int]] = {}
    whole = _Whole(train)
    tests = [_Detail(train, is_inside=is_inside) for is_inside in (False, True)]
    for one, other in _candidates(held_out[sample], train):
        own = held_out[sample[one]]
        score = similarity(own, train[other])
        if score <= pairs.get(one, (_MIN_GREY, 0))[0]:
            continue
        if not whole.are_equal(own, train[other]):
            has_ground = own[_GROUND + 1] == _ON_GROUND
            if not any(test.is_shared(one, own, train[other]) for test in tests[: 1 + has_ground]):
                continue
        pairs[one] = score, other
    places = np.array(sorted(pairs), dtype=np.int64)
    nearest = np.array([pairs[place][1] for place in places.tolist()], dtype=np.int64)
    return NearPairs(sample[places], nearest, num_compared)


def num_compared_of(num_held_out: int, num_train: int, *, max_pairs: int = _MAX_PAIRS) -> int:
    """Return how many held-out pictures `find_near` compares."""
    return min(num_held_out, max(1, max_pairs // max(1, num_train)))


def _candidates(held_out: Looks, train: Looks) -> Iterator[tuple[int, int]]:
    """Yield pairs with similar colours: for each held-out look the most similar ones of train."""
    own = _unit(_colours(held_out))
    parts = [train[start : start + _PART] for start in range(0, len(train), _PART)]
    total = sum(_unit(_colours(part)).sum(axis=0, dtype=np.float64) for part in parts)
    mean = (total / len(train)).astype(np.float32)
    found: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for start, part in zip(range(0, len(train), _PART), parts, strict=True):
        others = _unit(_colours(part))  # by part, so that memory does not grow with the pictures
        off_mean = _unit(others - mean)
        for first in range(0, len(own), _BLOCK):
            block = own[first : first + _BLOCK]
            alike = block @ others.T  # (block, part)
            is_near = alike >= _MIN_COLOUR
            if is_near.any():
                is_near &= _unit(block - mean) @ off_mean.T >= _MIN_COLOUR_OFF_MEAN
            for row, column in zip(*(at.tolist() for at in is_near.nonzero()), strict=True):
                found[first + row].append((float(alike[row, column]), start + column))
    for one in sorted(found):
        for _, other in sorted(found[one], key=lambda each: (-each[0], each[1]))[:_MAX_CANDIDATES]:
            yield one, other


def similarity(one: Looks, other: Looks) -> float:
    """Return how similar the grey levels of two looks are, at most 1.

        1 - (v - c^2 / u - noise^2) / v, square root

    with variances u and v and covariance c of the grey levels within the object; the largest value
    over parts of either picture that lack up to a sixteenth at each side. It is 0 if one of the two
    has too little detail, such as a clear sky.
    """
    if min(_detail(one), _detail(other)) < _LEAST_DETAIL:
        return 0.0
    return max(_best_part(one, other), _best_part(other, one))


class _Detail:
    """Whether two pictures have detail in common that other pictures of train do not have.

    Args:
        train: looks, of which an evenly spaced sample shows what pictures of their kind share.
        is_inside: whether only the detail inside objects counts, not their outlines.
    """

    def __init__(self, train: Looks, *, is_inside: bool) -> None:
        self._is_inside = is_inside
        some = _sample(train)
        self._others = _unit(self._of(_square(some), some))  # (num, 196)
        self._place = _place_after_copies(len(some))
        self._of_kind: dict[int, float] = {}

    def is_shared(self, place: int, own: Looks, other: Looks) -> bool:
        """Return True if a picture and one of train share detail in enough places.

        Args:
            place: of the held-out picture, by which its similarity to its kind is remembered.
            own, other: the held-out look, and that of train.
        """
        both = np.stack([own, other])
        num = _num_places(self._of(_square(both), both))
        least = _LEAST_INSIDE if self._is_inside else _LEAST_PLACES
        has_outline = own[_GROUND + 1] == _ON_GROUND and not self._is_inside
        if num < least or (has_outline and _left_of(both) > _MAX_MOVED):
            return False
        if not self._agree(own, other):
            return False
        if place not in self._of_kind:
            self._of_kind[place] = self._similarity_to_kind(own)
        plain = _PLAIN_OUTLINES if has_outline else _PLAIN_KIND
        each = _PLACES_OF_OUTLINES if has_outline else _PLACES_OF_KIND
        return num >= least + each * max(0.0, self._of_kind[place] - plain)

    def _similarity_to_kind(self, own: Looks) -> float:
        """Return the correlation with the most similar pictures, without the likely copies.

        It is 1 if train is too small to say.
        """
        if len(self._others) < _LEAST_OTHERS:
            return 1.0
        alike = (self._of_parts(own) @ self._others.T).max(axis=0)  # (num,)
        return float(np.sort(alike)[-1 - self._place])

    def _agree(self, one: Looks, other: Looks) -> bool:
        """Return True if the detail of a picture, or of a part of it, is that of the other one."""
        a, b = (_unit(self._of(_square(some[None]), some[None]))[0] for some in (one, other))
        best = max((self._of_parts(one) @ b).max(), (self._of_parts(other) @ a).max())
        return bool(best >= (_MIN_INSIDE if self._is_inside else _MIN_DETAIL))

    def _of_parts(self, of: Looks) -> Vectors:
        """Return the detail of each part of a picture, of length 1, (81, 196)."""
        return _unit(self._of(_parts(of), of[None]))

    def _of(self, grey: Vectors, of: Looks) -> Vectors:
        """Return the detail of grey levels (n, 16, 16), as far as it counts: (n, 196).

        Args:
            of: the looks that have the grey levels, or the only one.
        """
        details = _details(grey)
        has_ground = of[:, _GROUND + 1] == _ON_GROUND  # (n,) or (1,)
        if self._is_inside and has_ground.any():
            ground = of[:, _GROUND].astype(np.float32)[:, None, None]
            is_ground = (np.abs(grey - ground) <= _GROUND_RANGE) & has_ground[:, None, None]
            around: Vectors = _MEAN @ _MEAN  # 5 x 5, as pixels at the outline are a mixture
            is_near = around @ is_ground.astype(np.float32) @ around.T > 0
            details[is_near[:, 1:-1, 1:-1].reshape(len(grey), -1)] = 0
        return details


class _Whole:
    """Whether all of two pictures is equal up to brightness and contrast.

    Args:
        train: looks, of which an evenly spaced sample shows how different pictures of a kind are.
    """

    def __init__(self, train: Looks) -> None:
        self._others = _unit(_centred(_sample(train)))  # (num, 256)
        self._place = _place_after_copies(len(self._others))

    def are_equal(self, one: Looks, other: Looks) -> bool:
        """Return True if two pictures are equal, and more similar than pictures of their kind.

        Of a padded picture the padding is not known: an object without detail may have been
        anywhere.
        """
        is_padded = _PADDED in (one[_GROUND + 1], other[_GROUND + 1])
        if is_padded and _num_places(_details(_square(np.stack([one, other])))) < _LEAST_INSIDE:
            return False
        pair = np.stack([one, other])
        left = _left_of(pair)
        if left <= _EXACT_FRAC:
            return True
        both = _centred(pair)
        contrast = float(np.sqrt((both * both).mean(axis=1).min()))
        if left > max(_MAX_LEFT_FRAC, _MAX_LEFT / max(contrast, 1e-6)):
            return False
        alike = np.sort(self._others @ _unit(both)[0])
        is_known = len(alike) >= _LEAST_OTHERS
        return not is_known or left <= _MAX_OF_NEAREST * _left(float(alike[-1 - self._place]))


def _left(correlation: float) -> float:
    """Return the share of the contrast by which pictures with a correlation differ."""
    return float(np.sqrt(max(0.0, 1 - max(0.0, correlation) ** 2)))


def _left_of(pair: Looks) -> float:
    """Return the share of the contrast by which all of two pictures differ."""
    one, other = _unit(_centred(pair))
    return _left(float(one @ other))


def _centred(some: Looks) -> Vectors:
    levels = some[:, _WHOLE:].astype(np.float32)
    centred: Vectors = levels - levels.mean(axis=1, keepdims=True)
    return centred


def _sample(train: Looks) -> Looks:
    num = min(len(train), _NUM_OTHERS)
    some: Looks = train[np.linspace(0, len(train) - 1, num).astype(np.int64)]
    return some


def _place_after_copies(num: int) -> int:
    """Return the place of the most similar picture of a sample that is likely no further copy."""
    return _MAX_ALIKE + round(_MAX_ALIKE_FRAC * num)


def _num_places(details: Vectors) -> int:
    """Return the number of places that have detail in each of some pictures."""
    return int((np.abs(details) >= _LEAST_LEVELS).sum(axis=1).min())


def _details(grey: Vectors) -> Vectors:
    """Subtract from grey levels (n, 16, 16) the mean of the 3 x 3 around each: (n, 196)."""
    details: Vectors = np.subtract(grey, _MEAN @ grey @ _MEAN.T, dtype=np.float32)
    return details[:, 1:-1, 1:-1].reshape(len(grey), -1)


def _square(some: Looks) -> Vectors:
    return some[:, :_NUM_GREY].reshape(-1, _SIDE, _SIDE).astype(np.float32)


def _parts(of: Looks) -> Vectors:
    """Return the parts of a picture that lack up to a sixteenth at each side, (81, 16, 16)."""
    parts = _MAPS @ _square(of[None])[0]  # (9, 16, 16)
    both: Vectors = (parts[:, None] @ _MAPS.transpose(0, 2, 1)[None]).reshape(-1, _SIDE, _SIDE)
    return both


def _best_part(cut: Looks, whole: Looks) -> float:
    """Return the similarity of the best part of a look and another whole look."""
    parts = _parts(cut).reshape(-1, _NUM_GREY)  # (81, 256)
    fixed = whole[:_NUM_GREY].astype(np.float32)
    weight = (_is_object(parts, cut) | _is_object(fixed, whole)[None]).astype(np.float32)
    num = weight.sum(axis=1)
    size = np.maximum(num, 1)
    a = parts - ((weight * parts).sum(axis=1) / size)[:, None]
    b = fixed - ((weight * fixed).sum(axis=1) / size)[:, None]
    u, v = (weight * a * a).sum(axis=1) / size, (weight * b * b).sum(axis=1) / size
    c = (weight * a * b).sum(axis=1) / size
    smaller, larger = np.minimum(u, v), np.maximum(u, v)
    left = smaller * (1 - c**2 / np.maximum(u * v, 1e-6)) - _NOISE**2
    score = np.sqrt(np.clip(1 - np.maximum(left, 0) / np.maximum(smaller, 1e-6), 0, 1))
    is_usable = (num >= _LEAST_OBJECT) & (c > 0) & (larger <= _MAX_GAIN**2 * smaller)
    return float(np.where(is_usable, score, 0.0).max())


def _detail(of: Looks) -> float:
    """Return the standard deviation of an object's grey levels about the plane that fits them."""
    grey = of[:_NUM_GREY].astype(np.float32)
    is_object = _is_object(grey, of)
    if is_object.sum() < _LEAST_OBJECT:
        return 0.0
    plane, values = _PLANE[is_object], grey[is_object]
    left = values - plane @ np.linalg.lstsq(plane, values, rcond=None)[0]
    return float(left.std())


def _is_object(grey: Vectors, of: Looks) -> NDArray[np.bool_]:
    if of[_GROUND + 1] != _ON_GROUND:
        return np.ones(grey.shape, dtype=bool)
    found: NDArray[np.bool_] = np.abs(grey - np.float32(of[_GROUND])) > _GROUND_RANGE
    return found


def _maps() -> Vectors:
    """Return matrices (9, 16, 16) that cut a line of 16 values at both ends, and stretch the rest.

    Linear interpolation at the centres of the new pixels.
    """
    found = []
    for before, after in itertools.product(_CUTS, _CUTS):
        at = before + (np.arange(_SIDE) + 0.5) * (_SIDE - before - after) / _SIDE - 0.5
        away = np.abs(at.clip(0, _SIDE - 1)[:, None] - np.arange(_SIDE))
        found.append(np.maximum(0, 1 - away))
    return np.stack(found).astype(np.float32)


_MAPS: Final = _maps()
_MEAN: Final[Vectors] = np.stack(
    [np.eye(_SIDE, k=off) / 3 for off in (-1, 0, 1)]  # of three neighbours, used inside the edge
).sum(axis=0, dtype=np.float32)
_DOWN, _RIGHT = np.mgrid[0:_SIDE, 0:_SIDE].reshape(2, -1).astype(np.float32)
_PLANE: Final = np.stack([np.ones_like(_DOWN), _DOWN, _RIGHT], axis=1)  # (256, 3)


def _colours(some: Looks) -> Vectors:
    """Subtract the mean level of each look's colours; looks without contrast become zero."""
    vectors = some[:, _NUM_GREY:_GROUND].astype(np.float32)
    vectors -= vectors.mean(axis=1, keepdims=True)
    vectors[np.linalg.norm(vectors, axis=1) < _MIN_LENGTH] = 0
    return vectors


def _unit(vectors: Vectors) -> Vectors:
    unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    return unit
