"""One seed gives one run: the same steps twice give the same weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.held_features import holding_features
from stepladder.checks.job import CheckedJob
from stepladder.checks.practice import short_device
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity
from stepladder.train.randomness import use_deterministic

_NUM_STEPS = 3
_ROUNDING = 1e-4  # of the weights' size, where operations have no fixed order


def reproducible(job: CheckedJob) -> Answer:
    """Take the same steps twice from one seed, and name operations without a fixed order."""
    first = _steps(job)
    if first is None:
        return not_applicable(
            "the loss or its gradient is not finite: there are no steps to compare"
        )
    second = _steps(job) or {}
    pairs = [(first[name], second[name]) for name in first]
    apart = max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
    size = max(float(a.double().abs().max()) for a, _ in pairs) or 1.0
    operations: list[str] = []
    if apart > 0 or job.device.type != "cpu":
        with use_deterministic() as operations:
            _steps(job)
    named = f"; without a fixed order: {', '.join(operations)}" if operations else ""
    numbers: dict[str, Any] = {"apart": apart, "operations": list(operations)}
    if apart == 0:
        return passed(
            f"{_NUM_STEPS} steps twice give the same weights to the bit{named}", **numbers
        )
    said = f"{_NUM_STEPS} steps twice give weights that differ by {apart:.1g}{named}"
    is_rounding = apart <= _ROUNDING * size
    return found(
        "not_reproducible",
        said,
        fix="Use --deterministic, and look for what draws without a seed or keeps state.",
        severity=Severity.INFO if is_rounding else Severity.WARNING,
        **numbers,
    )


def _steps(job: CheckedJob) -> dict[str, Tensor] | None:
    """Take a few steps, and give the weights after them; None: one was not finite."""
    batches = [job.augmented(batch) for batch in job.train_batches(_NUM_STEPS)]
    with job.subject(device=short_device(job)) as subject:
        with holding_features(job, subject.model):
            for idx in range(_NUM_STEPS):
                subject.parts.step(batches[idx % len(batches)], step=idx, lr=subject.lr)
        if subject.parts.update.read_first_bad() is not None:
            return None
        learning = [(n, w) for n, w in subject.model.named_parameters() if w.requires_grad]
        return {name: weight.detach().clone() for name, weight in learning}


def broken() -> Example:
    """A loss that depends on how often it was asked for."""

    class Counting(SoundPictures):
        calls = 0

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            Counting.calls += 1
            return super().loss(model, batch) * (1 + 0.1 * Counting.calls)

    return Example(task=Counting())


CHECK = Check(
    name="reproducible",
    reason="Runs that differ by themselves cannot be compared: each difference is one of luck as "
    "well.",
    source="Godbole et al. 2023, Deep Learning Tuning Playbook; PyTorch, notes on reproducibility",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("not_reproducible",),
    run=reproducible,
    broken=broken,
    least_s=3.0,
)
