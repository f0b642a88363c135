"""Small models of any task, all in one program on the same batches, by torch's vmap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from stepladder.config.choices import LrRule, Precision
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.data.reading.reader import Reader
from stepladder.optim.schedule import base_lr, lr_at
from stepladder.populations.genes import Values
from stepladder.populations.stack import MAX_RECIPES, Stack, mean_score, schedule_step, seed_of
from stepladder.populations.updates import SHARED, why_no_shared_update
from stepladder.records.population import Score
from stepladder.task.contract import Task

_ACCURACY: Final = "accuracy"
MAX_WEIGHTS = 2_000_000
"""Of a model; for larger ones, a step alone keeps a processor busy."""


class StackedMembers(Stack):
    """A population of small models.

    Args:
        models: of all members, with the same layers and without buffers.
        readers: of train, val and test; all members see the same batches.
        recipe_of: returns the recipe of a member from its genes.
        is_head: the models are heads of a larger one.
    """

    def __init__(
        self,
        recipe: Recipe,
        recipe_of: Callable[[Values], Recipe],
        *,
        task: Task,
        models: Sequence[nn.Module],
        train: Reader,
        val: Reader,
        test: Reader | None,
        device: torch.device,
        is_head: bool = False,
    ) -> None:
        self._recipe, self._task = recipe, task
        self._recipe_of = lru_cache(maxsize=MAX_RECIPES)(recipe_of)
        self._readers = (train, val, test)
        self._device = device
        self._model = models[0].to(device)
        named = [dict(model.named_parameters()) for model in models]
        self._fixed = {n: w.detach() for n, w in named[0].items() if not w.requires_grad}
        super().__init__(
            {
                name: torch.stack([own[name].detach().to(device) for own in named])
                for name, weight in named[0].items()
                if weight.requires_grad
            },
            recipe.optimizer,
            is_head=is_head,
        )

    def train(self, values: Sequence[Values], num_examples: int) -> None:
        """Train each model on the same examples, with its genes."""
        recipes = [self._recipe_of(one) for one in values]
        reader = self._readers[0]
        rates = self._column([base_lr(one.batch) for one in recipes])
        decays = [one.optimizer.weight_decay for one in recipes]
        decay = self._column(decays) if any(decays) else None
        limits = [one.optimizer.clip_norm for one in recipes]
        has_limit = any(limit is not None for limit in limits)
        inf = float("inf")
        clip = self._column([inf if one is None else one for one in limits]) if has_limit else None
        self._model.train()
        slopes = vmap(grad(self._loss), in_dims=(0, None, None), randomness="different")
        for batch in self._batches(num_examples):
            per_epoch, size = reader.steps_per_epoch, self._recipe.batch.global_batch_size
            factor = lr_at(
                schedule_step(self.position, batch=size, steps_per_epoch=per_epoch),
                base=1.0,
                schedule=self._recipe.schedule,
                steps_per_epoch=per_epoch,
            )
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed_of(self._recipe.seed, self.position.step))
                grads = slopes(self.weights, batch.inputs, batch.targets)
            with torch.no_grad():
                self.updates(self.weights, grads, lr=rates * factor, decay=decay, clip_norm=clip)
            self.position.take_steps(batch.ids.numel())
            if self.position.offset >= reader.num_examples:
                self.position.end_epoch()

    def scores(self) -> list[Score]:
        """Return the score of each model on the validation split."""
        return self._scores(self.weights, self._readers[1])

    def judge(self) -> tuple[Score, Score] | None:
        """Return the score of the kept model, and the mean of all finite ones, on test."""
        test = self._readers[2]
        if test is None:
            return None
        return self._scores(self.kept, test)[0], mean_score(self._scores(self.weights, test))

    def kept_weights(self) -> Mapping[str, Tensor]:
        """Return the weights of the kept model."""
        return {name: weight[0].clone() for name, weight in self.kept.items()}

    def why_it_fails(self) -> str | None:
        """Return why the task does not support many models at once; None if it does.

        Computes the gradients of one batch, and changes nothing.
        """
        reader = self._readers[0]
        batches = reader.epoch(0)
        try:
            batch = next(batches).to(self._device)
            slopes = vmap(grad(self._loss), in_dims=(0, None, None), randomness="different")
            with torch.random.fork_rng(devices=[]):
                slopes(self.weights, batch.inputs, batch.targets)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            first = next(iter(str(error).splitlines()), "")
            return f"the model or the loss of the Task fails under torch.vmap ({first})"
        finally:
            batches.close()
        return None

    def close(self) -> None:
        """Close the readers."""
        for reader in self._readers:
            if reader is not None:
                reader.close()

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=self._device, dtype=torch.float32)

    def _batches(self, num_examples: int) -> Iterator[Batch]:
        """Yield batches of the next examples, augmented."""
        reader, left = self._readers[0], num_examples
        while left > 0:
            at = self.position
            batches = reader.epoch(at.epoch, start=at.offset)
            try:
                for batch in batches:
                    part = batch.rows(slice(0, left)).to(self._device)
                    left -= part.ids.numel()
                    seed = self._recipe.seed
                    yield self._task.augment(part, seed=seed, epoch=at.epoch)
                    if left <= 0:
                        return
            finally:
                batches.close()

    def _loss(self, weights: Mapping[str, Tensor], inputs: Any, targets: Any) -> Tensor:
        batch = Batch(inputs, targets, torch.arange(len(inputs)))
        result = self._task.loss(self._bound(weights), batch)
        losses = result[0] if isinstance(result, tuple) else result
        return losses.float().mean()

    def _bound(self, weights: Mapping[str, Tensor]) -> Any:
        named = {**self._fixed, **weights}
        return lambda *inputs: functional_call(self._model, named, inputs)

    def _scores(self, weights: Mapping[str, Tensor], reader: Reader) -> list[Score]:
        """Return the scores of stacked models on a split."""
        num = len(next(iter(weights.values())))
        losses, hits, counts = (torch.zeros(num, dtype=torch.float64) for _ in range(3))
        num_examples, has_accuracy = 0, True
        self._model.eval()
        batches = reader.epoch(0)
        try:
            for batch in batches:
                there = batch.to(self._device)
                with torch.no_grad():
                    found = vmap(self._metrics, in_dims=(0, None, None))(
                        weights, there.inputs, there.targets
                    )
                losses += found["losses"].double().sum(1).cpu()
                num_examples += there.ids.numel()
                has_accuracy &= "hits" in found
                if has_accuracy:
                    hits += found["hits"].double().cpu()
                    counts += found["counts"].double().cpu()
        finally:
            batches.close()
        accuracies = (hits / counts).tolist() if has_accuracy else [None] * num
        return [
            Score(loss=loss / num_examples, accuracy=accuracy)
            for loss, accuracy in zip(losses.tolist(), accuracies, strict=True)
        ]

    def _metrics(
        self, weights: Mapping[str, Tensor], inputs: Any, targets: Any
    ) -> dict[str, Tensor]:
        """Return losses (examples,), and sum and count of the accuracy, if the Task has one."""
        batch = Batch(inputs, targets, torch.arange(len(inputs)))
        found = self._task.metrics(self._bound(weights), batch)
        own = {"losses": found.losses}
        if _ACCURACY in found.sums:
            own["hits"] = torch.as_tensor(found.sums[_ACCURACY])
            own["counts"] = torch.as_tensor(found.counts[_ACCURACY])
        return own


def why_not_stacked(recipe: Recipe, model: nn.Module, genes: Sequence[str]) -> str | None:
    """Return why copies of a model cannot be trained at once; None if they can."""
    other = next((gene for gene in genes if gene not in SHARED), None)
    num = sum(weight.numel() for weight in model.parameters())
    shared = why_no_shared_update(recipe.optimizer)
    reasons = {
        f"{other} cannot differ between models in one program": other is not None,
        shared or "": shared is not None,
        f"the model has {num:,} weights; above {MAX_WEIGHTS:,}, one at a time is as fast": (
            num > MAX_WEIGHTS
        ),
        "the model has buffers, such as the statistics of BatchNorm": any(
            True for _ in model.buffers()
        ),
        "models are trained in float32": recipe.device.precision is not Precision.FP32,
        "gradients are accumulated": recipe.batch.micro_batch_size is not None,
        "AdaScale compares the gradients of each member": (recipe.batch.lr_rule is LrRule.ADASCALE),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
