"""The range of the samples of pictures: measured for each, merged, and told if it was lost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from stepladder.data.decoding.resize import Pixels
from stepladder.data.decoding.samples import WHITE_8, SampleRange
from stepladder.data.decoding.traits import Trait

_ALL, _NARROW = "8 bits", "8 bits, narrow"
_NARROW_RANGE = 32  # of 255; photographs of nights and fog have more
_MIN_NARROW_FRAC = 0.1
_LOW_FRAC = 0.5
_STORED = (Trait.FEW_COLOURS, Trait.CMYK, Trait.YCCK, Trait.INVERTED)


class Range(NamedTuple):
    """Range of the samples of some pictures.

    Attributes:
        num: number of pictures.
        low, high: smallest and largest value.
        white: the value that is stored as 255.
    """

    num: int
    low: float
    high: float
    white: float


Ranges = Mapping[str, Range]
"""Ranges by kind of picture: the value of a Trait, or all pictures of 8 bits."""


def ranges_of(stored: Pixels, samples: SampleRange | None, traits: frozenset[Trait]) -> Ranges:
    """Return the ranges of one picture.

    Args:
        stored: pixels of the picture, without padding.
        samples: range in its file, if it has more than 8 bits.
        traits: its traits.
    """
    found: dict[str, Range] = {}
    if samples is not None:
        kind = Trait.FLOAT if samples.is_float else Trait.DEEP
        found[kind.value] = Range(1, samples.low, samples.high, samples.white)
    if stored.size:
        low, high = float(stored.min()), float(stored.max())
        one = Range(1, low, high, WHITE_8)
        found |= {trait.value: one for trait in _STORED if trait in traits}
        if samples is None:
            found[_ALL] = one
            if high - low < _NARROW_RANGE:
                found[_NARROW] = one
    return found


def merge_ranges(some: Iterable[Ranges]) -> Ranges:
    """Return the ranges of all pictures together."""
    merged: dict[str, Range] = {}
    for ranges in some:
        for kind, one in ranges.items():
            other = merged.get(kind)
            merged[kind] = one if other is None else _both(one, other)
    return dict(sorted(merged.items()))


def range_warnings(ranges: Ranges) -> Iterator[str]:
    """Yield a warning, with count and range, for each kind of picture that may have lost range."""
    for trait in (Trait.DEEP, Trait.FLOAT):
        if trait.value in ranges:
            yield _deep_warning(trait, ranges[trait.value])
    words = {
        Trait.FEW_COLOURS: "have a palette of at most 16 colours",
        Trait.CMYK: "are CMYK, converted without their colour profile",
        Trait.YCCK: "are YCCK, converted without their colour profile",
        Trait.INVERTED: "are CMYK with an Adobe marker, read as inverted",
    }
    for trait, said in words.items():
        if trait.value in ranges:
            one = ranges[trait.value]
            yield f"{one.num} pictures {said} (stored values {one.low:g} to {one.high:g} of 255)"
    narrow, every = ranges.get(_NARROW), ranges.get(_ALL)
    if narrow is not None and every is not None and narrow.num >= _MIN_NARROW_FRAC * every.num:
        is_low = every.high < _LOW_FRAC * WHITE_8
        yield (
            f"{narrow.num} of {every.num} pictures of 8 bits use less than an eighth of the range "
            f"(values {narrow.low:g} to {narrow.high:g} of 255)"
            + (_advice(every.high) if is_low else "")
        )


def _both(one: Range, other: Range) -> Range:
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Range(one.num + other.num, low, high, max(one.white, other.white))


def _deep_warning(trait: Trait, one: Range) -> str:
    said = (
        f"{one.num} pictures have {trait.value} (values {one.low:g} to {one.high:g}; "
        f"{one.white:g} is stored as 255)"
    )
    if one.high > one.white:
        return f"{said}: larger values are clipped" + _advice(one.high)
    if one.high < _LOW_FRAC * one.white:
        stored = math.floor(one.high * WHITE_8 / one.white)
        return f"{said}: nothing is stored above {stored} of 255" + _advice(one.high)
    return f"{said}: values below 0 are clipped" if one.low < 0 else said


def _advice(high: float) -> str:
    """Return the option that makes the largest value white, by the next number of bits."""
    white = 2.0 ** math.ceil(math.log2(high + 1)) - 1 if high >= 1 else high
    return f"; if white is {white:g}, add --max-sample-value {white:g}" if white > 0 else ""
