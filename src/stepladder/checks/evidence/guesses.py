"""Predictions of an untrained model, and whether its accuracy is due to chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from stepladder.checks.evidence.loss_calls import EachCall, LossCall, loss_calls
from stepladder.checks.job import CheckedJob
from stepladder.stats.estimates import binomial_sem
from stepladder.training.output.wording import percent

MAX_P = 1e-3  # of as many hits, if the classes of the head were permuted
_NUM_SEM = 2.0  # standard errors above the most frequent class
_NUM_BATCHES = 4
_NUM_DEALS = 2000
_MAX_CLASSES = 1000  # with more, hits are not tested
_PRODUCTS = frozenset(
    {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum"}
)


@dataclass
class Guesses:
    """Predictions of an untrained model for some examples.

    Attributes:
        losses: of each example.
        entropies: cross-entropy of each, from the scores alone.
        shares: summed predicted probabilities of each class.
        counts: of each class among the labels.
        hits: (predicted, label) of each example; empty with several labels per example.
    """

    losses: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    shares: Tensor = field(default_factory=lambda: torch.zeros(()))
    counts: Tensor = field(default_factory=lambda: torch.zeros(()))
    hits: list[Tensor] = field(default_factory=list)

    def add(self, call: LossCall, losses: Tensor) -> None:
        """Add a batch: its call of cross-entropy, and its losses."""
        assert call.targets is not None
        scores = call.scores.float().movedim(1, -1)  # (n, ..., c)
        labels = call.targets.long()
        logs = scores.log_softmax(-1) if call.name == "cross_entropy" else scores
        entropies = F.nll_loss(logs.flatten(0, -2), labels.flatten(), reduction="none")
        self.losses.append(losses.float())
        self.entropies.append(entropies.reshape(len(labels), -1).mean(1))
        num = scores.shape[-1]
        self.shares = self.shares + logs.exp().flatten(0, -2).double().sum(0).cpu()
        self.counts = self.counts + labels.flatten().bincount(minlength=num).double().cpu()
        if labels.dim() == 1:
            self.hits.append(torch.stack([scores.argmax(1), labels], 1).cpu())


def guess(job: CheckedJob) -> Guesses | None:
    """Pass some training batches through an untrained model.

    None if the loss is not one call of cross-entropy, or all batches have ignored labels.
    """
    model = job.model()
    guesses = Guesses()
    for batch in (job.augmented(batch) for batch in job.train_batches(_NUM_BATCHES)):
        with torch.no_grad(), loss_calls() as calls:
            losses = job.loss(model, batch)
        own = [call for call in calls if call.is_loss]
        if len(own) != 1 or own[0].targets is None:
            return None
        ignored = int(own[0].options.get("ignore_index", -100))
        if not bool((own[0].targets == ignored).any()):
            guesses.add(own[0], losses)
    return guesses if guesses.losses else None


# --- hits


@dataclass(frozen=True, kw_only=True)
class Hits:
    """How many examples are classified correctly, in words and for programs."""

    words: str = ""
    are_no_luck: bool = False
    numbers: dict[str, Any] = field(default_factory=dict)


def hits_of(guesses: Guesses) -> Hits:
    """Count hits, and compare them with those of the same predictions with permuted classes.

    Rows of an untrained head have one distribution, so every permutation of its classes is equally
    likely. With few classes any number of hits may be due to chance.
    """
    if not guesses.hits or len(guesses.counts) > _MAX_CLASSES:
        return Hits()
    pairs = torch.cat(guesses.hits).numpy()
    predicted, labels = pairs[:, 0], pairs[:, 1]
    num = len(labels)
    accuracy = float((predicted == labels).mean())
    majority = float(np.bincount(labels).max()) / num
    p = _luck(predicted, labels, num_classes=len(guesses.counts))
    is_more = accuracy > majority + _NUM_SEM * binomial_sem(majority, num)
    return Hits(
        words=f"; its accuracy is {percent(accuracy, 0)}, that of the most frequent class "
        f"{percent(majority, 0)}",
        are_no_luck=is_more and p < MAX_P,
        numbers={"accuracy": accuracy, "majority": majority, "luck_p": p},
    )


def _luck(predicted: NDArray[np.int64], labels: NDArray[np.int64], *, num_classes: int) -> float:
    """Estimate the fraction of permutations of the classes with at least as many hits."""
    random = np.random.default_rng(0)
    hits = int((predicted == labels).sum())
    as_many = sum(
        int((random.permutation(num_classes)[predicted] == labels).sum()) >= hits
        for _ in range(_NUM_DEALS)
    )
    return (1 + as_many) / (1 + _NUM_DEALS)


# --- scores from the weights of an embedding


@contextmanager
def noting_ties() -> Iterator[list[int]]:
    """Record in the block which products use the weights of an embedding."""
    ties: list[int] = []
    tables: set[int] = set()

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = getattr(func, "__name__", "")
        given = [*args, *kwargs.values()]
        if name in ("embedding", "embedding_bag"):
            tables.update(_storage(value) for value in _weights(given))
        elif name in _PRODUCTS:
            ties.extend(s for value in _weights(given) if (s := _storage(value)) in tables)

    with EachCall(note):
        yield ties


def _weights(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _weights(value)


def _storage(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()
