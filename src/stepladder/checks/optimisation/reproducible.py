"""Runs with the same seed are equal: the same steps twice result in the same weights."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.practice import short_subject
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.checks.machine.ranks import alike, has_file, other_keys, other_rows, views_of
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity
from stepladder.training.randomness import use_deterministic

_NUM_STEPS = 3
_FRESH_S = 12.0  # that must be left for another interpreter
_ROUNDING = 1e-4  # of the size of the weights, for nondeterministic operations


def reproducible(job: CheckedJob) -> Answer:
    """Take the same steps twice with one seed, and list nondeterministic operations."""
    first = _steps(job)
    if first is None:
        return not_applicable(
            "the loss or its gradient is not finite, so there are no steps to compare"
        )
    second = _steps(job) or {}
    pairs = [(first[name], second[name]) for name in first]
    apart = max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
    size = max(float(a.double().abs().max()) for a, _ in pairs) or 1.0
    operations: list[str] = []
    if apart > 0 or job.device.type != "cpu":
        with use_deterministic() as operations:
            _steps(job)
    named = f"; nondeterministic operations: {', '.join(operations)}" if operations else ""
    numbers: dict[str, Any] = {"apart": apart, "operations": list(operations)}
    if apart == 0 and (other := _in_another_process(job)) is not None:
        return found(
            "not_reproducible",
            f"a new process with the same seed starts differently: {other}",
            fix="Check for hash() of a string (use zlib.crc32), the order of a set (sort it), the "
            "clock, and unseeded generators.",
        )
    if apart == 0:
        return passed(
            f"{_NUM_STEPS} steps, repeated, result in bitwise equal weights{named}", **numbers
        )
    said = f"{_NUM_STEPS} steps, repeated, result in weights that differ by {apart:.1g}{named}"
    is_rounding = apart <= _ROUNDING * size
    return found(
        "not_reproducible",
        said,
        fix="Use --deterministic. If that does not help, look in the Task for random generators "
        "without a seed, and for values that are kept from one step to the next.",
        severity=Severity.INFO if is_rounding else None,
        **numbers,
    )


def _in_another_process(job: CheckedJob) -> str | None:
    """Return how model and data differ in a new interpreter, or None."""
    if not has_file(job) or job.left_s() < _FRESH_S:
        return None
    try:
        ours, twice = views_of(job, 0, num_looks=2)
        if ours != twice:
            return None  # it differs within a process: `seeds` reports that
        (theirs,) = views_of(job, 0, fresh=True)
    except (RuntimeError, TimeoutError):  # a Task that cannot be built twice at the same time
        return None
    weights = other_keys(ours.weights, theirs.weights)
    both = [name for name in ours.weights if name in theirs.weights]
    weights += [name for name in both if not alike(ours.weights[name], theirs.weights[name])]
    if weights:
        return f"{len(weights)} weights differ, such as {weights[0]}"
    for split, rows in ours.data.items():
        if split in theirs.data:
            names = ("this process", "a new one")
            words = other_rows(rows, theirs.data[split], names=names)
            if words is not None:
                return f"data({split}): {words}"
    return None


def _steps(job: CheckedJob) -> dict[str, Tensor] | None:
    """Take a few steps, and return the weights; None if a step was not finite."""
    batches = [job.augmented(batch) for batch in job.train_batches(_NUM_STEPS)]
    with short_subject(job) as subject:
        for idx in range(_NUM_STEPS):
            subject.parts.step(batches[idx % len(batches)], step=idx, lr=subject.lr)
        if subject.parts.update.read_first_bad() is not None:
            return None
        learning = [(n, w) for n, w in subject.model.named_parameters() if w.requires_grad]
        return {name: weight.detach().clone() for name, weight in learning}


def broken() -> Example:
    """A loss that depends on the number of its calls."""

    class Counting(SoundPictures):
        calls = 0

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            Counting.calls += 1
            return super().loss(model, batch) * (1 + 0.1 * Counting.calls)

    return Example(task=Counting())


CHECK = Check(
    name="reproducible",
    reason="Runs that are not reproducible cannot be compared: any difference may be due to "
    "chance.",
    source="Godbole et al. 2023, Deep Learning Tuning Playbook; PyTorch, notes on reproducibility",
    severity=Severity.WARNING,
    tier=Tier.FULL,
    faults=("not_reproducible",),
    run=reproducible,
    broken=broken,
    least_s=3.0,
)
