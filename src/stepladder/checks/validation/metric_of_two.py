"""Recompute the accuracy of a binary classifier with one score per example."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.checks.contract import Answer, found, passed
from stepladder.checks.evidence.one_pass import is_same, look
from stepladder.checks.evidence.sample import training_sample
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.task.contract import Metrics

_SIZES: Final = (21, 6, 13)  # unequal, so that a mean of means differs from the mean
_NAMES: Final = ("accuracy", "acc", "binary_accuracy")
_LOGITS: Final = "binary_cross_entropy_with_logits"
_SHARES: Final = "binary_cross_entropy"
_HALF: Final = 0.5
_TOLERANCE: Final = 1e-4
_FEW: Final = 4  # examples, to find out what the loss expects
_FIX_BORDER: Final = "Use a threshold of 0 for logits, and of 0.5 for probabilities."
_FIX_SUMS: Final = (
    "Return the number of correct predictions as a sum, and the number of examples as a count; "
    "stepladder divides them after all batches."
)


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Whether the loss expects logits, and the shape of an example in the model's output."""

    is_logits: bool
    shape: tuple[int, ...]

    @property
    def border(self) -> float:
        """The threshold: scores above it are the second class."""
        return 0.0 if self.is_logits else _HALF


def metric_of_two(job: CheckedJob) -> Answer | None:
    """Compare the accuracy with that of constructed scores; None for other tasks.

    The threshold is 0 if the loss expects logits, and 0.5 for probabilities. Scores are such that
    the two thresholds disagree on every example of one class. An accuracy that fits any other
    threshold is accepted: it may be intended.
    """
    kind = _kind(job)
    if kind is None:
        return None
    parts = [part for batch in _batches(job) if (part := _measured(job, batch, kind)) is not None]
    name = next((name for name in _NAMES if parts and _is_one_number(parts[0][2], name)), None)
    if name is None or len(parts) < len(_SIZES):
        return None
    scores = torch.cat([scores for scores, _, _ in parts])
    wanted = torch.cat([wanted for _, wanted, _ in parts])
    given = _ratio([part[2] for part in parts], name)
    border, wrong_border = kind.border, _HALF - kind.border
    right, wrong = (_accuracy(scores, wanted, at) for at in (border, wrong_border))
    if abs(given - right) <= _TOLERANCE:
        return passed(
            f"{name} of {len(scores)} examples is correct, with a threshold of {border:g}"
        )
    is_wrong_border = abs(given - wrong) <= _TOLERANCE
    if not is_wrong_border and _fits_some_border(scores, wanted, given):
        return passed(f"{name} uses another threshold than {border:g}, which may be intended")
    return found(
        "metric_wrong",
        f"{name} of {len(scores)} examples in batches of {', '.join(map(str, _SIZES))} is "
        f"{given:.4f}, but the loss expects {'logits' if kind.is_logits else 'probabilities'}, "
        f"and with a threshold of {border:g} it is {right:.4f}"
        + (f" ({wrong:.4f} with a threshold of {wrong_border:g})" if is_wrong_border else ""),
        fix=_FIX_BORDER if is_wrong_border else _FIX_SUMS,
        given=given,
        recomputed=right,
    )


def _kind(job: CheckedJob) -> _Kind | None:
    """Check if the loss is a binary cross-entropy of one model output per example."""
    if not any(call.name in (_LOGITS, _SHARES) for call in job.calls):
        return None
    batch = training_sample(job, _FEW)
    seen = look(job, job.model().eval(), batch)
    num = batch.ids.numel()
    calls = [call for call in seen.calls if call.is_loss]
    if len(calls) != 1 or seen.outputs is None or seen.outputs.numel() != num:
        return None
    given, taken = seen.outputs.reshape(-1), calls[0].scores.reshape(-1)
    shape = tuple(seen.outputs.shape[1:])
    if calls[0].name == _LOGITS:
        return _Kind(is_logits=True, shape=shape) if is_same(taken, given) else None
    if calls[0].name != _SHARES:
        return None
    if is_same(taken, given.sigmoid()):
        return _Kind(is_logits=True, shape=shape)
    return _Kind(is_logits=False, shape=shape) if is_same(taken, given) else None


def _batches(job: CheckedJob) -> list[Batch]:
    """Read rows evenly spaced over validation, in unequal batches."""
    num_rows = len(job.source(Split.VAL) or ())
    rows = np.linspace(0, num_rows - 1, sum(_SIZES)).astype(np.int64)
    return [job.rows(Split.VAL, part) for part in np.split(rows, np.cumsum(_SIZES)[:-1])]


def _measured(job: CheckedJob, batch: Batch, kind: _Kind) -> tuple[Tensor, Tensor, Metrics] | None:
    """Return scores, labels and metrics of a batch; None if labels are not binary, or it fails."""
    targets = batch.targets
    if not isinstance(targets, Tensor) or targets.numel() != len(batch.ids):
        return None
    wanted = targets.reshape(-1).double()
    if not ((wanted == 0) | (wanted == 1)).all():
        return None
    scores = _scores(wanted, int(batch.ids[0]), is_logits=kind.is_logits)
    try:
        with torch.no_grad():
            metrics = job.task.metrics(Says(scores.float().reshape(-1, *kind.shape)), batch)
    except Exception:
        return None  # the task uses parts of its model
    return scores, wanted, metrics


def _scores(wanted: Tensor, seed: int, *, is_logits: bool) -> Tensor:
    """Draw scores: of one class between the two thresholds, of the other far on both sides.

    Scores of the second class between 0 and 0.5 are right with one threshold and wrong with the
    other. Without a second class, those of the first class are between.
    """
    generator = torch.Generator().manual_seed(seed)
    between = 0.05 + 0.4 * torch.rand(len(wanted), generator=generator)
    far = torch.where(torch.rand(len(wanted), generator=generator) < _HALF, 0.9, -0.9)
    if not is_logits:
        far = torch.where(far > 0, 0.9, 0.02)
    is_between = wanted == 1 if bool((wanted == 1).any()) else torch.ones_like(wanted) == 1
    return torch.where(is_between, between.to(wanted.device), far.to(wanted.device)).double()


class Says(nn.Module):
    """A model with fixed outputs."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self._scores = scores

    def forward(self, *_: object, **__: object) -> Tensor:
        """Return the scores for any inputs."""
        return self._scores


def _is_one_number(metrics: Metrics, name: str) -> bool:
    both = metrics.sums.get(name), metrics.counts.get(name)
    return all(isinstance(one, Tensor) and one.numel() == 1 for one in both)


def _ratio(metrics: list[Metrics], name: str) -> float:
    total = sum(float(one.sums[name].double().sum()) for one in metrics)
    return total / max(1e-12, sum(float(one.counts[name].double().sum()) for one in metrics))


def _accuracy(scores: Tensor, wanted: Tensor, border: float) -> float:
    return float(((scores > border).double() == wanted).double().mean())


def _fits_some_border(scores: Tensor, wanted: Tensor, given: float) -> bool:
    """Return True if some threshold results in this accuracy."""
    ordered = scores.sort().values
    between = [(a + b) / 2 for a, b in itertools.pairwise(ordered.tolist()) if b > a]
    between += [-math.inf, math.inf]
    return any(abs(_accuracy(scores, wanted, at) - given) <= _TOLERANCE for at in between)
