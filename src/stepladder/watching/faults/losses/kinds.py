"""Faults in the kind of targets that a loss receives, and in pairs and triplets."""

from __future__ import annotations

import math

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.hooks.losses.loss_values import DISTANCES
from stepladder.watching.seen.losses import LossSeen, MarginSeen
from stepladder.watching.seen.seen import Seen

_MIN_LOOKS = 3
_MIN_TARGETS = 64
_ALL_ZERO = 200  # integer targets
_CERTAIN = 0.2  # of the targets are out of reach, and of their variance
_LIKELY = 0.05
_SEVERAL = 0.2  # of the rows have several classes, or none
_MAX_CLASSES = 200  # more are often counts, as of a vocabulary
_MIN_TRIPLETS = 64
_CLEAR = 5.0  # standard errors
_MOST = 0.65  # of the triplets
_MAY_BE_ZERO = ("cosine_embedding_loss", "margin_ranking_loss")  # for a mask, and for ties
_LONG = 150  # steps, after which most models tell positives from negatives
_MIN_LATE = 256
_FIRST_LATE = 5
_ALIKE = 2.5  # standard errors
_PRECISE = 0.1  # of the distance
_AT_MARGIN = 0.1  # of the margin
_COLLAPSED = 0.25  # of the initial distance


def loss_kind_mismatch(seen: Seen) -> Answer:
    """Compares targets with what the loss expects, and with the range of the last activation."""
    calls = [c for c in seen.losses if c.num_looked]
    if not calls:
        return Unseen("no loss function of torch was called")
    for call in calls:
        found = _one_class(call) or _out_of_reach(call) or _several_classes(call)
        found = found or _truncated(call) or _only_zeros(call) or _log_target(call)
        if found is not None:
            return found
    return Sound("targets are of the kind that the loss expects")


def _one_class(call: LossSeen) -> Found | None:
    is_single = call.has_grad and call.num_single == call.num_looked
    if call.kind != "cross_entropy" or not is_single or call.num_looked < _MIN_LOOKS:
        return None
    return Found(
        evidence=f"cross_entropy receives outputs of shape {call.input_shape}, a single class: its "
        "softmax is always 1, so the model has no gradient",
        fix="Use binary_cross_entropy_with_logits for two classes, or mse_loss for numbers.",
        where=call.where,
        severity=Severity.ERROR,
    )


def _out_of_reach(call: LossSeen) -> Found | None:
    one = call.reach
    if one is None or one.num_targets < _MIN_TARGETS or one.num_beyond < _LIKELY * one.num_targets:
        return None
    share = one.num_beyond / one.num_targets
    is_certain = share >= _CERTAIN and one.missed >= _CERTAIN * one.squares  # not mere noise
    limits = (
        f"at least {one.low:g}" if math.isinf(one.high) else f"from {one.low:g} to {one.high:g}"
    )
    return Found(
        evidence=f"the outputs that {call.kind} receives come from {one.activation} and are "
        f"{limits}, but targets go from {one.target_low:.3g} to {one.target_high:.3g}: "
        f"{100 * share:.0f} % of {one.num_targets} cannot be reached",
        fix=f"Remove {one.activation} from the last layer, or scale the targets to its range.",
        where=call.where,
        numbers={"share": share, "num_targets": one.num_targets},
        severity=Severity.ERROR if is_certain else Severity.WARNING,
    )


def _several_classes(call: LossSeen) -> Found | None:
    one = call.rows
    if one is None or one.num_other or one.is_input or one.num_rows < _MIN_TARGETS:
        return None
    share = (one.num_several + one.num_empty) / one.num_rows
    if share < _SEVERAL or (call.num_classes or 0) > _MAX_CLASSES:
        return None
    return Found(
        evidence=f"of {one.num_rows} inspected targets of cross_entropy, {one.num_several} have "
        f"several classes and {one.num_empty} have none: its softmax makes classes exclude each "
        "other",
        fix="Use binary_cross_entropy_with_logits for several labels of an example.",
        where=call.where,
        numbers={"share": share, "num_targets": one.num_rows},
    )


def _truncated(call: LossSeen) -> Found | None:
    if call.num_cut < _MIN_LOOKS or call.num_cut < call.num_looked / 2:
        return None
    what = "and uses them as classes" if call.num_classes else "instead of the numbers themselves"
    return Found(
        evidence=f"in {call.num_cut} inspected calls, {call.kind} receives numbers of the batch "
        f"such as {call.cut:.3g} truncated to integers, {what}",
        fix="Use a regression loss, such as mse_loss, with targets as floating-point numbers.",
        where=call.where,
        numbers={"num_cut": call.num_cut, "num_inspected": call.num_looked},
    )


def _only_zeros(call: LossSeen) -> Found | None:
    if call.kind not in DISTANCES:
        return None
    is_int = call.has_int_target and call.classes == {0}
    is_whole = not call.has_int_target and call.num_whole == call.num_zero
    num = call.num_labels if is_int else call.num_whole if is_whole else 0
    if num < _ALL_ZERO:
        return None
    data = "" if is_int else " that the loader returned as integers"
    return Found(
        evidence=f"all {num} inspected targets of {call.kind}{data} are "
        f"{'the integer ' if is_int else ''}0, as numbers below 1 become if they are converted to "
        "integers",
        fix="Keep the targets as floating-point numbers: .float() instead of .long()."
        if is_int
        else "Keep the targets as floating-point numbers in the dataset: dtype=torch.float32 "
        "instead of torch.long.",
        where=call.where,
        numbers={"num_targets": num},
    )


def _log_target(call: LossSeen) -> Found | None:
    one = call.divergence
    is_always = one is not None and one.num_negative == one.num_looked > 0
    if one is None or not is_always or one.num_shares:
        return None
    return Found(
        evidence=f"in {one.num_negative} of {one.num_looked} inspected calls, the target of kl_div "
        "has negative values, such as logarithms, whose own logarithm is NaN",
        fix="Pass probabilities as the target, or log_target=True with log-probabilities.",
        where=call.where,
        severity=Severity.ERROR,
    )


def contrastive_loss_misused(seen: Seen) -> Answer:
    """Counts targets of 0, and compares distances of pairs and triplets at first and after steps.

    Before training, examples that belong together are usually nearer than others.
    """
    if not seen.margins:
        return Unseen("no loss with pairs or triplets was called")
    for call in seen.margins:
        found = _zeros(call) or _exchanged(call) or _alike(call)
        if found is not None:
            return found
    return Sound("targets are 1 and -1, and pairs are in their roles")


def _zeros(call: MarginSeen) -> Found | None:
    if not call.num_zero or call.num_minus or call.num_targets < 2 * _MIN_LOOKS:
        return None
    if call.num_zero + call.num_one < call.num_targets or not call.num_one:
        return None
    is_certain = call.num_zero >= _CERTAIN * call.num_targets and call.kind not in _MAY_BE_ZERO
    effect = {
        "cosine_embedding_loss": "pairs of 0 count as neither, and have no loss",
        "hinge_embedding_loss": "at 0, both of its parts are added, which cancels the gradient "
        "within the margin",
        "margin_ranking_loss": "at 0, the loss is the margin, without a gradient",
        "soft_margin_loss": "at 0, the loss is log 2, without a gradient",
    }[call.kind]
    return Found(
        evidence=f"{call.kind} expects targets of 1 and -1, but {call.num_zero} of "
        f"{call.num_targets} inspected ones are 0 and none is -1: {effect}",
        fix="Convert the targets: 2 * target - 1.",
        where=call.where,
        numbers={"num_zero": call.num_zero, "num_targets": call.num_targets},
        severity=Severity.ERROR if is_certain else Severity.WARNING,
    )


def _exchanged(call: MarginSeen) -> Found | None:
    """Find positives that are clearly farther than negatives before anything is learned."""
    if call.is_mined or min(call.near.num, call.far.num) < _MIN_TRIPLETS // 2:
        return None
    if call.gap.num:
        is_mostly = call.num_farther >= _MOST * call.gap.num
        error = math.sqrt(call.gap.variance / call.gap.num)
        if call.gap.num < _MIN_TRIPLETS or not is_mostly or call.gap.mean < _CLEAR * error:
            return None
        return Found(
            evidence=f"in {call.num_farther} of {call.gap.num} triplets of the first steps, the "
            "positive was farther from the anchor than the negative (on average "
            f"{call.near.mean:.3g} and {call.far.mean:.3g}): they are probably exchanged",
            fix=f"Check the order of arguments: {call.kind}(anchor, positive, negative), where the "
            "positive is of the anchor's class.",
            where=call.where,
            numbers={"num_triplets": call.gap.num, "num_farther": call.num_farther},
        )
    spread = math.sqrt((call.near.variance + call.far.variance) / 2)
    error = math.sqrt(call.near.variance / call.near.num + call.far.variance / call.far.num)
    gap = call.near.mean - call.far.mean
    if gap < _CLEAR * error or gap < spread / 2:
        return None
    return Found(
        evidence="in the first steps, pairs with target 1 were farther apart "
        f"({call.near.mean:.3g} on average, n={call.near.num}) than those with target "
        f"-1 ({call.far.mean:.3g}, n={call.far.num}): both targets are probably exchanged",
        fix=f"Pass 1 to {call.kind} for pairs that belong together, and -1 for others.",
        where=call.where,
        numbers={"near": call.near.mean, "far": call.far.mean},
    )


def _alike(call: MarginSeen) -> Found | None:
    """Find negatives that are as near as positives, at first and after many steps."""
    first, late = call.gap, call.late_gap
    is_long = call.last_step >= _LONG and late.num >= _MIN_LATE and first.num >= _MIN_TRIPLETS
    if call.is_mined or not is_long:
        return None
    bound = _ALIKE * math.sqrt(first.variance / first.num)
    was_alike = abs(first.mean) <= bound <= _PRECISE * call.near.mean
    limit, loss = _AT_MARGIN * call.margin, call.late_loss.mean
    is_alike = abs(late.mean) <= limit and abs(loss - call.margin) <= limit
    has_collapsed = call.late_near.mean < _COLLAPSED * call.near.mean
    if not was_alike or not is_alike or has_collapsed:
        return None
    return Found(
        evidence=f"in {late.num} inspected triplets of steps {_FIRST_LATE} to "
        f"{call.last_step + 1}, negatives were about as near to the anchor as positives (on "
        f"average, {call.late_near.mean - late.mean:.3g} and {call.late_near.mean:.3g}), and the "
        f"loss was still {loss:.3g} at a margin of {call.margin:g}",
        fix="Check that each negative is drawn from another class than the anchor's.",
        where=call.where,
        numbers={"num_triplets": late.num, "loss": loss, "margin": call.margin},
    )
