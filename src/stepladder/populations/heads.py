"""Linear heads on features, all in one program: batched matrix products, gradients in closed form.

A step of a single head is mostly the overhead of calling torch, so that many heads at once take
little longer than one. Each has its own learning rate, decay, dropout, label smoothing, class
weights, order of examples and strength of augmentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

from stepladder.config.choices import ClassWeights, LrRule, Precision
from stepladder.config.recipe import Recipe
from stepladder.data.order.order import Order, samples_of
from stepladder.models.classifier import build_head
from stepladder.optim.schedule import base_lr, lr_at
from stepladder.populations.genes import Values
from stepladder.populations.stack import MAX_RECIPES, Stack, mean_score, schedule_step, seed_of
from stepladder.populations.updates import why_no_shared_update
from stepladder.records.population import Score

GENES: Final = (
    "batch.lr",
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "head.dropout",
    "loss.label_smoothing",
    "loss.class_weights",
    "augment.randaugment_magnitude",
)
"""Options that can differ between heads that are trained at once."""
_CHUNK_NUMBERS: Final = 16_000_000  # of scores computed at once in an evaluation: 64 MB
_LOSS_ROWS: Final = 4096
_PART_BYTES: Final = 8_000_000
"""Of inputs that are computed with at once, so that memory does not grow with the population."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """Features of the training examples, augmented by some strength.

    Attributes:
        strength: magnitude of RandAugment; 0 without augmentation.
        features: (rows, views, d).
    """

    strength: float
    features: Tensor


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Examples that members are judged on: features (n, d) and classes int64 (n,)."""

    features: Tensor
    targets: Tensor


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """The genes of all members as tensors, (members,); None where all have 0."""

    lr: Tensor
    decay: Tensor | None
    clip_norm: Tensor | None
    dropout: Tensor | None
    smoothing: Tensor
    class_weights: Tensor | None  # (members, classes)
    strength: Tensor | None


class HeadMembers(Stack):
    """A population of linear heads.

    Args:
        recipe_of: returns the recipe of a member from its genes.
        seeds: of the initial weights and the order of each member.
        levels: features of train, by rising strength of augmentation; one without augmentation.
        targets: classes of train, int64 (rows,).
        order: of the training examples, with any seed.
        val: examples that choose members; test: that judge the winner, or None.
        class_weights: balanced weights, (classes,).
    """

    def __init__(
        self,
        recipe: Recipe,
        recipe_of: Callable[[Values], Recipe],
        *,
        seeds: Sequence[int],
        levels: Sequence[Level],
        targets: Tensor,
        order: Order,
        val: HeldOut,
        test: HeldOut | None,
        class_weights: Tensor,
    ) -> None:
        self._recipe = recipe
        self._recipe_of = lru_cache(maxsize=MAX_RECIPES)(recipe_of)  # 1 ms each
        self._seeds = tuple(seeds)
        self._strengths = torch.tensor([level.strength for level in levels])
        features = torch.stack([level.features for level in levels])  # (levels, rows, views, d)
        self._num_rows, self._num_views = features.shape[1:3]
        self._features = features.flatten(0, 2).float()
        self._targets = targets
        self._orders = [replace(order, seed=seed) for seed in seeds]
        self._num_train = order.num_samples
        self._val, self._test = val, test
        self._balanced = class_weights
        self._num_classes = len(class_weights)
        super().__init__(
            {name: part.to(features.device) for name, part in self._initial().items()},
            recipe.optimizer,
            is_head=True,
        )
        self._rows: tuple[int, Tensor] | None = None  # of an epoch

    def train(self, values: Sequence[Values], num_examples: int) -> None:
        """Train each head on some examples, with its genes."""
        settings = self._settings([self._recipe_of(one) for one in values])
        size = self._recipe.batch.global_batch_size
        left = num_examples
        while left > 0:
            at = self.position
            num = min(size, left, self._num_train - at.offset)
            self._take_step(self._epoch_rows()[:, at.offset : at.offset + num], settings)
            left -= num
            at.take_steps(num)
            if at.offset >= self._num_train:
                at.end_epoch()

    def scores(self) -> list[Score]:
        """Return the loss and the accuracy of each head on the validation split."""
        return self._scores(self.weights, self._val)

    def judge(self) -> tuple[Score, Score] | None:
        """Return the score of the kept head, and the mean of all finite ones, on test."""
        if self._test is None:
            return None
        mean = mean_score(self._scores(self.weights, self._test))
        return self._scores(self.kept, self._test)[0], mean

    def kept_weights(self) -> Mapping[str, Tensor]:
        """Return the weight (classes, d) and the bias (classes,) of the kept head, by its names."""
        return {
            "1.weight": self.kept["weight"][0].clone(),
            "1.bias": self.kept["bias"][0].clone(),
        }

    # -- inside --------------------------------------------------------------------------------

    def _initial(self) -> dict[str, Tensor]:
        """Return the weights that a run with each seed begins with."""
        weights, biases = [], []
        with torch.random.fork_rng(devices=[]):
            for seed in self._seeds:
                torch.manual_seed(seed)
                head = build_head(
                    replace(self._recipe.head, dropout=0.0, hidden=0),
                    num_features=self._features.shape[1],
                    num_classes=self._num_classes,
                )
                own = dict(head.named_parameters())
                weights.append(own["1.weight"].detach())
                biases.append(own["1.bias"].detach())
        return {"weight": torch.stack(weights), "bias": torch.stack(biases)}

    def _settings(self, recipes: Sequence[Recipe]) -> _Settings:
        device = self._features.device

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, device=device, dtype=torch.float32)

        def some(values: Sequence[float]) -> Tensor | None:
            return column(values) if any(values) else None

        limits = [one.optimizer.clip_norm for one in recipes]
        is_balanced = [one.loss.class_weights is ClassWeights.BALANCED for one in recipes]
        ones = torch.ones_like(self._balanced)
        weights = torch.stack([self._balanced if one else ones for one in is_balanced])
        return _Settings(
            lr=column([base_lr(one.batch) for one in recipes]),
            decay=some([one.optimizer.weight_decay for one in recipes]),
            clip_norm=column([np.inf if limit is None else limit for limit in limits])
            if any(limit is not None for limit in limits)
            else None,
            dropout=some([one.head.dropout for one in recipes]),
            smoothing=column([one.loss.label_smoothing for one in recipes]),
            class_weights=weights.to(device) if any(is_balanced) else None,
            strength=column([one.augment.randaugment_magnitude for one in recipes])
            if len(self._strengths) > 1
            else None,
        )

    def _epoch_rows(self) -> Tensor:
        """Return the rows of the current epoch in the order of each member, (members, rows)."""
        epoch = self.position.epoch
        if self._rows is None or self._rows[0] != epoch:
            rows = samples_of(self._orders, epoch)
            self._rows = epoch, torch.from_numpy(rows).to(self._features.device)
        return self._rows[1]

    def _take_step(self, rows: Tensor, settings: _Settings) -> None:
        """Take one step of all heads; rows is int64 (members, n)."""
        rng = torch.Generator().manual_seed(seed_of(self._seeds[0], self.position.step))
        places, targets = self._places(rows, settings, rng), self._targets[rows]
        grads = {name: torch.empty_like(weight) for name, weight in self.weights.items()}
        num = max(1, _PART_BYTES // (4 * rows.shape[1] * self._features.shape[1]))
        for part in (slice(start, start + num) for start in range(0, len(rows), num)):
            inputs = self._features.index_select(0, places[part].flatten())
            inputs = inputs.reshape(*places[part].shape, -1)  # (members, n, d)
            scale = None
            if settings.dropout is not None:
                scale = drop_(inputs, settings.dropout[part], rng)
            balance = settings.class_weights
            found = gradients(
                inputs,
                targets[part],
                self.weights["weight"][part],
                self.weights["bias"][part],
                smoothing=settings.smoothing[part],
                class_weights=None if balance is None else balance[part],
                scale=scale,
            )
            for name, grad in found.items():
                grads[name][part] = grad
        batch = self._recipe.batch.global_batch_size
        per_epoch = -(-self._num_train // batch)
        factor = lr_at(
            schedule_step(self.position, batch=batch, steps_per_epoch=per_epoch),
            base=1.0,
            schedule=self._recipe.schedule,
            steps_per_epoch=per_epoch,
        )
        self.updates(
            self.weights,
            grads,
            lr=settings.lr * factor,
            decay=settings.decay,
            clip_norm=settings.clip_norm,
        )

    def _places(self, rows: Tensor, settings: _Settings, rng: torch.Generator) -> Tensor:
        """Return where the features of rows are: in a random view, by each member's strength.

        A strength between two levels takes each example from one of the two, so that the mean is
        the strength.
        """
        places = rows * self._num_views
        if self._num_views > 1:
            places = places + torch.randint(self._num_views, rows.shape, generator=rng).to(rows)
        if settings.strength is None:
            return places
        levels = self._strengths.to(settings.strength)
        last = len(levels) - 1
        upper = torch.searchsorted(levels, settings.strength).clamp(1, last)
        low, high = levels[upper - 1], levels[upper]
        share = ((settings.strength - low) / (high - low)).clamp(0, 1).unsqueeze(1)
        is_upper = torch.rand(rows.shape, generator=rng).to(share) < share
        level = upper.unsqueeze(1) - 1 + is_upper.long()
        return places + level * self._num_rows * self._num_views

    def _scores(self, weights: Mapping[str, Tensor], split: HeldOut) -> list[Score]:
        """Return the scores of stacked heads."""
        num_heads = len(weights["weight"])
        losses = torch.zeros(num_heads, dtype=torch.float64)
        hits = torch.zeros(num_heads, dtype=torch.float64)
        size = max(1, min(_LOSS_ROWS, _CHUNK_NUMBERS // (num_heads * self._num_classes)))
        for start in range(0, len(split.targets), size):
            inputs, targets = split.features[start : start + size], split.targets[start:][:size]
            scores = weights["weight"] @ inputs.mT + weights["bias"].unsqueeze(2)  # (heads, C, n)
            own = scores.gather(1, targets.expand(num_heads, 1, -1)).squeeze(1)
            losses += (scores.logsumexp(1) - own).double().sum(1).cpu()
            hits += (scores.argmax(1) == targets).double().sum(1).cpu()
        num = len(split.targets)
        return [
            Score(loss=float(loss) / num, accuracy=float(hit) / num)
            for loss, hit in zip(losses, hits, strict=True)
        ]


def gradients(
    inputs: Tensor,
    targets: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    smoothing: Tensor,
    class_weights: Tensor | None = None,
    scale: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the gradients of the mean cross-entropy of many linear heads, in closed form.

    With targets t, which are (1 - s) w_y for the class y plus s / C w_c for each class c, the
    gradient of -sum t log softmax(z) is softmax(z) sum t - t.

    Args:
        smoothing: s of each head.
        class_weights: w of each head; None: 1.
        scale: of the inputs of each head; None: 1.

    Shapes: inputs (heads, n, d), targets int64 (heads, n), weight (heads, C, d), bias (heads, C),
        smoothing and scale (heads,), class_weights (heads, C).
    """
    num_classes = weight.shape[1]
    # with classes before examples, both products take two thirds of the time
    scores = torch.bmm(weight, inputs.mT)  # (heads, C, n)
    if scale is not None:
        scores *= scale.reshape(-1, 1, 1)
    slopes = (scores + bias.unsqueeze(2)).softmax(1)
    smoothed = (smoothing / num_classes).reshape(-1, 1, 1)
    peak = (1 - smoothing).unsqueeze(1).expand(targets.shape)
    if class_weights is None:
        slopes = slopes - smoothed
    else:
        peak = peak * class_weights.gather(1, targets)
        spread = smoothed * class_weights.unsqueeze(2)
        slopes = slopes * (peak.unsqueeze(1) + spread.sum(1, keepdim=True)) - spread
    slopes.scatter_add_(1, targets.unsqueeze(1), -peak.unsqueeze(1))
    slopes /= targets.shape[1]
    scaled = slopes if scale is None else slopes * scale.reshape(-1, 1, 1)
    return {"weight": torch.bmm(scaled, inputs), "bias": slopes.sum(2)}


def drop_(inputs: Tensor, dropout: Tensor, rng: torch.Generator) -> Tensor:
    """Set numbers to 0 with the probability of each head, rounded to 1/256.

    A random byte decides about each number: drawing them takes a sixth of the time of floats.

    Returns:
        The factor by which the others are to be scaled, so that their mean is unchanged.

    Shapes: inputs (heads, n, d), dropout and the factor (heads,).
    """
    num = inputs.numel()
    words = torch.empty(-(-num // 8), dtype=torch.int64)
    words.random_(-(2**63), None, generator=rng)  # all 64 bits; by default, the sign is never set
    drawn = words.view(torch.uint8)[:num].reshape(inputs.shape).to(inputs.device)
    limit = (dropout * 256).round().clamp(0, 255)
    inputs.masked_fill_(drawn < limit.to(torch.uint8).reshape(-1, 1, 1), 0.0)
    return 256 / (256 - limit)


def why_no_heads(recipe: Recipe, genes: Sequence[str]) -> str | None:
    """Return why the heads of a recipe cannot be trained at once; None if they can.

    Whether the features can be cached, and the loss is the cross-entropy, is checked elsewhere.
    """
    other = next((gene for gene in genes if gene not in GENES), None)
    has_views = recipe.features.cached_views > 0
    shared = why_no_shared_update(recipe.optimizer)
    reasons = {
        f"{other} cannot differ between heads in one program": other is not None,
        shared or "": shared is not None,
        "the head has a hidden layer": recipe.head.hidden > 0,
        "heads are trained in float32": recipe.device.precision is not Precision.FP32,
        "gradients are accumulated": recipe.batch.micro_batch_size is not None,
        "AdaScale compares the gradients of each member": (recipe.batch.lr_rule is LrRule.ADASCALE),
        "augmented pictures need cached views (--features.cached-views 4)": (
            "augment.randaugment_magnitude" in genes and not has_views
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
