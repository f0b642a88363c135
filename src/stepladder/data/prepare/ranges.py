"""The range of the samples of pictures: measured for each, merged, and told if it was lost.

It is merged by kind, such as grey TIFFs of 16 bits: the full range of some pictures must not hide
that others use a small part of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from stepladder.data.decoding.resize import Pixels
from stepladder.data.decoding.samples import FLOAT_WHITE, WHITE_8, WHITE_16, SampleRange
from stepladder.data.decoding.traits import Trait
from stepladder.data.prepare.converted_copy import divided_copy, scaled_copy, written
from stepladder.data.prepare.counted import pictures

_8_BITS = "8 bits"
_DEEP = (Trait.DEEP.value, Trait.FLOAT.value)
_NARROW = ", narrow"
_MIN_NARROW_FRAC = 0.1
_MIN_NARROW = 2  # of the pictures of a kind, if there are several kinds
_NARROW_PART = 8  # photographs of nights and fog use more than an eighth
_LOW_FRAC = 0.5
_NEARLY_BLACK = "nearly black in the store"
_NO_WHITE = "no single white fits both"
_UNIT, _LARGER = ", largest values of about 1", ", larger largest values"
_MAX_UNIT = 1.25 * FLOAT_WHITE  # resampling exceeds white by up to a fifth
_OTHER_UNIT = 16 * FLOAT_WHITE
"""Pictures that all reach it are not brighter than others that reach 1: their unit is another."""
_BLACK = 32  # of 255
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
"""Ranges by kind of picture: the value of a Trait, or the depth and the format."""


def ranges_of(
    sampled: Pixels,
    decoded: Pixels,
    samples: SampleRange | None,
    traits: frozenset[Trait],
    form: str,
) -> Ranges:
    """Return the ranges of one picture.

    A range that may be reported is that of all pixels; any other is of some pixels, to save time.

    Args:
        sampled: some pixels of the picture in the store, without padding.
        decoded: all pixels of 8 bits, before resizing, which can lose the smallest and largest.
        samples: range in its file, if it has more than 8 bits.
        traits: its traits.
        form: its format, such as TIFF.
    """
    found: dict[str, Range] = {}
    form = f"grey {form}" if Trait.GREY in traits else form
    if samples is not None:
        depth = (Trait.FLOAT if samples.is_float else Trait.DEEP).value
        _add(found, f"{depth}, {form}", Range(1, samples.low, samples.high, samples.white))
        found |= _largest(f"{depth}, {form}", samples)
    if sampled.size:
        one = _range_8(sampled)
        if _is_narrow(one) or not traits.isdisjoint(_STORED):
            one = _range_8(decoded)
        found |= {trait.value: one for trait in _STORED if trait in traits}
        if samples is None:
            _add(found, f"{_8_BITS}, {form}", one)
    return found


def is_lost(decoded: Pixels, samples: SampleRange | None) -> bool:
    """Return True if a picture is all black or all white only because of the value of white.

    Args:
        decoded: all pixels of 8 bits, before resizing.
        samples: range in its file, if it has more than 8 bits.
    """
    if samples is None or samples.low == samples.high:
        return False
    low, high = int(decoded.min()), int(decoded.max())
    return low == high and low in {0, WHITE_8}


def is_grave(warning: str) -> bool:
    """Return True if a warning of range_warnings is about pictures that show nothing."""
    return _NEARLY_BLACK in warning or _NO_WHITE in warning


def merge_ranges(some: Iterable[Ranges]) -> Ranges:
    """Return the ranges of all pictures together."""
    merged: dict[str, Range] = {}
    for ranges in some:
        for kind, one in ranges.items():
            other = merged.get(kind)
            merged[kind] = one if other is None else _both(one, other)
    return dict(sorted(merged.items()))


def range_warnings(ranges: Ranges, source: Path) -> Iterator[str]:
    """Yield a warning, with count and range, for each kind of picture that may have lost range.

    Args:
        ranges: of all pictures.
        source: the pictures, for the commands in the warnings.
    """
    kinds = [kind for kind in _kinds(ranges) if kind.depth in _DEEP]
    for kind in kinds:
        is_only = sum(other.depth == kind.depth for other in kinds) == 1
        yield _deep_warning(kind, "" if is_only else kind.form, ranges, source)
    words = {
        Trait.FEW_COLOURS: "have a palette of at most 16 colours",
        Trait.CMYK: "are CMYK, converted without their colour profile",
        Trait.YCCK: "are YCCK, converted without their colour profile",
        Trait.INVERTED: "are CMYK with an Adobe marker, read as inverted",
    }
    for trait, said in words.items():
        if trait.value in ranges:
            one = ranges[trait.value]
            stored = f"(stored values {written(one.low)} to {written(one.high)} of 255)"
            yield f"{pictures(one.num, said)} {stored}"
    kinds = [kind for kind in _kinds(ranges) if kind.depth == _8_BITS]
    for kind in kinds:
        narrow, is_only = kind.narrow, len(kinds) == 1
        if narrow is None or (not is_only and narrow.num < _MIN_NARROW):
            continue
        form = "" if is_only else kind.form
        is_low = kind.all.high < _LOW_FRAC * WHITE_8
        yield (
            pictures(
                narrow.num,
                "use less than an eighth of the range",
                of=kind.all.num,
                what=f"{form} pictures of 8 bits".lstrip(),
            )
            + f" (values {written(narrow.low)} to {written(narrow.high)} of 255)"
            + (f": they are {_NEARLY_BLACK}" if kind.all.high < _BLACK else "")
            + (_advice(kind.all.high, kind, ranges, source) if is_low else "")
        )


class _Kind(NamedTuple):
    """Pictures of one depth and format.

    Attributes:
        name: its key in Ranges.
        narrow: those that use less than an eighth of their range; None if they are few.
    """

    name: str
    depth: str
    form: str
    all: Range
    narrow: Range | None


def _kinds(ranges: Ranges) -> Iterator[_Kind]:
    for name, every in ranges.items():
        depth, _, form = name.partition(", ")
        if depth in (*_DEEP, _8_BITS) and form and ", " not in form:
            narrow = ranges.get(name + _NARROW)
            is_many = narrow is not None and narrow.num >= _MIN_NARROW_FRAC * every.num
            yield _Kind(name, depth, form, every, narrow if is_many else None)


def _range_8(pixels: Pixels) -> Range:
    return Range(1, float(pixels.min()), float(pixels.max()), WHITE_8)


def _is_narrow(one: Range) -> bool:
    """Return True if a picture uses a small part of its range; one of a single colour has none."""
    return 0 < one.high - one.low < (one.white + 1) / _NARROW_PART


def _add(found: dict[str, Range], kind: str, one: Range) -> None:
    """Add a picture to its kind, and to the narrow ones of the kind if it is one."""
    found[kind] = one
    if _is_narrow(one):
        found[kind + _NARROW] = one


def _largest(kind: str, samples: SampleRange) -> Ranges:
    """Return the largest value of a floating-point picture, which may show its unit.

    A dark picture, or one of a single colour, without larger values shows no unit.
    """
    high = samples.high
    if not samples.is_float:
        return {}
    if high > _MAX_UNIT:
        return {kind + _LARGER: Range(1, high, high, samples.white)}
    is_dark = high - samples.low < FLOAT_WHITE / _NARROW_PART
    return {} if is_dark else {kind + _UNIT: Range(1, high, high, samples.white)}


def _both(one: Range, other: Range) -> Range:
    low, high = min(one.low, other.low), max(one.high, other.high)
    return Range(one.num + other.num, low, high, max(one.white, other.white))


def _deep_warning(kind: _Kind, form: str, ranges: Ranges, source: Path) -> str:
    of_units = _unit_warning(kind, form, ranges, source)
    if of_units:
        return of_units
    one, narrow = kind.all, kind.narrow
    said = pictures(one.num, f"have {kind.depth}", what=f"{form} pictures".lstrip())
    low, high, stored_as_255 = map(written, (one.low, one.high, one.white))
    said += f" (values {low} to {high}; {stored_as_255} is stored as 255)"
    if one.high > one.white:
        return f"{said}: larger values are clipped" + _advice(one.high, kind, ranges, source)
    if one.high < _LOW_FRAC * one.white:
        stored = math.floor(one.high * WHITE_8 / one.white)
        black = f"they are {_NEARLY_BLACK}, as " if stored < _BLACK else ""
        said += f": {black}nothing is stored above {stored} of 255"
        return said + _advice(one.high, kind, ranges, source)
    if narrow is not None:
        said += (
            f": {narrow.num} of them use less than an eighth of the range (values "
            f"{written(narrow.low)} to {written(narrow.high)})"
        )
        is_low = narrow.high < _LOW_FRAC * one.white
        return said + (_advice(narrow.high, kind, ranges, source) if is_low else "")
    return f"{said}: values below 0 are clipped" if one.low < 0 else said


def _unit_warning(kind: _Kind, form: str, ranges: Ranges, source: Path) -> str:
    """Return a warning if white is 1 in some floating-point pictures and more in others, or ""."""
    unit, larger = ranges.get(kind.name + _UNIT), ranges.get(kind.name + _LARGER)
    if unit is None or larger is None:
        return ""
    is_clipped = larger.high > larger.white
    is_certain = larger.low >= _OTHER_UNIT
    is_black = is_certain and unit.high < unit.white / _NARROW_PART
    if not (is_clipped or is_black):
        return ""
    white = _next_white(larger.high) if is_clipped else larger.white
    typed, low, high = map(written, (white, larger.low, larger.high))
    stored_as_255 = written(max(unit.white, larger.white))
    reached = high if low == high else f"{low} to {high}"
    said = (
        f"{pictures(kind.all.num, f'have {kind.depth}', what=f'{form} pictures'.lstrip())}: the "
        f"largest value of {unit.num} is at most {written(unit.high)}, that of {larger.num} is "
        f"{reached}, and {stored_as_255} is stored as 255, so "
        + " and ".join(
            [f"the former are {_NEARLY_BLACK}"] * is_black + ["the latter are clipped"] * is_clipped
        )
        + ("; values below 0 are clipped" if kind.all.low < 0 else "")
    )
    if is_certain:
        said += f"; {_NO_WHITE}; if white is 1 in the former and {typed} in the latter"
    else:
        others = (other for other in _kinds(ranges) if other.name != kind.name)
        if not any(_is_spoiled(other, white) for other in others):
            said += f"; if white is {typed} in all, add --max-sample-value {typed} --overwrite to "
            said += "the command"
        said += f"; if it is 1 in the former and {typed} in the latter"
    said += f", divide the values of the latter by {typed}"
    if not source.is_dir():
        return said
    command = divided_copy(
        source,
        kind.form.removeprefix("grey "),
        above=_MAX_UNIT,
        white=white,
        resets=unit.white > FLOAT_WHITE,
    )
    return f"{said}: {command}"


def _next_white(high: float) -> float:
    """Return the largest value of the smallest number of bits that hold a value of 1 or more."""
    return 2.0 ** math.ceil(math.log2(high + 1)) - 1


def _advice(high: float, kind: _Kind, ranges: Ranges, source: Path) -> str:
    """Return what makes the largest value white, by the next number of bits.

    The option holds for all pictures. If it would spoil others, only these are to be scaled.
    """
    white = _next_white(high) if high >= 1 else high
    if white <= 0:
        return ""
    others = (other for other in _kinds(ranges) if other.name != kind.name)
    if kind.all.high <= white and not any(_is_spoiled(other, white) for other in others):
        typed = written(white)
        return f"; if white is {typed}, add --max-sample-value {typed} --overwrite to the command"
    is_float = kind.depth == Trait.FLOAT.value
    factor = kind.all.white / white if is_float else (kind.all.white + 1) / (white + 1)
    said = (
        f"; if white is {written(white)} in these, multiply their values by {written(factor)}, as "
        "--max-sample-value would change the other pictures as well"
    )
    is_grey_16 = kind.form.startswith("grey ") and kind.all.white == WHITE_16
    if not (kind.depth == Trait.DEEP.value and is_grey_16 and source.is_dir()):
        return said
    command = scaled_copy(source, kind.form.removeprefix("grey "), white=white, factor=factor)
    return f"{said}: {command}"


def _is_spoiled(kind: _Kind, white: float) -> bool:
    """Return True if pictures would be clipped, or nearly black, with another white."""
    if kind.all.high > white:
        return kind.depth == Trait.FLOAT.value or kind.all.white > white
    return kind.depth == Trait.FLOAT.value and kind.all.high < white / _NARROW_PART
