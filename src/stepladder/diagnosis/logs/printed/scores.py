"""Scores of scikit-learn's networks, which its output does not call accuracies."""

from __future__ import annotations

import re

_ITERATION = re.compile(r"^\s*Iteration \d+, loss = ", re.MULTILINE)
_SCORE = re.compile(r"^(\s*)Validation score: +(-?\d+\.\d+)\s*$", re.MULTILINE)
_TEST = re.compile(
    r"^(\s*)Test(?:ing)?(?: set)? (?:score|accuracy)\s*[:=]\s*(\d+\.\d+)",
    re.MULTILINE | re.IGNORECASE,
)
_MIN_DIFFERENT = 3
_MAX_EXAMPLES = 20_000
_TOLERANCE = 0.6e-6  # they are printed with six decimals
NOTE = "its `Validation score` is read as accuracy, which scikit-learn's classifiers print there"


def name_scores(text: str) -> tuple[str, tuple[str, ...]]:
    """Name the score of an MLPClassifier an accuracy, and that of an MLPRegressor R2.

    Both print `Validation score`. It is an accuracy if all values are multiples of 1 / n for some
    number of examples n.

    Returns:
        The text, and a note if an accuracy was found.
    """
    values = [float(found[2]) for found in _SCORE.finditer(text)]
    if not values or not _ITERATION.search(text):
        return text, ()
    is_share = _are_shares(values)
    name = "accuracy" if is_share else "r2"
    text = _SCORE.sub(rf"\1Validation {name}: \2", text)
    text = _TEST.sub(rf"\1Test {name}: \2", text)
    return text, (NOTE,) if is_share else ()


def _are_shares(values: list[float]) -> bool:
    different = sorted(set(values))
    if different[0] < 0 or different[-1] > 1:
        return False
    if len(different) < _MIN_DIFFERENT:
        return True
    return any(
        all(abs(value * n - round(value * n)) <= n * _TOLERANCE for value in different)
        for n in range(2, _MAX_EXAMPLES)
    )
