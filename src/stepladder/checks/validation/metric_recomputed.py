"""Metrics agree with the outputs: accuracy is recomputed over all examples at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.checks.validation.metric_of_two import Says, metric_of_two
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import ArrivalSource
from stepladder.records.findings import Severity
from stepladder.task.contract import Metrics

_SIZES: Final = (7, 2, 4)  # unequal, so that a mean of means differs from the mean
_TOLERANCE: Final = 1e-4
_TOP: Final = 5


def metric_recomputed(job: CheckedJob) -> Answer:
    """Compare metrics accumulated over unequal batches with those of all outputs together.

    The model is replaced by one with random scores, so that there are right and wrong predictions;
    if the task uses parts of its model, the model's own scores are used.
    """
    source = job.sources.val
    if source is None or isinstance(source, ArrivalSource):
        return not_applicable("there is no validation split that can be read by index")
    return metric_of_two(job) or _of_classes(job, len(source))


def _of_classes(job: CheckedJob, num_rows: int) -> Answer:
    """Compare the task's counts with the argmax over class scores."""
    batches = _batches(job, num_rows)
    parts = [(batch, _metrics(job, batch, seed)) for seed, batch in enumerate(batches)]
    if any(metrics.outputs is None for _, metrics in parts):
        return not_applicable("metrics() returns no outputs to compare with")
    outputs = torch.cat([metrics.outputs for _, metrics in parts if metrics.outputs is not None])
    targets = [batch.targets for batch in batches]
    if outputs.dim() != 2 or not all(
        isinstance(target, Tensor) and target.dim() == 1 and not target.is_floating_point()
        for target in targets
    ):
        return not_applicable("outputs and targets are not class scores and labels")
    wanted = counted(outputs.float(), torch.cat(targets))
    given = _added([metrics for _, metrics in parts])
    common = sorted(wanted.keys() & given.keys())
    if not common:
        return not_applicable("metrics() returns no accuracy")
    for name in common:
        if not abs(wanted[name] - given[name]) <= _TOLERANCE:
            return found(
                "metric_wrong",
                f"{name} of {len(outputs)} examples in batches of {', '.join(map(str, _SIZES))} is "
                f"{given[name]:.4f}, but {wanted[name]:.4f} by argmax over all of them",
                fix="Return the number of correct predictions (argmax over dim 1) as a sum, and "
                "the number of examples as a count; stepladder divides them after all batches.",
                given=given[name],
                recomputed=wanted[name],
            )
    return passed(f"{', '.join(common)} of {len(outputs)} examples: correct when recomputed")


def counted(outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Compute accuracies: over examples, over classes, and top-5.

    Shapes: outputs (n, C), targets (n,).
    """
    hits = (outputs.argmax(1) == targets).double()
    labels = sorted(set(targets.tolist()))
    by_class = [float(hits[targets == label].mean()) for label in labels]
    found = {"accuracy": float(hits.mean()), "macro_accuracy": float(np.mean(by_class))}
    found["acc"] = found["accuracy"]
    if outputs.shape[1] > _TOP:
        among = (outputs.topk(_TOP, 1).indices == targets.unsqueeze(1)).any(1)
        found["top5_accuracy"] = float(among.double().mean())
    return found


def _batches(job: CheckedJob, num_rows: int) -> list[Batch]:
    """Read rows evenly spaced over the split, which may be sorted, in unequal batches."""
    rows = np.linspace(0, num_rows - 1, sum(_SIZES)).astype(np.int64)
    parts = np.split(rows, np.cumsum(_SIZES)[:-1])
    return [job.rows(Split.VAL, part) for part in parts]


def _metrics(job: CheckedJob, batch: Batch, seed: int) -> Metrics:
    model = job.model().eval()
    with torch.no_grad(), job.autocast():
        real = job.task.metrics(model, batch)
        if real.outputs is None or real.outputs.dim() != 2:
            return real
        scores = _scores(batch, real.outputs, seed)
        try:
            return job.task.metrics(Says(scores), batch)
        except Exception:
            return real  # the task uses parts of its model


def _scores(batch: Batch, like: Tensor, seed: int) -> Tensor:
    """Draw scores of which about half are right."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(like.shape, generator=generator).to(like.device)
    if isinstance(batch.targets, Tensor) and batch.targets.dim() == 1:
        right = torch.rand(len(scores), generator=generator).to(like.device) < 0.5
        own = F.one_hot(batch.targets.long().clamp(0, like.shape[1] - 1), like.shape[1])
        scores = scores + 9.0 * own * right.unsqueeze(1)
    return scores


def _added(parts: list[Metrics]) -> dict[str, float]:
    """Sum the sums and counts over batches and divide, as validation does."""
    given = {}
    for name in parts[0].sums:
        total = torch.stack([part.sums[name].double() for part in parts]).sum(0)
        count = torch.stack([part.counts[name].double() for part in parts]).sum(0)
        ratios = total[count > 0] / count[count > 0]
        given[name] = float(ratios.mean()) if ratios.numel() else float("nan")
    return given


def broken() -> Example:
    """Accuracy as a mean of batch means: the short last batch has too much weight."""

    class MeanOfMeans(SoundPictures):
        def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
            right = super().metrics(model, batch)
            share = right.sums["accuracy"] / right.counts["accuracy"]
            return Metrics(
                losses=right.losses,
                sums={"accuracy": share},
                counts={"accuracy": torch.ones(())},
                outputs=right.outputs,
            )

    return Example(task=MeanOfMeans())


CHECK = Check(
    name="metric_recomputed",
    reason="A wrong metric selects the wrong model without any error.",
    source="measuring faults: averages over unequal batches, argmax over the wrong dimension",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("metric_wrong",),
    run=metric_recomputed,
    broken=broken,
)
