"""Use a larger batch, with a scaled learning rate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import LrRule
from stepladder.config.recipe import Recipe
from stepladder.optim.contract import BatchRule
from stepladder.optim.schedule import base_lr, round_lr
from stepladder.optim.table import spec_of
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import (
    MIN_STEPS_PER_EPOCH,
    batch_doublings,
    epochs_ratio,
    knee_batch,
    loader_floor_s,
    memory_batch,
    predict_time,
    within_schedule,
)


class LargerBatch(Rung):
    """Increase the batch size to the knee of the throughput, and scale the learning rate.

    The knee is the smallest doubling within 10 % of the largest end-to-end throughput, not the
    limit of memory. With early stopping, the gradient noise scale, a rough estimate, may favour a
    smaller batch: for SGD that one is used. Adam-like optimizers benefit from larger batches than
    it predicts, so that it only adds a variant for the probe. Batch size, learning rate, warm-up
    and everything that counts in steps change together, and are kept or dropped together.

    Trades: memory; epochs, if the batch size is near the noise scale; large batches may generalise
    worse, so held-out examples decide.
    Source: linear rule and warm-up: Goyal et al. 2017, arXiv:1706.02677; square root: Krizhevsky
    2014, arXiv:1404.5997; noise scale: McCandlish et al. 2018, arXiv:1812.06162; that it is larger
    for Adam-like optimizers: Zhang et al. 2019, arXiv:1907.04164; generalisation gap: Keskar et
    al. 2017, arXiv:1609.04836.
    """

    name: ClassVar[str] = "larger_batch"
    level: ClassVar[int] = 7
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if a larger batch does not increase throughput, or leaves too few steps."""
        if profile.step_fixed_s is None or profile.step_per_example_s is None:
            return "not measured: the time of a step at three batch sizes"
        batch = recipe.batch.global_batch_size
        if self._best_batch(profile, recipe) > batch:
            return None
        fixed_s, per_example_s = profile.step_fixed_s, profile.step_per_example_s
        knee = knee_batch(fixed_s, per_example_s, profile.loader_per_s)
        least = MIN_STEPS_PER_EPOCH
        few_steps = f"twice the batch size would leave fewer than {least} steps per epoch"
        reasons = {
            "the batch size is already at the knee of the throughput": batch >= knee,
            "twice the batch size does not fit into memory": 2 * batch > memory_batch(profile),
            few_steps: 2 * batch * MIN_STEPS_PER_EPOCH > profile.num_train,
            "every larger batch size would leave a last batch of a single example": (
                not batch_doublings(profile, recipe, limit=memory_batch(profile))
            ),
        }
        more_epochs = "the extra epochs of a larger batch would cost more time than it saves"
        return next((reason for reason, holds in reasons.items() if holds), more_epochs)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict the step by t(b) = a + c b, and the epochs by the noise scale."""
        return self._predict_size(profile, recipe, self._best_batch(profile, recipe))

    def predict_variant(self, profile: Profile, recipe: Recipe, variant: Recipe) -> Prediction:
        """Predict the batch size that a probe chose, by the same formulas."""
        return self._predict_size(profile, recipe, variant.batch.global_batch_size)

    def _predict_size(self, profile: Profile, recipe: Recipe, larger: int) -> Prediction:
        now, batch = profile.time, recipe.batch.global_batch_size
        growth = larger / batch
        step_s = now.step_s * self._step_s(profile, larger) / self._step_s(profile, batch)
        floor_s = min(loader_floor_s(profile, recipe), now.step_s) * growth
        more_epochs = self._more_epochs(profile, recipe, larger)
        epochs = within_schedule(now.epochs * more_epochs, now, recipe)
        after = replace(
            now,
            epochs=epochs,
            num_validations=now.num_validations * epochs / max(now.epochs, 1e-9),
            steps_per_epoch=now.steps_per_epoch / growth,
            step_s=max(step_s, floor_s),
        )
        inputs = {"batch": float(batch), "larger_batch": float(larger), "more_epochs": more_epochs}
        inputs |= {"step_fixed_s": profile.step_fixed_s or 0.0}
        inputs |= {"step_per_example_s": profile.step_per_example_s or 0.0}
        if profile.noise_scale is not None:
            inputs["noise_scale"] = profile.noise_scale
        note = f"batch size {batch} to {larger}; {self._about_epochs(profile, recipe)}"
        note += "; large batches may generalise worse, so held-out examples decide"
        return predict_time(self.name, profile, after, inputs=inputs, note=note)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Use the best doubling with the most promising rule for the learning rate."""
        return self.variants(profile, recipe)[0]

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
        """Return three learning rates for the best doubling, for a quarter of it, and an eighth.

        Also for the one that the noise scale favours, if it is another one.
        """
        larger = self._best_batch(profile, recipe)
        doublings = batch_doublings(profile, recipe, limit=memory_batch(profile))
        wanted = {larger, larger // 4, larger // 8}
        if self._stops_early(profile, recipe):
            wanted.add(self._soonest(profile, recipe))
        found = [
            self._moved(profile, recipe, size, lr_growth)
            for size in sorted(wanted & {larger, *doublings}, reverse=True)
            for lr_growth in self._lr_growths(profile, recipe, size)
        ]
        return tuple(dict.fromkeys(found))

    def _stops_early(self, profile: Profile, recipe: Recipe) -> bool:
        """Return True if epochs are not fixed by the schedule."""
        return recipe.stopping.early and profile.num_val > 0

    def _best_batch(self, profile: Profile, recipe: Recipe) -> int:
        """Return the doubling at the knee; for SGD with early stopping, the fastest to the loss."""
        if self._stops_early(profile, recipe) and _rule(recipe).follows_noise_scale:
            return self._soonest(profile, recipe)
        sizes = batch_doublings(profile, recipe, limit=memory_batch(profile))
        return sizes[-1] if sizes else recipe.batch.global_batch_size

    def _soonest(self, profile: Profile, recipe: Recipe) -> int:
        """Return the doubling that reaches the same loss fastest, by the noise scale.

        The current batch size if none is faster.
        """
        batch = recipe.batch.global_batch_size
        sizes = batch_doublings(profile, recipe, limit=memory_batch(profile))

        def to_target(size: int) -> float:
            epochs = epochs_ratio(batch, size, profile.noise_scale)
            return epochs * self._step_s(profile, size) / size

        return min((batch, *sizes), key=to_target)

    def _more_epochs(self, profile: Profile, recipe: Recipe, larger: int) -> float:
        """Return the ratio of epochs with a larger batch and with this one; 1 if they are fixed.

        For Adam-like optimizers, the noise scale is not valid beyond the batch that it favours.
        """
        if not self._stops_early(profile, recipe):
            return 1.0
        if not _rule(recipe).follows_noise_scale:
            larger = min(larger, self._soonest(profile, recipe))
        return epochs_ratio(recipe.batch.global_batch_size, larger, profile.noise_scale)

    def _step_s(self, profile: Profile, batch: int) -> float:
        """Return t(b) = a + c b, or a tiny positive time if both are 0."""
        fixed_s, per_example_s = profile.step_fixed_s or 0.0, profile.step_per_example_s or 0.0
        return max(fixed_s + per_example_s * batch, 1e-12)

    def _lr_growths(self, profile: Profile, recipe: Recipe, larger: int) -> list[float]:
        """Return the factors for the learning rate, the most promising first."""
        batch = recipe.batch.global_batch_size
        more_epochs = epochs_ratio(batch, larger, profile.noise_scale)
        return _rule(recipe).lr_growths(larger / batch, more_epochs=more_epochs)

    def _moved(self, profile: Profile, recipe: Recipe, larger: int, lr_growth: float) -> Recipe:
        """Change batch size, learning rate, warm-up and schedule together.

        The micro batch size of the recipe stays, as it may be there to limit memory. AdaScale sets
        the rate itself, and counts the schedule in steps of its base batch size.
        """
        if recipe.batch.lr_rule is LrRule.ADASCALE:
            return replace(recipe, batch=replace(recipe.batch, global_batch_size=larger))
        shrink = recipe.batch.global_batch_size / larger  # of whatever counts in steps
        batch = replace(
            recipe.batch,
            global_batch_size=larger,
            base_batch_size=larger,
            lr=round_lr(base_lr(recipe.batch) * lr_growth),
            lr_all=round_lr(base_lr(recipe.batch, is_second_stage=True) * lr_growth),
        )
        warmup = math.ceil(recipe.schedule.warmup_steps * shrink)
        if warmup == 0 and _rule(recipe).needs_warmup(lr_growth):
            warmup = math.ceil(profile.num_train / larger)
        schedule = replace(
            recipe.schedule,
            warmup_steps=warmup,
            max_steps=_fewer(recipe.schedule.max_steps, shrink),
        )
        every_steps = _fewer(recipe.stopping.validate_every_steps, shrink)
        stopping = replace(recipe.stopping, validate_every_steps=every_steps)
        return replace(recipe, batch=batch, schedule=schedule, stopping=stopping)

    def _about_epochs(self, profile: Profile, recipe: Recipe) -> str:
        if not self._stops_early(profile, recipe):
            return "epochs are fixed by the schedule"
        if profile.noise_scale is None:
            return "assumes the same number of epochs, as the noise scale is unknown"
        if self._soonest(profile, recipe) == recipe.batch.global_batch_size:
            why = "as the noise scale is that of SGD; a probe decides"
            return f"assumes the same number of epochs, {why}"
        return f"epochs from a noise scale of about {profile.noise_scale:.0f} examples"


def _rule(recipe: Recipe) -> BatchRule:
    return spec_of(recipe.optimizer.name).batch_rule


def _fewer(steps: int | None, shrink: float) -> int | None:
    return None if steps is None else max(1, math.ceil(steps * shrink))
