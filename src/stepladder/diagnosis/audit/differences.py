"""Compare two trainings by their logs: is one better than the other?"""

from __future__ import annotations

import math

from stepladder.diagnosis.audit.series import ACCURACY
from stepladder.records.audit import AuditedRun, Difference, Relation, SizeSource
from stepladder.stats.shares import share_difference_sem
from stepladder.training.output.wording import duration, percent

CLEAR = 2.0  # standard errors
_SHORTER = 0.9
_MAY_PAIR = "a comparison paired by example may be clearer, but needs the predictions of both"


def compare_results(first: AuditedRun, second: AuditedRun) -> Difference | None:
    """Check if the results of two trainings differ by more than noise.

    The standard error is that of two independent sets of examples. On the same set it may be
    smaller, which requires the predictions of both; but a net change of c examples is never more
    than sqrt(c) paired standard errors.

    Returns:
        None if one of them has no result, or they were judged by different metrics.
    """
    if first.result is None or second.result is None or first.metric != second.metric:
        return None
    change = second.result - first.result
    relation = _relation(first, second)
    sem = in_sems = in_examples = is_clear = None
    is_share = first.one_example is not None and second.one_example is not None
    if first.result_sem is None or second.result_sem is None:
        pass
    elif not is_share:
        sem = math.hypot(first.result_sem, second.result_sem)
        in_sems = change / sem if sem else None
        is_clear = _is_loss_clear(in_sems, relation)
    elif first.num_val and second.num_val:
        sem = _sem(first, second)
        in_sems = change / sem if sem else None
        is_other = relation is Relation.OTHER_EXAMPLES
        num = min(first.num_val, second.num_val) if is_other else max(first.num_val, second.num_val)
        in_examples = change * num
        is_clear = _is_clear(in_sems, in_examples, relation)
    return Difference(
        first=first.log.name,
        second=second.log.name,
        metric=str(first.metric),
        change=change,
        sem=sem,
        in_sems=in_sems,
        in_examples=in_examples,
        relation=relation,
        is_clear=is_clear,
        words=_words(first, second, in_sems, in_examples, relation),
    )


def _sem(first: AuditedRun, second: AuditedRun) -> float:
    assert first.result is not None
    assert second.result is not None
    if not (0 < first.result < 1 and 0 < second.result < 1):
        return math.hypot(first.result_sem or 0.0, second.result_sem or 0.0)
    return share_difference_sem(
        first.result, first.num_val or 0, second.result, second.num_val or 0
    )


def _is_clear(in_sems: float | None, in_examples: float, relation: Relation) -> bool | None:
    """Return True if a change is clear; None if that requires paired predictions."""
    if in_sems is None:
        return None
    if abs(in_sems) > CLEAR:
        return True
    could_pair = relation is not Relation.OTHER_EXAMPLES
    if could_pair and math.sqrt(round(abs(in_examples))) > CLEAR:
        return None
    return False


def _is_loss_clear(in_sems: float | None, relation: Relation) -> bool | None:
    if in_sems is None:
        return None
    if abs(in_sems) > CLEAR:
        return True
    return False if relation is Relation.OTHER_EXAMPLES else None


def _relation(first: AuditedRun, second: AuditedRun) -> Relation:
    if first.num_val and second.num_val and not _may_be_equal(first, second):
        return Relation.OTHER_EXAMPLES
    sets = (first.log.val_set, second.log.val_set)
    if None in sets:
        return Relation.NOT_SAID
    return Relation.SAME_EXAMPLES if sets[0] == sets[1] else Relation.OTHER_EXAMPLES


def _may_be_equal(first: AuditedRun, second: AuditedRun) -> bool:
    """Return whether two sets may have the same size; an inferred one may be a multiple."""
    smaller, larger = sorted((first, second), key=lambda run: run.num_val or 0)
    if smaller.num_val == larger.num_val:
        return True
    is_inferred = smaller.num_val_from is SizeSource.INFERRED
    return is_inferred and (larger.num_val or 0) % (smaller.num_val or 1) == 0


def _words(
    first: AuditedRun,
    second: AuditedRun,
    in_sems: float | None,
    in_examples: float | None,
    relation: Relation,
) -> str:
    parts = [_change_words(first, second, in_sems, in_examples)]
    if relation is Relation.OTHER_EXAMPLES:
        parts.append(
            f"they are of different examples ({first.num_val or 'unknown':,} and "
            f"{second.num_val or 'unknown':,})"
            if first.num_val and second.num_val
            else "they are of different sets"
        )
    elif in_sems is not None and in_examples is not None and abs(in_sems) <= CLEAR:
        parts.append(_pair_words(round(abs(in_examples)), relation))
    if effort := _effort_words(first, second):
        parts.append(effort)
    return "; ".join(part for part in parts if part)


def _change_words(
    first: AuditedRun, second: AuditedRun, in_sems: float | None, in_examples: float | None
) -> str:
    assert first.result is not None
    assert second.result is not None
    if in_sems is not None and in_examples is None:
        told = f"{first.result:.4g} and {second.result:.4g} differ by {_noise_words(abs(in_sems))}"
        could = abs(in_sems) <= CLEAR and _relation(first, second) is not Relation.OTHER_EXAMPLES
        return f"{told}; {_MAY_PAIR}" if could else told
    if in_sems is None or in_examples is None or first.num_val is None:
        change = second.result - first.result
        is_score = first.log.is_score_fraction and first.metric == first.log.score_name
        is_fraction = is_score or first.metric == ACCURACY
        words = f"{100 * change:+.2g} points" if is_fraction else f"{change:+.4g}"
        return f"{words}, with unknown noise"
    told = f"{percent(first.result)} and {percent(second.result)}"
    count = round(abs(in_examples))
    if count == 0:
        return f"{told}: the same number of correct examples"
    if first.num_val == second.num_val:
        examples = "one example" if count == 1 else f"{count:,} examples"
        told += f" differ by {examples} of {first.num_val:,}"
    else:
        told += " differ"
    return f"{told}, {_noise_words(abs(in_sems))}"


def _noise_words(size: float) -> str:
    return f"under one standard error ({size:.2f})" if size < 1 else f"{size:.1f} standard errors"


def _pair_words(count: int, relation: Relation) -> str:
    if count == 0:
        return ""
    most = math.sqrt(count)
    same = "" if relation is Relation.SAME_EXAMPLES else ", if they are the same examples,"
    if most <= CLEAR:
        return f"paired by example{same} it is at most {most:.1f} standard errors"
    return _MAY_PAIR.replace("example", f"example{same}", 1)


def _effort_words(first: AuditedRun, second: AuditedRun) -> str:
    """Return how much less, or more, the second training took."""
    parts = []
    before, after = first.log.num_epochs, second.log.num_epochs
    if before and after and before != after:
        parts.append(f"{after:g} epochs instead of {before:g}")
    before_s, after_s = first.log.total_s, second.log.total_s
    if before_s and after_s and not _SHORTER < after_s / before_s < 1 / _SHORTER:
        parts.append(f"{duration(after_s)} instead of {duration(before_s)}")
    return f"it took {', '.join(parts)}" if parts else ""
