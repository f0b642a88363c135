"""Faults in the weights of classes within a loss."""

from __future__ import annotations

import math
from statistics import correlation, linear_regression

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.losses import LossSeen, WeightsSeen
from stepladder.watching.seen.seen import Seen

_MIN_LABELS = 100
_IMBALANCE = 2.0  # of frequencies: less may be chance, or unimportant
_UNEQUAL = 1.5  # weights
_CLEAR = 4.0  # standard errors of a logarithm of two frequencies
_PROPORTIONAL = (0.4, 1.6)  # slope of log weight over log frequency; 0.5 is a square root
_OF_TWO = (0.7, 1.4)  # the same for two classes, where the costs of errors may be the reason
_LARGE = 3.0  # weights and frequencies, if weights are not proportional to frequencies


def loss_weights_inverted(seen: Seen) -> Answer:
    """Compares weights of classes, or of positives, with their frequency in the labels."""
    calls = [c for c in seen.losses if c.weights is not None]
    if not calls:
        return Unseen("no loss has weights of classes")
    found = [one for call in calls if (one := _of_classes(call) or _of_positives(call)) is not None]
    if found:
        return min(found, key=lambda one: one.severity is Severity.INFO)
    return Sound("weights in the loss do not grow with the frequency of a class")


def _of_classes(call: LossSeen) -> Found | None:
    """Find weights that grow with the frequency of the class."""
    weights = {} if call.weights is None else call.weights.by_class
    known = {
        label: (weights[label], num)
        for label, num in call.label_counts.items()
        if num > 0 and weights.get(label, 0.0) > 0
    }
    total = sum(num for _, num in known.values())
    if len(known) < 2 or total < _MIN_LABELS:
        return None
    rare, common = (f(known, key=lambda label: known[label][1]) for f in (min, max))
    (rare_weight, few), (common_weight, many) = known[rare], known[common]
    spread = max(w for w, _ in known.values()) / min(w for w, _ in known.values())
    if many < _IMBALANCE * few or spread < _UNEQUAL or not _is_clear(few, many):
        return None
    x = [math.log(num) for _, num in known.values()]
    y = [math.log(weight) for weight, _ in known.values()]
    slope = linear_regression(x, y).slope
    low, high = _OF_TWO if len(known) == 2 else _PROPORTIONAL
    is_proportional = low <= slope <= high
    if len(known) == 2 and not is_proportional:
        if slope < 0 or min(many / few, spread) < _LARGE:
            return None
        severity: Severity | None = Severity.INFO  # as the costs of both errors may demand
    elif correlation(x, y) < (0.9 if len(known) < 5 else 0.8) or slope < _PROPORTIONAL[0]:
        return None
    else:
        severity = None if is_proportional or len(known) > 4 else Severity.INFO
    return Found(
        evidence=f"{call.kind} has weight {common_weight:.3g} for class {common}, which is "
        f"{100 * many / total:.3g} % of {total} inspected labels, and {rare_weight:.3g} for class "
        f"{rare}, which is {100 * few / total:.2g} %: the weights grow with the frequency of a "
        "class, which makes the imbalance larger",
        fix="Use weights that fall with the frequency, such as counts.sum() / (num_classes * "
        "counts), in the order of the class numbers.",
        where=call.where,
        numbers={"slope": slope, "num_labels": total},
        severity=severity,
    )


def _is_clear(few: float, many: float) -> bool:
    """Return whether two counts differ by more than chance."""
    return math.log(many / few) > _CLEAR * math.sqrt(1 / few + 1 / many)


def _of_positives(call: LossSeen) -> Found | None:
    one = call.weights
    if one is None or not one.positive or min(one.num_binary) < _MIN_LABELS:
        return None
    if len(one.positive) > 1:
        return _of_outputs(call, one)
    (weight,), (num,), (total,) = one.positive, one.num_positive, one.num_binary
    few, many = sorted((num, total - num))
    if weight <= 0 or few == 0 or many < _IMBALANCE * few or not _is_clear(few, many):
        return None
    odds = num / (total - num)
    slope = math.log(weight) / math.log(odds)
    is_proportional = _OF_TWO[0] <= slope <= _OF_TWO[1]
    raises_majority = odds > 1 and weight >= _UNEQUAL
    if slope <= 0 or max(weight, 1 / weight) < _UNEQUAL:
        return None
    if not is_proportional and not raises_majority:
        return None
    larger, smaller = ("positives", "negatives") if odds > 1 else ("negatives", "positives")
    return Found(
        evidence=f"positives have {weight:.3g} times the weight of negatives in {call.kind}, but "
        f"are {100 * num / total:.2g} % of {total} inspected targets: this favours the "
        f"{larger}, which are the majority already, over the {smaller}",
        fix=f"Pass pos_weight=num_negative / num_positive, here about {1 / odds:.2g}.",
        where=call.where,
        numbers={"pos_weight": weight, "positive_frac": num / total, "num_targets": total},
    )


def _of_outputs(call: LossSeen, one: WeightsSeen) -> Found | None:
    """Find weights of several outputs that grow with the odds of their positives."""
    known = [
        (math.log(num / (total - num)), math.log(weight))
        for weight, num, total in zip(one.positive, one.num_positive, one.num_binary, strict=True)
        if 0 < num < total and weight > 0
    ]
    if len(known) < 3:
        return None
    x, y = [a for a, _ in known], [b for _, b in known]
    if max(x) - min(x) < math.log(_LARGE) or max(y) - min(y) < math.log(_UNEQUAL):
        return None
    slope = linear_regression(x, y).slope
    if slope < _PROPORTIONAL[0] or correlation(x, y) < (0.9 if len(known) < 5 else 0.8):
        return None
    return Found(
        evidence=f"pos_weight of {len(known)} outputs of {call.kind} goes from "
        f"{math.exp(y[x.index(min(x))]):.2g} for the rarest positives to "
        f"{math.exp(y[x.index(max(x))]):.2g} for the most frequent ones: it grows with the "
        "frequency of positives instead of falling",
        fix="Pass pos_weight=num_negative / num_positive, by output.",
        where=call.where,
        numbers={"slope": slope, "num_outputs": len(known)},
    )
