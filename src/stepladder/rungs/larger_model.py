"""A larger trunk, where capacity lies idle."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time, scale_model

_BUSY_MFU = 0.5
"""Model FLOPs utilisation from which on the device has little left to give."""
_LITE = ((0.407, 224), (0.631, 240), (0.899, 260), (1.644, 280), (2.640, 300))
"""Billions of multiply-adds, and at what sides. Google 2020, README of EfficientNet-Lite."""
_B = (
    (0.39, 224),
    (0.70, 240),
    (1.0, 260),
    (1.8, 300),
    (4.2, 380),
    (9.9, 456),
    (19, 528),
    (37, 600),
)
"""The same of B0 to B7. Tan and Le 2019, "EfficientNet", table 2, arXiv:1905.11946."""
_RESNET = {"18": 1.8, "34": 3.6, "50": 3.8, "101": 7.6, "152": 11.3}
"""At 224. He et al. 2016, "Deep Residual Learning", table 1, arXiv:1512.03385."""
_GMACS_AT_224 = {
    **{f"tf_efficientnet_lite{i}": g * (224 / side) ** 2 for i, (g, side) in enumerate(_LITE)},
    **{f"tf_efficientnet_b{i}": g * (224 / side) ** 2 for i, (g, side) in enumerate(_B)},
    **{f"resnet{layers}": g for layers, g in _RESNET.items()},
}
"""One forward pass at 224 pixels; work goes with the area."""


class LargerModel(Rung):
    """Spend idle capacity on the next larger trunk whose weights are at hand.

    Trades: time, and memory at prediction, for accuracy.
    Source: Tan and Le 2019, "EfficientNet", arXiv:1905.11946; Databricks 2019, "How (Not) To
    Scale Deep Learning in 6 Easy Steps", step 3 (a larger network as the other use of spare
    capacity).
    """

    name: ClassVar[str] = "larger_model"
    level: ClassVar[int] = 7
    aim: ClassVar[Aim] = Aim.ACCURACY
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where no weights are at hand, or the device is busy."""
        if not profile.is_built_in:
            return "the task builds its own model"
        if self._next(profile, recipe) is None:
            return "no weights of a larger trunk are at hand"
        if profile.mfu is not None and profile.mfu >= _BUSY_MFU:
            what = "the trunk's pass" if recipe.features.cached else "the step"
            return f"no idle capacity: {what} reaches {100 * profile.mfu:.0f} % of the peak"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale the model's share of the time by the published multiply-adds of the trunks."""
        larger = self._next(profile, recipe) or ""
        now_gmacs, then_gmacs = (_gmacs(name) for name in (recipe.model.name, larger))
        if now_gmacs is None or then_gmacs is None:
            note = f"{larger}: its time is unknown, as its FLOPs are not in the table"
            return predict_time(self.name, profile, profile.time, note=note)
        ratio = then_gmacs / now_gmacs
        return predict_time(
            self.name,
            profile,
            scale_model(profile, recipe, ratio),
            inputs={"flops_ratio": ratio},
            note=f"{larger}: {ratio:.1f} times the FLOPs, taken as that much more time",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Name the larger trunk, with the weights of the hub."""
        name = self._next(profile, recipe) or recipe.model.name
        model = replace(recipe.model, name=name, weights=WeightsSource.HUB)
        return replace(recipe, model=model)

    def _next(self, profile: Profile, recipe: Recipe) -> str | None:
        """Give the trunk after this one; the profile lists them from small to large."""
        names, name = profile.larger_trunks, recipe.model.name
        rest = names[names.index(name) + 1 :] if name in names else names
        return rest[0] if rest else None


def _gmacs(name: str) -> float | None:
    plain = name.partition(".")[0]
    return _GMACS_AT_224.get(plain) or _GMACS_AT_224.get(f"tf_{plain}")
