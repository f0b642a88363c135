"""Recognize labels that are captions: texts that differ in nearly all pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stepladder.data.sources.walk import printable

CAPTION_NAMES: Final = frozenset(
    {"caption", "captions", "text", "txt", "alt", "alt_text", "prompt", "description", "title"}
    | {"comment", "comments", "sentence", "url", "key", "error_message", "exif"}
)
"""Names of fields of a text about one picture, which is seldom its class."""
NO_CAPTIONS: Final = (
    "A classifier learns classes with several pictures each; it does not learn captions."
)
_MIN_DISTINCT: Final = 6
_MIN_WORDS: Final = 4
_MIN_LETTERS: Final = 15  # of a text without blanks, as in Chinese
_MIN_TEXT_FRAC: Final = 0.5
_MIN_FRAC_WARNED: Final = 0.25
_MAX_LETTERS: Final = 60


@dataclass(frozen=True)
class Captions:
    """Labels that look like captions.

    Attributes:
        num_distinct: number of different ones.
        num: number of pictures.
        example: one of them, shortened.
        is_sure: whether most of them occur once.
    """

    num_distinct: int
    num: int
    example: str
    is_sure: bool

    def describe(self, unit: str = "picture") -> str:
        """Return how many there are, with an example."""
        return (
            f"{self.num_distinct} different texts in {self.num} {unit}s, such as {self.example!r}"
        )


def find_captions(labels: Sequence[str]) -> Captions | None:
    """Return the labels if they are as long as captions and many of them occur once.

    Names of classes may have several words, too. So more than half of the labels must be different
    to be sure, or, for a warning, a quarter.
    """
    counts = Counter(labels)
    num = counts.total()
    is_sure = 2 * len(counts) > num
    if len(counts) < _MIN_DISTINCT or len(counts) <= _MIN_FRAC_WARNED * num:
        return None
    texts = [label for label in counts if _is_text(label)]
    if len(texts) < _MIN_TEXT_FRAC * len(counts):
        return None
    example = printable(texts[0])
    shown = example if len(example) <= _MAX_LETTERS else f"{example[: _MAX_LETTERS - 1]}…"
    return Captions(len(counts), num, shown, is_sure)


def _is_text(label: str) -> bool:
    num_words = len(label.split())
    return num_words >= _MIN_WORDS or (
        num_words == 1 and len(label) >= _MIN_LETTERS and not label.isascii()
    )
