"""Use a learning rate for each layer, where the batch is very large."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from stepladder.config.choices import TrainMode
from stepladder.config.recipe import Recipe
from stepladder.optim.contract import OptimizerSpec
from stepladder.optim.table import OPTIMIZERS, spec_of
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.stronger_optimizer import with_optimizer
from stepladder.rungs.formulas import predict_time

_LARGE: Final = 1024
"""Examples of a batch up to which the plain rules hold, where the noise scale is not known."""
_EPOCHS: Final = 0.9
"""Assumed epochs to the same loss, over those with one rate for all layers."""
_RATES: Final = (1.0, 0.3, 3.0)


class LayerwiseRates(Rung):
    """Scale the step of each layer to the norm of its weights: LARS for SGD, LAMB for Adam's kin.

    With a very large batch, one rate that suits all layers is too small for most of them. Offered
    where the batch is larger than the gradient noise scale, or than 1,024 examples if that is not
    known: below, the linear and the square root rule hold. At three rates.

    Trades: a pass over all weights in each step; held-out examples decide.
    Source: You et al. 2017, arXiv:1708.03888 (LARS); You et al. 2020, arXiv:1904.00962 (LAMB).
    """

    name: ClassVar[str] = "layerwise_rates"
    level: ClassVar[int] = 12
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if the plain rule for the learning rate still holds, or there are no layers."""
        batch, limit = recipe.batch.global_batch_size, self._limit(profile)
        known = "" if profile.noise_scale is None else ", the gradient noise scale"
        reasons = {
            "already on": spec_of(recipe.optimizer.name).has_layer_rates,
            f"up to a batch of {limit:,.0f}{known}, one rate suits all layers": batch <= limit,
            "only the head is trained: there are no layers whose rates could differ": (
                profile.is_trunk_frozen
            ),
            "the schedule fixes the epochs, so fewer steps would save nothing": (
                not recipe.stopping.early or profile.num_val == 0
            ),
            "each of two training stages would need a rate of its own": (
                recipe.train is TrainMode.HEAD_THEN_ALL
            ),
            "workers send gradients to the optimizer of another process": recipe.asynchronous.is_on,
            "each device has a part of a layer only": recipe.device.divides_model,
            "no optimizer of this kind goes with the current one": not self._fitting(recipe),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Assume fewer epochs: epochs' = 0.9 epochs; how many, only a training shows."""
        now = profile.time
        after = replace(
            now, epochs=_EPOCHS * now.epochs, num_validations=_EPOCHS * now.num_validations
        )
        titles = ", ".join(spec.title for spec in self._fitting(recipe))
        return predict_time(
            self.name,
            profile,
            after,
            inputs={"epochs_ratio": _EPOCHS, "limit": self._limit(profile)},
            note=f"{titles}: {_EPOCHS:g} times the epochs are typical; held-out examples decide",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Use its usual rate."""
        return self.variants(profile, recipe)[0]

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:  # noqa: ARG002
        """Return the usual rate, a third of it and three times it."""
        return tuple(
            with_optimizer(recipe, spec, rate) for rate in _RATES for spec in self._fitting(recipe)
        )

    def _limit(self, profile: Profile) -> float:
        """Return the largest batch for which the plain rules hold."""
        return _LARGE if profile.noise_scale is None else max(profile.noise_scale, 32.0)

    def _fitting(self, recipe: Recipe) -> tuple[OptimizerSpec, ...]:
        """Return the optimizer whose direction within a layer is of the same kind."""
        own = spec_of(recipe.optimizer.name)
        return tuple(
            spec
            for spec in OPTIMIZERS
            if spec.has_layer_rates and ("beta1" in spec.options) is ("beta1" in own.options)
        )
