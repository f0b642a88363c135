"""Use an optimizer that needs fewer steps, if they do not cost more than they save."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from stepladder.config.choices import Precision, TrainMode
from stepladder.config.recipe import Recipe
from stepladder.optim.contract import OptimizerSpec
from stepladder.optim.schedule import round_lr
from stepladder.optim.table import OPTIMIZERS, spec_of
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time

_EPOCHS: Final = 0.7
"""Assumed epochs to the same loss, over those of a first-order rule."""
_COST: Final = 3.0
"""Assumed time of the optimizer's step, over that of a first-order rule."""
_RATES: Final = (1.0, 0.3)  # of the usual one


class StrongerOptimizer(Rung):
    """Use the curvature of whole layers: Muon, SOAP or K-FAC, by what a probe finds best.

    A step costs more, and fewer are needed. The time to the end is that of paired trainings which
    stop early, not of a fixed number of epochs. At the usual learning rate of each, and at a third.

    Trades: time and memory of each step; another optimizer generalises differently, so held-out
    examples decide.
    Source: Martens and Grosse 2015, arXiv:1503.05671 (K-FAC); Vyas et al. 2024, arXiv:2409.11321
    (SOAP); Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    """

    name: ClassVar[str] = "stronger_optimizer"
    level: ClassVar[int] = 12
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if fewer steps would save nothing, or no such optimizer fits the recipe."""
        reasons = {
            "already on": spec_of(recipe.optimizer.name).uses_curvature,
            "the schedule fixes the epochs, so fewer steps would save nothing": (
                not recipe.stopping.early or profile.num_val == 0
            ),
            "each of two training stages would need a rate of its own": (
                recipe.train is TrainMode.HEAD_THEN_ALL
            ),
            "workers send gradients to the optimizer of another process": recipe.asynchronous.is_on,
            "no optimizer of this kind supports what the recipe has": not self._fitting(recipe),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Assume fewer epochs and a longer step of the optimizer.

            epochs' = 0.7 epochs,  step' = step + (3 - 1) x optimizer's share of it

        Both numbers are typical ones: how many epochs it takes on this job, only a training shows.
        """
        now = profile.time
        optimizer_s = min(profile.phases_s.get("optimizer", 0.0), now.step_s)
        after = replace(
            now,
            epochs=_EPOCHS * now.epochs,
            num_validations=_EPOCHS * now.num_validations,
            step_s=now.step_s + (_COST - 1) * optimizer_s,
        )
        titles = ", ".join(spec.title for spec in self._fitting(recipe))
        return predict_time(
            self.name,
            profile,
            after,
            inputs={
                "epochs_ratio": _EPOCHS,
                "optimizer_s": optimizer_s,
                "optimizer_times": _COST,
            },
            note=f"{titles}: {_EPOCHS:g} times the epochs and {_COST:g} times the optimizer's step "
            "are typical; a probe chooses, and held-out examples decide",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Use the first of the optimizers at its usual rate."""
        return self.variants(profile, recipe)[0]

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:  # noqa: ARG002
        """Return each optimizer at its usual rate, and at a third of it."""
        return tuple(
            with_optimizer(recipe, spec, rate) for rate in _RATES for spec in self._fitting(recipe)
        )

    def _fitting(self, recipe: Recipe) -> tuple[OptimizerSpec, ...]:
        """Return the optimizers that a recipe can use."""
        device = recipe.device
        is_half = device.precision in (Precision.FP16, Precision.FP16_MASTER)
        hides_layers = device.compile or is_half or device.divides_model or device.replicas > 1
        return tuple(
            spec
            for spec in OPTIMIZERS
            if spec.uses_curvature
            and not (spec.sees_layers and hides_layers)
            and not (device.divides_model and not spec.is_elementwise)
        )


def with_optimizer(recipe: Recipe, spec: OptimizerSpec, rate: float) -> Recipe:
    """Return a recipe with another optimizer, at a multiple of its usual learning rate.

    The rate is that of the current batch; options of both optimizers keep their values.
    """
    lr = round_lr(rate * spec.usual_lr)
    batch = replace(recipe.batch, lr=lr, base_batch_size=recipe.batch.global_batch_size)
    optimizer = replace(recipe.optimizer, name=spec.name, fused=False)
    return replace(recipe, batch=batch, optimizer=optimizer)
