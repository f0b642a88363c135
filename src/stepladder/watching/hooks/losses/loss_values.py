"""Read the values that a loss receives: weights of classes, and targets that it cannot reach."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.watching.hooks.graph import kind_of, reshaped, shape_of, walk
from stepladder.watching.hooks.tensors import is_finite, is_plain, part
from stepladder.watching.seen.losses import (
    DivergenceSeen,
    LossSeen,
    ReachSeen,
    RowsSeen,
    WeightsSeen,
)

DISTANCES: Final = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
_MAX_CLASSES: Final = 1000
_MAX_TARGETS: Final = 4096
_MAX_ROWS: Final = 64
_BEYOND: Final = 0.1  # of the standard deviation of the targets
_ONE: Final = 1e-2  # tolerance of a sum of probabilities
_RANGES: Final = {
    "Relu": ("relu", 0.0, math.inf),
    "Sigmoid": ("sigmoid", 0.0, 1.0),
    "Hardsigmoid": ("hardsigmoid", 0.0, 1.0),
    "Tanh": ("tanh", -1.0, 1.0),
    "Softmax": ("softmax", 0.0, 1.0),
    "Softplus": ("softplus", 0.0, math.inf),
}


def note_weights(
    seen: LossSeen, target: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Note weights of classes or of positives that a loss receives, and how common these are."""
    if seen.kind == "binary_cross_entropy_with_logits":
        positive: Any = args[6] if len(args) > 6 else kwargs.get("pos_weight")
        if positive is None:
            by_example = args[2] if len(args) > 2 else kwargs.get("weight")
            _note_by_example(seen, by_example, target)
        elif is_plain(positive) and positive.numel() <= _MAX_CLASSES:
            _note_positives(seen, tuple(positive.detach().flatten().tolist()), target)
        return
    if seen.kind == "binary_cross_entropy":
        _note_by_example(seen, args[2] if len(args) > 2 else kwargs.get("weight"), target)
        return
    weight: Any = args[2] if len(args) > 2 else kwargs.get("weight")
    if is_plain(weight) and weight.dim() == 1 and 2 <= weight.numel() <= _MAX_CLASSES:
        seen.weights = seen.weights or WeightsSeen()
        seen.weights.by_class = dict(enumerate(weight.detach().tolist()))


def _note_by_example(seen: LossSeen, weight: object, target: Tensor) -> None:
    """Note weights of examples that depend only on whether their target is positive."""
    by_label = _by_label(weight, target)
    if by_label is not None and set(by_label) == {0, 1} and by_label[0] > 0:
        _note_positives(seen, (by_label[1] / by_label[0],), target)


def _by_label(weight: Any, target: Tensor) -> dict[int, float] | None:
    """Return the weight of each label, if every example of a label has the same."""
    if not is_plain(weight) or not is_plain(target) or weight.numel() != target.numel():
        return None
    labels, weights = part(target, _MAX_TARGETS).tolist(), part(weight, _MAX_TARGETS).tolist()
    found: dict[int, float] = {}
    for label, one in zip(labels, weights, strict=True):
        if label != int(label) or found.setdefault(int(label), one) != one or len(found) > 1000:
            return None
    return found


def _note_positives(seen: LossSeen, weight: tuple[float, ...], target: Tensor) -> None:
    is_by_output = len(weight) > 1
    if is_by_output and (target.dim() < 2 or target.shape[-1] != len(weight)):
        return
    if is_by_output:
        rows = target.detach().reshape(-1, len(weight))
        rows = rows[:: max(1, rows.shape[0] * len(weight) // (4 * _MAX_TARGETS) + 1)]
    else:
        rows = part(target, _MAX_TARGETS).reshape(-1, 1)
    one = seen.weights = seen.weights or WeightsSeen()
    if one.positive != weight:
        one.positive, one.num_positive = weight, [0] * len(weight)
        one.num_binary = [0] * len(weight)
    for idx, num in enumerate((rows > 0.5).sum(0).tolist()):
        one.num_positive[idx] += int(num)
        one.num_binary[idx] += rows.shape[0]


def weighted_labels(root: Any) -> Iterator[tuple[str, dict[int, float], Tensor]]:
    """Yield losses by example that a script multiplies with a weight by label.

    Yields:
        The loss, the weight of each label, and the labels.
    """
    for node in walk(root):
        if kind_of(node) != "Mul":
            continue
        parents = [parent for parent, _ in node.next_functions]
        if len(parents) != 2 or (parents[0] is None) == (parents[1] is None):
            continue
        loss = reshaped(parents[0] or parents[1])
        kind = "" if loss is None else kind_of(loss)
        if kind not in ("NllLoss", "NllLoss2D", "BinaryCrossEntropyWithLogits"):
            continue
        labels: Any = getattr(loss, "_saved_target", None)
        weight: Any = getattr(node, "_saved_other" if parents[1] is None else "_saved_self", None)
        by_label = None if labels is None else _by_label(weight, labels)
        if by_label is not None and len(by_label) >= 2:
            yield kind, by_label, labels


def note_weighted(seen: LossSeen, kind: str, by_label: dict[int, float], labels: Tensor) -> None:
    """Note a weight of each label that the script itself multiplies a loss with."""
    if kind == "BinaryCrossEntropyWithLogits":
        if set(by_label) == {0, 1} and by_label[0] > 0:
            _note_positives(seen, (by_label[1] / by_label[0],), labels)
        return
    seen.weights = seen.weights or WeightsSeen()
    seen.weights.by_class.update(by_label)


def note_reach(seen: LossSeen, scores: Tensor, target: Tensor) -> None:
    """Note targets that the last activation of a model cannot reach."""
    if scores.grad_fn is None and target.grad_fn is not None:
        scores, target = target, scores  # exchanged, which makes no difference here
    node = None if scores.grad_fn is None else reshaped(scores.grad_fn)
    if (
        node is None
        or target.requires_grad
        or not scores.dim() * target.dim()
        or len(scores) != len(target)
    ):
        return
    found = _range_of(node)
    if found is not None and target.numel() > 1:
        _count_beyond(seen, found, part(target, _MAX_TARGETS).float())


def differences(root: Any) -> Iterator[tuple[tuple[str, float, float], Tensor]]:
    """Yield the targets of squares that a script computes itself, from a limited activation."""
    for node in walk(root):
        if kind_of(node) != "Pow" or getattr(node, "_saved_exponent", 0) != 2:
            continue
        inner = node.next_functions[0][0]
        if inner is None or kind_of(inner) != "Sub" or getattr(inner, "_saved_alpha", 1) != 1:
            continue
        parents = [parent for parent, _ in inner.next_functions]
        if len(parents) != 2 or (parents[0] is None) == (parents[1] is None):
            continue
        before = reshaped(parents[0] or parents[1])
        found = None if before is None else _range_of(before)
        difference: Any = getattr(node, "_saved_self", None)
        output: Any = getattr(before, "_saved_result", None)
        if found is None or not is_plain(difference) or not is_plain(output):
            continue
        if output.shape != difference.shape or difference.numel() < 2:
            continue
        sign = 1.0 if parents[1] is None else -1.0  # output - target, or target - output
        out, gap = part(output, _MAX_TARGETS).float(), part(difference, _MAX_TARGETS).float()
        yield found, out - sign * gap


def note_difference(seen: LossSeen, found: tuple[str, float, float], target: Tensor) -> None:
    """Note targets of such a square."""
    _count_beyond(seen, found, target)


def _range_of(node: Any) -> tuple[str, float, float] | None:
    kind = kind_of(node)
    if kind == "Hardtanh":
        low, high = getattr(node, "_saved_min_val", None), getattr(node, "_saved_max_val", None)
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            return "hardtanh", float(low), float(high)
        return None
    return _RANGES.get(kind)


def _count_beyond(seen: LossSeen, found: tuple[str, float, float], numbers: Tensor) -> None:
    name, low, high = found
    one = seen.reach
    if one is None or one.activation != name:
        one = seen.reach = ReachSeen(activation=name, low=low, high=high)
    margin = max(_BEYOND * float(numbers.std(correction=0)), 1e-3)
    is_beyond = (numbers < low - margin) | (numbers > high + margin)
    one.target_low = min(one.target_low, float(numbers.min()))
    one.target_high = max(one.target_high, float(numbers.max()))
    one.num_targets += numbers.numel()
    one.num_beyond += int(is_beyond.sum())
    one.squares += float((numbers - numbers.mean()).square().sum())
    one.missed += float((numbers - numbers.clamp(low, high)).square().sum())


def note_rows(seen: LossSeen, target: Tensor, given: Any) -> None:
    """Note whether the targets of a cross entropy have one class each."""
    if target.dim() != 2 or target.shape[1] < 2:
        return
    rows = target.detach()[:_MAX_ROWS]
    is_binary = ((rows == 0) | (rows == 1)).all(1)
    sums = rows.sum(1)
    one = seen.rows = seen.rows or RowsSeen()
    counts = [is_binary.sum(), (is_binary & (sums > 1.5)).sum(), (is_binary & (sums == 0)).sum()]
    num, num_several, num_empty = (int(count) for count in torch.stack(counts).tolist())
    one.num_rows += num
    one.num_several += num_several
    one.num_empty += num_empty
    one.num_other += rows.shape[0] - num
    one.is_input = one.is_input or (given is not None and given.shape == target.shape)


def note_cut(seen: LossSeen, target: Tensor, batch: list[Any]) -> None:
    """Note integer targets that are numbers of the loader's batch without their fractions."""
    for ref in batch:
        given = ref()
        if given is None or given.numel() != target.numel() or given.device != target.device:
            continue
        if not given.is_floating_point():
            continue
        numbers = part(given, _MAX_TARGETS)
        is_same = (numbers.long() == part(target, _MAX_TARGETS)).all()
        if bool(is_same & (numbers != numbers.long()).any()):
            seen.num_cut += 1
            seen.cut = float(numbers[(numbers != numbers.long()).long().argmax()])
        return


def note_whole(seen: LossSeen, target: Tensor, batch: list[Any]) -> None:
    """Note targets that were integers in the loader's batch, and how many of them are 0."""
    for ref in batch:
        given = ref()
        if given is None or given.is_floating_point() or given.numel() != target.numel():
            continue
        numbers, targets = part(given, _MAX_TARGETS), part(target, _MAX_TARGETS)
        if given.device == target.device and bool((numbers == targets).all()):
            seen.num_whole += targets.numel()
            seen.num_zero += int((targets == 0).sum())
            return


def note_divergence(
    seen: LossSeen, scores: Tensor, target: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Note which of the arguments of kl_div are probabilities."""
    is_log = bool(args[5] if len(args) > 5 else kwargs.get("log_target", False))
    if scores.shape != target.shape or scores.dim() < 2:
        return
    given, wanted = scores.detach()[:_MAX_ROWS].float(), target.detach()[:_MAX_ROWS].float()
    is_known = is_finite(given) and is_finite(wanted)  # not after an earlier NaN
    if wanted.shape[-1] < 2 or is_log or not is_known:
        return
    one = seen.divergence = seen.divergence or DivergenceSeen()
    one.num_looked += 1
    if bool((wanted < -1e-3).any()):
        one.num_negative += 1
    dims = [dim for dim in range(1, wanted.dim()) if _is_one(wanted.sum(dim))]
    if bool(given.min() >= 0) and any(_is_one(given.sum(dim)) for dim in range(1, given.dim())):
        one.num_shares += 1
    elif dims and not any(_is_one(given.logsumexp(dim).exp(), 0.1) for dim in dims):
        one.num_raw += bool(wanted.min() >= 0)


def _is_one(sums: Tensor, tolerance: float = _ONE) -> bool:
    return bool(((sums - 1).abs() < tolerance).all())


def is_mined(values: Tensor) -> bool:
    """Return whether rows were picked by their indices from a tensor with a graph."""
    node: Any = values.grad_fn
    for _ in range(6):
        if node is None:
            return False
        if kind_of(node) in ("Index", "IndexSelect", "Gather", "Take", "Max", "Min", "Sort"):
            return bool(shape_of(node))
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if len(parents) != 1:
            return False
        node = parents[0]
    return False
