"""Labels are valid for the loss: classes in 0 … C−1, probabilities in 0 … 1, not all equal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.classes import LossView, class_labels, loss_view
from stepladder.checks.evidence.loss_calls import LossCall
from stepladder.checks.evidence.spread import spread_sample
from stepladder.checks.examples import Example, SoundPictures, draw
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.measuring.probe import untouched
from stepladder.records.findings import Severity
from stepladder.training.output.wording import percent

_BY_CLASS = ("cross_entropy", "nll_loss")
_BY_SHARE = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
_TOLERANCE = 1e-3  # of a probability below 0 or above 1
_FEW = 16  # labels below 0, to find out how the loss treats them
_LEAST = 64  # examples of a single class before it is reported, if not all labels are known


def labels(job: CheckedJob) -> Answer:
    """Compare the targets of train and validation with what the loss accepts."""
    view = loss_view(job)
    if view.targets is None:
        return not_applicable("targets are not a single tensor")
    call = view.call
    if call is None:
        return _from_the_end(job, view) or not_applicable(
            "targets are not passed unchanged to a loss function of torch"
        )
    wrong = _wrong_format(view, call)
    if wrong is not None:
        return wrong
    if call.name in _BY_CLASS and not view.targets.is_floating_point():
        return _in_range(job, call) or _constant(job) or _fine(job, call)
    if call.name in _BY_SHARE:
        return _shares(job) or _fine(job, call)
    return not_applicable(f"{call.name} accepts any number as target")


def _from_the_end(job: CheckedJob, view: LossView) -> Answer | None:
    """Find negative labels that a custom loss uses as indices counted from the end."""
    columns = {c.scores.shape[-1] for c in view.calls if c.name == "log_softmax"}
    known = class_labels(job, Split.TRAIN) if len(columns) == 1 else None
    if known is None or not (known.values < 0).any():
        return None
    num_classes = columns.pop()
    rows = known.rows[known.values < 0][:_FEW]
    cpu = torch.device("cpu")  # on CUDA an index out of range makes the device unusable
    batch, model = job.rows(Split.TRAIN, rows).to(cpu), job.model().to(cpu).eval()
    moved = batch._replace(targets=batch.targets + num_classes)
    try:
        with untouched(model), torch.no_grad():
            as_given, from_end = job.task.loss(model, batch), job.task.loss(model, moved)
    except (IndexError, RuntimeError):
        return None
    if not isinstance(as_given, Tensor) or not isinstance(from_end, Tensor):
        return None
    if not bool((as_given == from_end).all()) or not bool((as_given != 0).any()):
        return None
    num = int((known.values < 0).sum())
    low = int(known.values.min())
    return found(
        "label_range",
        f"{num} of {len(known.values)} labels of train are negative, down to {low}, and the loss "
        f"indexes with them from the end: {low} counts as class {num_classes + low}",
        fix=f"If {low} means unlabelled, drop these rows, or mask them in the loss.",
        examples=tuple(job.describe(Split.TRAIN, int(row)) for row in rows[:6]),
        low=low,
    )


def _wrong_format(view: LossView, call: LossCall) -> Answer | None:
    """Find targets whose dtype the loss does not accept."""
    targets, error = view.targets, view.error
    assert targets is not None
    if error is None or call.name not in _BY_CLASS or targets.shape == call.scores.shape:
        return None
    if targets.dtype in (torch.int64, torch.uint8):
        return None
    return found(
        "label_range",
        f"targets are {targets.dtype}, which {call.name} does not accept: {_first_line(error)}",
        fix="Convert class labels to int64: torch.tensor(labels, dtype=torch.long).",
    )


def _in_range(job: CheckedJob, call: LossCall) -> Answer | None:
    """Find labels outside 0 … C−1."""
    num_classes = int(call.scores.shape[1]) if call.scores.dim() > 1 else len(call.scores)
    ignored = int(call.options.get("ignore_index", -100))
    for split in (Split.TRAIN, Split.VAL):
        values, rows, seen = _targets(job, split)
        if values is None:
            continue
        is_bad = ((values < 0) | (values >= num_classes)) & (values != ignored)
        if not is_bad.any():
            continue
        low, high = int(values.min()), int(values.max())
        is_shifted = low == 1 and high == num_classes
        hint = "Labels start at 1: subtract 1." if is_shifted else _hint(low, high, num_classes)
        bad_rows = rows[is_bad.flatten(1).any(1) if is_bad.dim() > 1 else is_bad][:6]
        return found(
            "label_range",
            f"labels of {split.value} range from {low} to {high}, but the model has {num_classes} "
            f"classes, 0 to {num_classes - 1}: {percent(float(is_bad.float().mean()))} of the "
            "labels are out of range",
            fix=hint,
            examples=tuple(job.describe(split, int(row)) for row in bad_rows),
            coverage=seen,
            low=low,
            high=high,
            num_classes=num_classes,
        )
    return None


def _hint(low: int, high: int, num_classes: int) -> str:
    if low < 0 <= high < num_classes:
        return f"If {low} means unlabelled, use ignore_index={low}; else map it to a class."
    return f"Use a model with {high + 1} outputs, or map the labels to 0 … {num_classes - 1}."


def _targets(job: CheckedJob, split: Split) -> tuple[Tensor | None, Tensor, str | None]:
    """Return targets, their rows, and what part of the split they are."""
    known = class_labels(job, split)
    if known is not None and known.is_all:
        return torch.from_numpy(known.values.copy()), torch.from_numpy(known.rows), None
    seen = spread_sample(job, split)
    if seen is not None:
        parts = [batch.targets for batch in seen.batches]
        rows, part_of = torch.cat([batch.ids for batch in seen.batches]), seen.coverage
    elif split is Split.TRAIN:  # rows cannot be read by index: the first batches
        batches = job.train_batches(4)
        parts = [batch.targets for batch in batches]
        rows, part_of = (
            torch.cat([batch.ids for batch in batches]),
            f"the first {len(batches)} batches",
        )
    else:
        return None, torch.empty(0), None
    if not all(isinstance(part, Tensor) for part in parts):
        return None, rows, None
    return torch.cat(parts).cpu(), rows, part_of


def _constant(job: CheckedJob) -> Answer | None:
    """Find a train split with a single class."""
    values, _, seen = _targets(job, Split.TRAIN)
    if values is None or int(values.min()) != int(values.max()):
        return None
    if seen is not None and len(values) < _LEAST:
        return None
    return found(
        "label_range",
        f"all {len(values)} training labels are {int(values.min())}: there is nothing to learn",
        fix="Correct the code of the dataset that reads the labels from files or columns.",
        severity=Severity.ERROR if seen is None else Severity.WARNING,
        coverage=seen,
    )


def _shares(job: CheckedJob) -> Answer | None:
    """Find targets of a binary cross-entropy outside 0 … 1."""
    for split in (Split.TRAIN, Split.VAL):
        values, rows, seen = _targets(job, split)
        if values is None:
            continue
        numbers = values.double()
        is_bad = (numbers < -_TOLERANCE) | (numbers > 1 + _TOLERANCE)
        if is_bad.any():
            bad_rows = rows[is_bad.reshape(len(rows), -1).any(1)][:6]
            return found(
                "label_range",
                f"targets of {split.value} range from {float(numbers.min()):g} to "
                f"{float(numbers.max()):g}, but binary cross-entropy expects 0 to 1",
                fix="Map the two classes to 0 and 1 (divide masks of 0 and 255 by 255).",
                examples=tuple(job.describe(split, int(row)) for row in bad_rows),
                coverage=seen,
                low=float(numbers.min()),
                high=float(numbers.max()),
            )
    return None


def _fine(job: CheckedJob, call: LossCall) -> Answer:
    values, _, seen = _targets(job, Split.TRAIN)
    assert values is not None  # they reached the loss
    low, high = float(values.double().min()), float(values.double().max())
    return passed(
        f"training labels range from {low:g} to {high:g}, which is valid for {call.name}",
        coverage=seen,
        low=low,
        high=high,
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:120]


def broken() -> Example:
    """Labels from 1 to C, as in many files."""

    class FromOne(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            return TensorDataset(pictures, numbers + 1)

    return Example(task=FromOne())


CHECK = Check(
    name="labels",
    reason="A label outside 0 … C−1 crashes training on a GPU without a useful message, or lets "
    "the loss fall without limit.",
    source="PyTorch documentation, cross_entropy and binary_cross_entropy_with_logits",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("label_range",),
    run=labels,
    broken=broken,
)
