"""Faults in the inputs of loss functions."""

from __future__ import annotations

from math import prod

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.faults.losses.reductions import (
    averaged_too_early,
    norm_of_each_pixel,
    summed_beside_mean,
)
from stepladder.watching.hooks.graph import LIKELIHOOD
from stepladder.watching.seen.losses import OWN_LOSS, LossSeen
from stepladder.watching.seen.seen import Seen
from stepladder.watching.seen.steps import PairWeightSeen

_ARE_MEANS = Sound("losses are means")
_NO_LOSS = Unseen("no loss function of torch was called")
_MIN_LOOKS = 3
_MIN_ONES = 2  # inspected steps or calls
_OF_PIXELS = (
    "mse_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "a square",
)
_MIN_BATCH = 4
_MIN_WEIGHT = 100.0  # of a divergence: usual ones are about 1, and rarely above 10
_MOST_TARGETS = 0.5  # are one value at the ends of rows
_AMONG_OTHERS = 0.05  # of the padding: the value is also a class
_MIN_OTHERS = 4  # other values: fewer may be states, the last of which stays
_WITH_LOGITS = ("cross_entropy", "binary_cross_entropy_with_logits")


def softmax_before_loss(seen: Seen) -> Answer:
    """Checks in the graph whether the input of a loss with its own softmax comes from a softmax."""
    calls = [c for c in seen.losses if c.kind in (*_WITH_LOGITS, "nll_loss")]
    if not calls:
        return _NO_LOSS
    for call in calls:
        one = call.activation
        if call.is_probability and call.num_looked >= _MIN_LOOKS:
            return Found(
                evidence=f"{_own(call.kind)}, but receives values that are at least 0 and sum to 1 "
                "for each example, like probabilities: the loss cannot approach 0",
                fix="Pass raw scores (logits) to the loss; use softmax only for predictions.",
                where=call.where,
            )
        if one is None or one.has_log:
            continue
        kind = one.kind if one.kind in ("Softmax", "Sigmoid") else one.inner
        if kind in ("Softmax", "Sigmoid") and (one.inner or call.kind in _WITH_LOGITS):
            return Found(
                evidence=f"{_own(call.kind)}, but receives the output of a {kind.lower()}: the "
                "loss cannot approach 0",
                fix=f"Pass raw scores (logits) to the loss; use {kind.lower()} only for "
                "predictions.",
                where=call.where,
            )
    return Sound("losses receive logits, not probabilities")


def _own(kind: str) -> str:
    if kind == "nll_loss":
        return "nll_loss follows a log_softmax"
    return f"{kind} applies its own {'softmax' if kind == 'cross_entropy' else 'sigmoid'}"


def nll_without_log_softmax(seen: Seen) -> Answer:
    """Checks that nll_loss and kl_div receive log-probabilities."""
    calls = [c for c in seen.losses if c.kind in ("nll_loss", "kl_div")]
    if not calls:
        return Unseen("neither nll_loss nor kl_div was called")
    for call in calls:
        found = _divergence(call)
        if found is not None:
            return found
        if _is_across(call):
            continue
        one = call.activation
        kind = one.kind if one is not None else ""
        has_log = (one is not None and one.has_log) or kind.startswith("Log")
        is_share = kind == "Softmax" and not has_log
        if call.is_log_probability is False or (call.kind == "kl_div" and is_share):
            return Found(
                evidence=f"{call.kind} receives {'probabilities' if is_share else 'raw scores'} "
                "instead of log-probabilities: their exponentials do not sum to 1",
                fix="Use cross_entropy, or apply log_softmax first.",
                where=call.where,
            )
    return Sound("the losses receive log-probabilities")


def _divergence(call: LossSeen) -> Found | None:
    """Find arguments of kl_div that are exchanged, or no log-probabilities."""
    one = call.divergence
    if one is None or not one.num_looked:
        return None
    is_exchanged = one.num_negative == one.num_looked
    if one.num_looked < _MIN_LOOKS and not is_exchanged:
        return None
    if one.num_shares == one.num_looked:
        what = "probabilities first and logarithms second" if is_exchanged else "probabilities"
        return Found(
            evidence=f"kl_div(input, target) receives {what} in {one.num_shares} of "
            f"{one.num_looked} inspected calls, but its input must be log-probabilities and its "
            "target probabilities",
            fix="Pass log_softmax of the model's scores first, and the probabilities to be "
            "reached second.",
            where=call.where,
            severity=Severity.ERROR,
        )
    if one.num_raw == one.num_looked:
        return Found(
            evidence=f"in {one.num_raw} of {one.num_looked} inspected calls, kl_div receives raw "
            "scores instead of log-probabilities: their exponentials do not sum to 1 where its "
            "target does",
            fix="Apply log_softmax to the scores first.",
            where=call.where,
        )
    return None


def softmax_wrong_dim(seen: Seen) -> Answer:
    """Reads the dimension of the softmax before a loss, and sums its probabilities.

    Also finds a softmax over a single value, such as one attention score for each position.
    """
    for single in seen.softmaxes:
        if single.num_steps >= _MIN_ONES:
            return Found(
                evidence=f"softmax is applied over the last dimension of {single.shape}, which has "
                f"one value, so its results are all 1, in {single.num_steps} inspected steps",
                fix="Apply it over the dimension of the alternatives, such as dim=1 of (n, t, 1) "
                "for attention over positions; for one output, use a sigmoid.",
                where=single.where,
            )
    calls = [c for c in seen.losses if c.activation and c.activation.kind.endswith("Softmax")]
    if not calls:
        return Unseen("no softmax leads to a loss")
    for call in calls:
        one = call.activation
        if one is not None and one.dim == 0 and len(one.shape) >= 2:
            return Found(
                evidence=f"{one.kind} is applied over dimension 0 of {one.shape}, the batch: "
                "values of one class sum to 1 over all examples",
                fix="Pass dim=1 (or -1), the dimension of the classes.",
                where=call.where,
            )
        if one is not None and _is_across(call):
            return Found(
                evidence=f"{one.kind} is applied over dimension {one.dim} of {one.shape}, but "
                f"{call.kind} receives {call.input_shape}: over its {call.num_classes} classes the "
                "probabilities do not sum to 1",
                fix="Apply the softmax over the dimension of the classes, often -1.",
                where=call.where,
            )
    return Sound("softmax is applied over the classes")


def _is_across(call: LossSeen) -> bool:
    """Return whether a softmax before a loss is over a dimension other than the loss's classes."""
    is_soft = call.is_soft and call.is_log_probability is False
    return is_soft and call.activation is not None and call.num_classes in call.activation.shape


def target_broadcast(seen: Seen) -> Answer:
    """Compares shapes: a loss that is larger than both of its inputs has broadcast them.

    So has a product of one value per example with the weights of all examples, such as the
    advantages of a policy, if only sums, means and constant factors follow.
    """
    for call in seen.losses:
        if call.broadcast is not None:
            return Found(
                evidence=f"{call.kind} broadcasts shapes {call.broadcast[0]} and "
                f"{call.broadcast[1]}: each output is compared with every target",
                fix="Make the shapes equal: output.squeeze(1) or target.unsqueeze(1).",
                where=call.where,
                severity=Severity.ERROR,
            )
    for one in seen.backward_calls:
        if one.broadcast is not None:
            return Found(
                evidence=f"an output of shape {one.broadcast[0]} minus its target has shape "
                f"{one.broadcast[1]}: each output is compared with every target",
                fix="Make the shapes equal: output.squeeze(1) or target.unsqueeze(1).",
                where=one.where,
            )
    paired = next((one for one in seen.backward_calls if one.pair_weights is not None), None)
    if paired is not None and paired.pair_weights is not None:
        return _pair_weights(paired.pair_weights, paired.where)
    if not seen.losses and not seen.backward_calls:
        return _NO_LOSS
    return Sound("outputs and targets have the same shape")


def _pair_weights(one: PairWeightSeen, where: str | None) -> Found:
    num = one.values[0]
    if one.is_matrix:
        evidence = (
            f"the loss multiplies values of shape {one.values} by weights of shape {one.weights}, "
            f"which broadcasting has made of all pairs of ({num},) and ({num}, 1): each example is "
            "weighted by all others"
        )
    else:
        evidence = (
            f"the loss multiplies shapes {one.values} and {one.weights}, which broadcasting "
            f"extends to ({num}, {num}): each example is weighted by all others"
        )
    return Found(
        evidence=evidence,
        fix="Make the shapes equal where the weights are computed, as in "
        "returns - values.squeeze(-1).",
        where=where,
    )


def _is_of_examples(size: int, sizes: tuple[int, ...]) -> bool:
    """Return whether a dimension may be the batch dimension, and not that of several models."""
    return not sizes or any(one > 1 and size % one == 0 for one in sizes)


def loss_reduction_mismatch(seen: Seen) -> Answer:
    """Checks in the graph whether a loss is summed and never divided, or divided twice.

    So do a focal factor of a mean, and a penalty on the gradient of each pixel.
    A sum over the batch beside a mean over it counts as well, in a variational autoencoder that
    over pixels, unless its factor is small.
    """
    calls = [c for c in seen.backward_calls if c.terms]
    if not calls:
        return Unseen("no backward was inspected")
    if any(2 * one.num_rewritten >= one.num_compared > 0 for one in seen.optimizers):
        return Sound("gradients are changed by the script between backward and the step")
    own = {t.factor for call in calls for t in call.terms if t.kind == LIKELIHOOD}
    for call in calls:
        if len(own) > 1 and any(t.kind == LIKELIHOOD for t in call.terms):
            continue  # the factor varies, like an episode's return in reinforcement learning
        is_sum = all(
            t.reduction == "sum"
            and t.kind != "other"
            and t.factor is not None
            and abs(t.factor) >= 0.5
            and t.shape
            and t.shape[0] > 1
            and _is_of_examples(t.shape[0], call.sizes)
            for t in call.terms
        )
        if is_sum and len({t.kind for t in call.terms}) == 1:
            term = call.terms[0]
            return Found(
                evidence=f"{term.kind} is summed over {term.shape[0]} examples and not divided: "
                "the effective learning rate depends on the batch size",
                fix='Use reduction="mean", or divide by the number of examples.',
                where=call.where,
                numbers={"num_examples": term.shape[0]},
            )
    return (
        _divided_twice(seen)
        or _mixed(seen)
        or summed_beside_mean(seen)
        or averaged_too_early(seen)
        or norm_of_each_pixel(seen)
        or _ARE_MEANS
    )


def _mixed(seen: Seen) -> Found | None:
    """Find a mean over all pixels beside a divergence that is summed over the batch."""
    for call in seen.backward_calls:
        one = call.divergence
        means = [t for t in call.terms if t.kind in _OF_PIXELS and t.reduction == "mean"]
        if one is None or len(means) != 1 or not means[0].factor:
            continue
        num, shape = prod(means[0].shape), means[0].shape
        weight = one.weight * num / abs(means[0].factor)
        if not shape or shape[0] != one.shape[0] or shape[0] < _MIN_BATCH:
            continue
        if one.weight >= 0.5 * abs(means[0].factor) and weight >= _MIN_WEIGHT:
            return Found(
                evidence=f"{means[0].kind} is a mean over {num:,} values, and the KL divergence "
                f"of the code a sum over {one.shape[0]} examples and {prod(one.shape[1:])} "
                "dimensions: in the bound of a variational autoencoder, it has "
                f"{weight:,.0f} times its weight, under which the decoder ignores the code",
                fix='Use reduction="sum" for the reconstruction, and divide both terms by the '
                "batch size.",
                where=call.where,
                numbers={"weight": weight},
            )
    return None


def _divided_twice(seen: Seen) -> Found | None:
    """Find a mean that is divided by the batch size again."""
    usual = {num for one in seen.optimizers if one.num_steps for num in one.backwards}
    calls = [c for c in seen.backward_calls if c.terms]
    if len(calls) < _MIN_LOOKS or usual != {1}:
        return None
    sizes = []
    for call in calls:
        term = call.terms[0]
        is_mean = len(call.terms) == 1 and term.kind != "other" and term.reduction == "mean"
        known = (*call.sizes[:1], *term.shape[:1])
        size = next((n for n in known if is_mean and _is_over(term.factor, n)), None)
        if size is None:
            return None
        sizes.append(size)
    is_round = all(abs(round(1 / size, 3) * size - 1) < 1e-9 for size in set(sizes))
    if len(set(sizes)) == 1 and is_round:
        return None  # a factor such as 0.1 may be intended
    return Found(
        evidence=f"{calls[0].terms[0].kind} is a mean and divided by the batch size "
        f"{max(sizes)} again, in all of {len(calls)} inspected steps: gradients are that much "
        "smaller, and depend on the batch size",
        fix="Remove the division: the loss is a mean over the batch already.",
        where=calls[0].where,
        numbers={"batch_size": max(sizes), "num_inspected": len(calls)},
    )


def _is_over(factor: float | None, size: int) -> bool:
    return factor is not None and size >= 4 and abs(factor * size - 1) < 1e-5


def _blank(seen: Seen) -> Found | None:
    """Find labels of a CTC loss that are its blank."""
    for blank in seen.blanks:
        if blank.num_blank and blank.num_calls >= _MIN_ONES:
            return Found(
                evidence=f"{blank.num_blank:,} of {blank.num_labels:,} labels of ctc_loss are "
                f"{blank.blank}, its blank, which is never part of a decoded sequence",
                fix="Number the symbols from 1, with one output more, or pass blank=num_symbols.",
                where=blank.where,
                severity=Severity.ERROR,
            )
    return None


def label_range(seen: Seen) -> Answer:
    """Compares labels with the number of classes, and checks for a class 0 that never occurs.

    Also finds labels of a CTC loss that are its blank.
    """
    found = _blank(seen)
    calls = [c for c in seen.losses if c.has_int_target or c.target_high is not None]
    if found is not None or not calls:
        return found or _NO_LOSS
    for call in calls:
        if call.bad_range is not None:
            low, high, num = call.bad_range
            return Found(
                evidence=f"labels range from {low} to {high}, but the output has classes 0 to "
                f"{num - 1}",
                fix="Number the classes from 0, and give the model as many outputs as there are "
                "classes.",
                where=call.where,
                severity=Severity.ERROR,
            )
        num = call.num_classes or 0
        is_below = num >= 2 and call.classes == set(range(-1, num - 1))
        if is_below and call.num_labels >= 20 * num:
            return Found(
                evidence=f"in {call.num_labels} labels, all of -1 to {num - 2} occur and {num - 1} "
                "never does: used as an index, -1 selects the last class",
                fix="Number the classes from 0: 1 is subtracted once too often.",
                where=call.where,
                severity=Severity.ERROR,
            )
        is_known = call.kind != OWN_LOSS and call.ignore_index != 0 and 2 <= num <= 1000
        is_shifted = is_known and 0 not in call.classes
        if is_shifted and len(call.classes) == num - 1 and call.num_labels >= 20 * num:
            return Found(
                evidence=f"in {call.num_labels} labels, 0 never occurs and all of 1 to {num - 1} "
                f"do, but the {num} classes of the output start at 0",
                fix="Subtract 1 from the labels.",
                where=call.where,
            )
        is_binary = call.kind == "binary_cross_entropy_with_logits"
        low_, high_ = call.target_low, call.target_high
        if is_binary and low_ is not None and high_ is not None and (low_ < -0.5 or high_ > 1.5):
            return Found(
                evidence=f"{call.kind} expects targets from 0 to 1, but received targets from "
                f"{low_:g} to {high_:g}",
                fix="Convert the labels to 0 and 1 before the loss.",
                where=call.where,
            )
    return Sound("labels match the output")


def tokens_out_of_vocabulary(seen: Seen) -> Answer:
    """Compares token ids with the embedding, and targets with padding ids and the ends of rows."""
    if seen.bad_tokens is not None:
        worst, num = seen.bad_tokens
        return Found(
            evidence=f"the inputs contain token id {worst}, but the embedding has only {num} "
            f"rows, 0 to {num - 1}",
            fix="Set num_embeddings to the size of the tokenizer's vocabulary, len(tokenizer).",
            where=seen.bad_tokens_at,
            severity=Severity.ERROR,
        )
    rows = [found for call in seen.losses if (found := _padded(call)) is not None]
    if seen.padding is None and rows:
        return rows[0]
    if seen.padding is None:
        return Unseen("no embedding of padded rows was seen")
    pad, num_rows = seen.padding
    for call in seen.losses:
        if call.kind != "cross_entropy" or call.num_classes is None or call.ignore_index == pad:
            continue
        share = call.label_counts.get(pad, 0) / max(1, call.num_labels)
        if abs(call.num_classes - num_rows) <= 2 and share > 0.05:
            return Found(
                evidence=f"{100 * share:.0f} % of the targets are padding (id {pad}) and count in "
                f"the loss, because it has ignore_index={call.ignore_index}",
                fix=f"Pass ignore_index={pad} to the loss.",
                where=call.where,
                numbers={"share": share},
            )
    return rows[0] if rows else Sound("padding is not learned")


def _padded(call: LossSeen) -> Found | None:
    """Find a value that fills the ends of rows of targets, and hardly occurs elsewhere."""
    one = call.padded
    if one is None or one.num_looked < _MIN_LOOKS or one.num_other > 0.1 * one.num_looked:
        return None
    if call.weights is not None and call.weights.by_class.get(one.value) == 0:
        return None
    share = one.num_padded / one.num_targets
    is_aligned = one.num_aligned >= 0.9 * one.num_looked
    if not is_aligned and (share < _MOST_TARGETS or len(one.others) < _MIN_OTHERS):
        return None
    is_class = one.num_inside > _AMONG_OTHERS * one.num_padded
    if is_class and not is_aligned:
        return None
    where = ", where their token ids are padded too," if is_aligned else ""
    elsewhere = "is a class elsewhere" if is_class else "hardly occurs elsewhere"
    either = "Fill" if is_class else f"Pass ignore_index={one.value} to the loss, or fill"
    return Found(
        evidence=f"{100 * share:.0f} % of the inspected targets of {call.kind} are {one.value}, "
        f"which fills the ends of rows{where} and {elsewhere}: this padding counts in "
        f"the loss, because it has ignore_index={call.ignore_index}",
        fix=f"{either} the ends with -100, which the loss ignores, and leave them out of metrics.",
        where=call.where,
        numbers={"share": share, "value": one.value, "num_targets": one.num_targets},
    )
