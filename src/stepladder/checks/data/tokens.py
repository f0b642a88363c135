"""Token ids are in the vocabulary, and padding does not count in the loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.loss_calls import EachCall
from stepladder.checks.evidence.sample import merge, take, tensors_of
from stepladder.checks.evidence.spread import spread_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.measuring.probe import untouched
from stepladder.records.findings import Severity
from stepladder.training.output.wording import percent

_MAX_EXAMPLES = 64
_MIN_PADDED_FRAC = 0.05  # of the targets; less changes the loss by less than its noise
_MIN_ENDING_FRAC = 0.25  # of the rows end with the same id if it is padding


@dataclass(kw_only=True)
class _Lookup:
    """The ids that were looked up in one embedding table."""

    num_rows: int
    low: int
    high: int
    padding_idx: int | None
    ids: Tensor


class _OutOfTableError(Exception):
    """Stop a forward pass before an id out of range reaches the device."""


@dataclass(kw_only=True)
class _Seen:
    lookups: list[_Lookup] = field(default_factory=list)

    @property
    def outside(self) -> _Lookup | None:
        return next((one for one in self.lookups if one.low < 0 or one.high >= one.num_rows), None)


def _noting(seen: _Seen) -> EachCall:
    """Record ids before a lookup: on CUDA an id out of range makes the device unusable."""

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if func not in (F.embedding, F.embedding_bag):
            return
        given = dict(zip(("input", "weight", "padding_idx"), args, strict=False)) | kwargs
        ids, padding = given["input"], given.get("padding_idx")
        if ids.numel() == 0 or ids.is_floating_point():
            return
        has_padding = func is F.embedding and isinstance(padding, int)
        one = _Lookup(
            num_rows=len(given["weight"]),
            low=int(ids.min()),
            high=int(ids.max()),
            padding_idx=padding if has_padding else None,
            ids=ids.detach(),
        )
        seen.lookups.append(one)
        if seen.outside is not None:
            raise _OutOfTableError

    return EachCall(note)


def tokens(job: CheckedJob) -> Answer:
    """Check the ids that embedding tables look up, and padding in the targets."""
    for split in (Split.TRAIN, Split.VAL):
        batch, coverage = _batch(job, split)
        if batch is None:
            continue
        if not any(_is_ids(value) for value in tensors_of(batch.inputs)):
            return not_applicable("inputs have no token ids")
        seen = _look(job, batch)
        if not seen.lookups:
            return not_applicable("the model has no embedding lookups")
        outside = seen.outside
        if outside is not None:
            wrong = outside.high if outside.high >= outside.num_rows else outside.low
            return found(
                "tokens_out_of_vocabulary",
                f"{split.value} has token id {wrong}, but the embedding table has "
                f"{outside.num_rows} rows, 0 to {outside.num_rows - 1}",
                fix="Set num_embeddings to the size of the tokeniser's vocabulary, with special "
                "tokens; for position embeddings, to the longest sequence.",
                coverage=coverage,
                id=wrong,
                num_rows=outside.num_rows,
            )
        if split is Split.TRAIN:
            answer = _padding(job, batch, seen)
            if answer is not None:
                return answer
            largest = max(seen.lookups, key=lambda one: one.num_rows)
    return passed(
        f"token ids range from {largest.low} to {largest.high}; the embedding table has "
        f"{largest.num_rows} rows",
        coverage=coverage,
        high=largest.high,
        num_rows=largest.num_rows,
    )


def _batch(job: CheckedJob, split: Split) -> tuple[Batch | None, str | None]:
    seen = spread_sample(job, split)
    if seen is not None:
        whole = merge(list(seen.batches))
        num = min(_MAX_EXAMPLES, len(whole.ids))
        batch = take(whole, torch.linspace(0, len(whole.ids) - 1, num).long())
        coverage = None if num == seen.num_all else f"{num} of {seen.num_all} examples"
    elif split is Split.TRAIN:
        first = merge(job.train_batches(2))
        batch = take(first, torch.arange(min(_MAX_EXAMPLES, len(first.ids))))
        coverage = "the first two batches"
    else:
        return None, None
    return (job.augmented(batch) if split is Split.TRAIN else batch), coverage


def _look(job: CheckedJob, batch: Batch) -> _Seen:
    seen = _Seen()
    with untouched(), torch.no_grad(), _noting(seen):
        try:
            job.task.loss(job.model().eval(), batch)
        except _OutOfTableError:
            pass
        except Exception as error:  # other checks report other failures
            if not seen.lookups:
                raise error from None
    return seen


def _padding(job: CheckedJob, batch: Batch, seen: _Seen) -> Answer | None:
    """Find padding that counts: the loss has a gradient where a target is padding."""
    targets = batch.targets
    if not isinstance(targets, Tensor) or not _is_ids(targets) or targets.dim() != 2:
        return None
    named = {one.padding_idx for one in seen.lookups if one.padding_idx is not None}
    padding = next(iter(named)) if len(named) == 1 else _ending(targets)
    if padding is None:
        return None
    is_padding = _endings(targets, padding)
    share = float(is_padding.float().mean())
    if share < _MIN_PADDED_FRAC or is_padding.all():
        return None
    weight = _weight_by_place(job, batch)
    if weight is None or not (weight[is_padding] > 0).any():
        return None
    return found(
        "tokens_out_of_vocabulary",
        f"{percent(share, 0)} of the targets are padding (id {padding}) and are included in the "
        f"loss, with {percent(float(weight[is_padding].sum() / weight.sum()), 0)} of its gradient",
        fix=f"Pass ignore_index={padding} to the loss function, or leave padding out of its mean.",
        severity=Severity.WARNING,
        padding_frac=share,
        padding_id=padding,
    )


def _weight_by_place(job: CheckedJob, batch: Batch) -> Tensor | None:
    """Return the absolute gradient of the loss at the scores of each position, (n, t).

    None if the loss is not a cross-entropy of torch over exactly these positions.
    """
    targets: Tensor = batch.targets
    kept: list[Tensor] = []

    def keep(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if func in (F.cross_entropy, F.nll_loss):
            scores = args[0] if args else kwargs["input"]
            if scores.requires_grad:
                scores.retain_grad()
                kept.append(scores)

    with untouched(), torch.enable_grad(), EachCall(keep):
        torch.autograd.backward(job.loss(job.model().eval(), batch).sum())
    grads = [scores.grad for scores in kept if scores.grad is not None]
    if len(grads) != 1:
        return None
    grad = grads[0].abs()
    by_place = grad.sum(dim=1 if grad.dim() > 1 else 0)  # (n, t), or (n t,)
    return by_place.reshape(targets.shape) if by_place.numel() == targets.numel() else None


def _ending(targets: Tensor) -> int | None:
    """Return the id that ends rows in runs of various lengths and occurs nowhere else."""
    last = targets[:, -1]
    values, counts = torch.unique(last, return_counts=True)
    padding = int(values[counts.argmax()])
    ends = _endings(targets, padding)
    lengths = ends.sum(dim=1)
    stands_elsewhere = bool(((targets == padding) & ~ends).any())
    is_common = float((lengths > 1).float().mean()) >= _MIN_ENDING_FRAC
    has_various = len(torch.unique(lengths)) >= 3
    return padding if is_common and has_various and not stands_elsewhere else None


def _endings(targets: Tensor, padding: int) -> Tensor:
    """Mark the run of an id at the end of each row, bool (n, t)."""
    is_it = (targets == padding).int()
    return is_it.flip(1).cumprod(1).flip(1).bool()


def _is_ids(value: Tensor) -> bool:
    return value.dtype in (torch.int32, torch.int64) and value.dim() >= 1


def broken() -> Example:
    """A tokeniser with 40 ids for an embedding table of 32 rows."""

    class Sentences(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:  # noqa: ARG002
            return nn.Sequential(nn.Embedding(32, 8), nn.Flatten(), nn.Linear(80, 4))

        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            generator = torch.Generator().manual_seed(list(Split).index(split))
            ids = torch.randint(40, (64, 10), generator=generator)
            return TensorDataset(ids, torch.randint(4, (64,), generator=generator))

    return Example(task=Sentences())


CHECK = Check(
    name="tokens",
    reason="An id out of range crashes training on a GPU without a useful message; padding in the "
    "loss teaches a model to predict padding.",
    source="PyTorch documentation, Embedding and CrossEntropyLoss (ignore_index)",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("tokens_out_of_vocabulary",),
    run=tokens,
    broken=broken,
)
