"""Faults in which examples are trained on and evaluated, and in how often each is drawn."""

from __future__ import annotations

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.loaders import SharedSeen, WholeLabelsSeen
from stepladder.watching.seen.models import EvaluatedSeen, ModelSeen
from stepladder.watching.seen.seen import Seen

_MIN_BITS = 40.0  # that distinguish examples: with fewer, equal ones are no surprise
_MIN_LEARNT = 64  # distinct examples
_MIN_KNOWN = 8
_MANY_KNOWN = 32
_LEAKED = 0.05  # share of the evaluated examples
_MUCH = 0.1
_NEW = 0.02  # share of known examples in an evaluation of new ones
_MIN_NEW = 8  # examples of such an evaluation
_SEPARATE = 0.3  # of the examples are in calls without a known one: both kinds, in turn
_REPEATED = 0.02  # of the examples of an evaluation are copies of each other
_PURE = 0.9  # more: all are known, perhaps on purpose
_SEEN_AGAIN = 2.5  # times that an example is learned from in the steps that are followed
_WHOLE = 0.9  # of what was learned from


def split_leakage(seen: Seen) -> Answer:
    """Compares the examples of evaluations with those that the model had learned from.

    Also the indices of loaders that read the same dataset, through Subset and ConcatDataset; and
    the labels of a loss over a whole set, such as all nodes of a graph, of which a part is selected
    by a mask or by indices that are named as held out.
    """
    if seen.whole_labels:
        return _whole_labels(seen.whole_labels[0])
    models = [model for model in seen.models if model.evaluated]
    judged = [model for model in models if _can_be_told_apart(model)]
    for model in judged:
        one = _leak_of(model)
        if one is not None:
            is_certain = one.is_named and one.share >= _MUCH and one.num_known >= _MANY_KNOWN
            return Found(
                evidence=f"{one.num_known:,} of {one.num_distinct:,} different examples "
                f"({100 * one.share:.0f} %) that {model.built} was evaluated on are among the "
                "examples that it had been trained on before",
                fix="Split once, before copying or resampling examples, and give training and "
                "validation no common index.",
                where=one.where,
                severity=Severity.ERROR if is_certain else Severity.WARNING,
                numbers={
                    "num_known": one.num_known,
                    "num_evaluated": one.num_distinct,
                    "share": one.share,
                },
            )
    shared = max(filter(_is_leak, seen.shared), key=lambda one: one.num_common, default=None)
    if shared is not None:
        return _by_index(shared)
    if not models:
        return Unseen("no model was evaluated after it had learned")
    if not judged:
        return Unseen("the examples are too few or too much alike to recognise one")
    return Sound("no evaluation of held-out examples has examples that the model was trained on")


def _whole_labels(one: WholeLabelsSeen) -> Found:
    return Found(
        evidence=f"the loss of each step has all {one.num_trained:,} labels (backward at "
        f"{one.trained_at}), and {one.num_held_out:,} of these are evaluated as held-out labels: "
        "the model is trained on validation or test labels",
        fix="Compute the loss from the training examples only, as in "
        "cross_entropy(out[train_mask], y[train_mask]).",
        where=one.where,
        numbers={"num_trained": one.num_trained, "num_held_out": one.num_held_out},
    )


def _is_leak(one: SharedSeen) -> bool:
    """Return whether a part of a dataset is held out, but some of it was trained on.

    A part is also evaluated on purpose, beside held-out examples, for the accuracy in training; and
    a last training may be on all examples, after the validation has chosen its settings.
    """
    if one.share < _LEAKED or one.num_common < _MIN_KNOWN or one.was_new:
        return False
    if one.num_common >= _WHOLE * one.num_trained:
        return False
    return one.is_named or one.is_instead or (one.share <= _PURE and not one.has_new)


def _by_index(one: SharedSeen) -> Found:
    at = f" at {one.trained_at}" if one.trained_at else ""
    rest = (
        "; no loader reads the largest part of the split that they are from"
        if one.is_instead
        else ""
    )
    return Found(
        evidence=f"the loader of training{at} reads {one.num_trained:,} examples, and by their "
        f"indices in {one.dataset}, {one.num_common:,} of the {one.num_evaluated:,} that the model "
        f"is evaluated on are among them ({100 * one.share:.0f} %){rest}",
        fix="Create the loader of training from the part of the split that is meant for it, and "
        "give training and validation no common index.",
        where=one.where,
        numbers={
            "num_known": one.num_common,
            "num_evaluated": one.num_evaluated,
            "share": one.share,
        },
    )


def _can_be_told_apart(model: ModelSeen) -> bool:
    return model.bits >= _MIN_BITS and model.num_learnt >= _MIN_LEARNT


def _leak_of(model: ModelSeen) -> EvaluatedSeen | None:
    """Return the evaluation of a model that leaks the most; None if none does.

    Evaluating known examples alone may be intended, unless the names of variables say otherwise.
    """
    groups = model.evaluated
    has_new = any(one.share <= _NEW and one.num_distinct >= _MIN_NEW for one in groups)
    has_new = has_new or any(_has_both(one) for one in groups)
    leaks = [
        one
        for one in groups
        if one.share >= _LEAKED
        and one.num_known >= _MIN_KNOWN
        and not _has_both(one)
        and (one.is_named or (not has_new and _is_mixed(one)))
        and not (one.is_whole_batch and _is_of_all(one))
        and (model.is_continuous or not _has_copies(one))
    ]
    return max(leaks, key=lambda one: (one.is_named, one.num_known), default=None)


def _has_both(one: EvaluatedSeen) -> bool:
    """Return whether some calls are of new examples, and others of known ones."""
    if one.is_of_loader or one.num_calls < 2:
        return False
    return one.num_new >= _SEPARATE * one.num_rows and one.num_known > 0


def _is_mixed(one: EvaluatedSeen) -> bool:
    """Return whether known and new examples are evaluated together, which nobody intends.

    If some steps were not followed, an example that seems new may be known as well: each one must
    have been seen several times on average.
    """
    is_followed = one.num_learnt_rows >= _SEEN_AGAIN * one.num_learnt
    return one.share <= _PURE and is_followed and not _is_of_all(one)


def _is_of_all(one: EvaluatedSeen) -> bool:
    """Return whether nearly all that was learned from is evaluated: without held-out examples."""
    return one.num_known >= _WHOLE * one.num_learnt


def _has_copies(one: EvaluatedSeen) -> bool:
    return one.num_distinct < (1 - _REPEATED) * one.num_rows
