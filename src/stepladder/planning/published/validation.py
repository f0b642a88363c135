"""Hold the planner against published measurements: fit at most one number, predict the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from stepladder.planning.costs.all_reduce import Group, all_reduce_s, slowed
from stepladder.planning.costs.divided import fsdp_s
from stepladder.planning.hardware.connections import CONNECTIONS
from stepladder.planning.hardware.ranges import Case as End
from stepladder.planning.published.cases import (
    CASES,
    Case,
    Fitted,
    gradients_of,
    inferred_cases,
)
from stepladder.planning.published.points import RATES, Point, published
from stepladder.planning.step.step import Driver, StepInputs, step_time
from stepladder.records.collectives import Link

_BY_NAME: Final = {one.name: one for one in CONNECTIONS}
_SPREADS: Final = {End.BEST: 0.0, End.LIKELY: 0.02, End.WORST: 0.12}
"""Spread of a step over devices where nothing is fitted: of quiet, usual and busy machines."""
_HIDES: Final = {End.BEST: 1.0, End.LIKELY: 1.0, End.WORST: 0.5}
_DRIVERS_S: Final = {End.BEST: 0.0, End.LIKELY: 3e-4, End.WORST: 1e-3}
"""Seconds of a driver for an example, where nothing is fitted."""
_STEPS: Final = 60


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A published point beside its prediction; values in the published unit.

    Attributes:
        case, point: what was published.
        role: base, fitted, predicted or shown (from memory, not counted).
        predicted: with the fitted number; band: with data sheets only, from worst to best.
        likely: with data sheets only.
        error_frac: of the predicted value, over the published one.
        parts: share of a step by part.
        reason: why it is further away than 20 %; empty.
    """

    case: Case
    point: Point
    role: str
    predicted: float
    likely: float
    band: tuple[float, float]
    error_frac: float
    parts: dict[str, float]
    reason: str = ""

    @property
    def is_in_band(self) -> bool:
        """True if the published value lies in the band of the data sheets."""
        low, high = sorted(self.band)
        half = self.point.resolution / 2
        return low <= self.point.value + half and self.point.value - half <= high

    @property
    def band_frac(self) -> float:
        """Half of the width of the band, over its likely value."""
        low, high = sorted(self.band)
        return (high - low) / 2 / self.likely


@dataclass(frozen=True, kw_only=True)
class FitLog:
    """A fit: which number, its value, and the rows that it is fitted to."""

    case: str
    number: str
    value: float
    ids: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Validation:
    """All published points, and the fits in their order."""

    points: tuple[Checked, ...]
    fits: tuple[FitLog, ...]

    def of(self, role: str) -> list[Checked]:
        """Return the points of a role."""
        return [point for point in self.points if point.role == role]

    def summary(self) -> dict[str, object]:
        """Return the numbers for scripts."""
        return {
            "points": [
                {
                    "id": point.point.id,
                    "case": point.case.name,
                    "role": point.role,
                    "published": point.point.value,
                    "unit": point.point.unit,
                    "predicted": point.predicted,
                    "error_frac": point.error_frac,
                    "band": sorted(point.band),
                    "is_in_band": point.is_in_band,
                }
                for point in self.points
            ],
            "fits": [
                {"case": one.case, "number": one.number, "value": one.value, "ids": one.ids}
                for one in self.fits
            ],
        }


def validate(rows: Mapping[str, Point] | None = None) -> Validation:
    """Return every published point beside its prediction.

    Args:
        rows: other points, by id, whose cases are described by their columns; None: the table
            of this package.
    """
    default, found, fits = _SPREADS[End.LIKELY], [], []
    points = published() if rows is None else rows
    cases = CASES if rows is None else inferred_cases(rows.values())
    for number, case in enumerate(cases):
        own = [points[row] for row in case.ids]
        model = _Model(case=case, base=own[0], spread=default)
        model, log = fitted(model, own)
        if log is not None:
            fits.append(log)
            if number == 0 and cases is CASES:
                default = log.value
        found += [_checked(model, row, place) for place, row in enumerate(own)]
    return Validation(points=tuple(found), fits=tuple(fits))


@dataclass(frozen=True, kw_only=True)
class _Model:
    """A case with the numbers that its points are predicted with."""

    case: Case
    base: Point
    spread: float
    driver_example_s: float = _DRIVERS_S[End.LIKELY]
    end: End = End.LIKELY

    def step_s(self, point: Point) -> dict[str, float]:
        """Return the seconds of a step by part."""
        computed_s = self.compute_s
        per_example_s = (computed_s - self.case.fixed_s) / self.reference_batch
        return self._time(point, per_example_s)

    @property
    def reference_batch(self) -> float:
        """Examples of a device whose step is known."""
        return self.base.batch if self.case.base_s is None else _base_batch(self.base)

    @property
    def compute_s(self) -> float:
        """Seconds of a step's computation on a device, as the base implies."""
        if self.case.base_s is not None:
            return self.case.base_s
        wanted = seconds_of(self.base, self.case)
        if self.base.gpus == 1:
            return wanted
        low, high = 0.0, wanted
        for _ in range(_STEPS):  # the base may be several devices, with messages of their own
            middle = (low + high) / 2
            per_example_s = (middle - self.case.fixed_s) / self.base.batch
            if sum(self._time(self.base, per_example_s).values()) < wanted:
                low = middle
            else:
                high = middle
        return high

    def _time(self, point: Point, per_example_s: float) -> dict[str, float]:
        case = self.case
        driver = Driver(example_s=self.driver_example_s) if point.id in case.has_driver else None
        batch = point.batch
        inputs = StepInputs(
            fixed_s=case.fixed_s,
            per_example_s=per_example_s,
            backward_frac=case.backward_frac * _HIDES[self.end],
            gradients=gradients_of(case, point.num_bytes),
            all_reduce=self._all_reduce(point),
            num_devices=point.gpus,
            local_devices=min(point.gpus, point.gpus_per_host),
            micro_batch=batch,
            spread_frac=self.spread,
            hides=case.hides,
            driver=driver,
        )
        return step_time(inputs).parts

    def _all_reduce(self, point: Point) -> Callable[[float], float]:
        group = self._group(point)
        if self.case.is_sharded:
            return lambda num_bytes: fsdp_s(group, num_bytes)
        return lambda num_bytes: all_reduce_s(self.case.all_reduce, group, num_bytes)

    def _group(self, point: Point) -> Group:
        local = min(point.gpus, point.gpus_per_host)
        return Group(
            hosts=-(-point.gpus // local),
            devices=local,
            inside=slowed(self._link(self.case.inside), 1 / self.case.server_links),
            network=self._link(self.case.network),
            cards=self.case.cards,
        )

    def _link(self, name: str) -> Link:
        return _BY_NAME[name].link(self.end)


def fitted(model: _Model, rows: list[Point]) -> tuple[_Model, FitLog | None]:
    """Return the model with its one number fitted to the two smallest configurations."""
    case = model.case
    is_usable = len(rows) > 1 and rows[1].is_verified and not rows[1].is_superlinear
    if case.fitted is Fitted.NOTHING or not is_usable:
        return model, None
    name = "spread" if case.fitted is Fitted.SPREAD else "driver_example_s"
    wanted = seconds_of(rows[1], case)
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if sum(_with(model, name, middle).step_s(rows[1]).values()) < wanted:
            low = middle
        else:
            high = middle
    log = FitLog(case=case.name, number=name, value=high, ids=(rows[0].id, rows[1].id))
    return _with(model, name, high), log


def _with(model: _Model, name: str, value: float) -> _Model:
    if name == "spread":
        return replace(model, spread=value)
    return replace(model, driver_example_s=value)


def _checked(model: _Model, point: Point, place: int) -> Checked:
    case = model.case
    parts = model.step_s(point)
    step_s = sum(parts.values())
    ends = {}
    for end in End:
        bare = replace(model, end=end, spread=_SPREADS[end], driver_example_s=_DRIVERS_S[end])
        ends[end] = sum(bare.step_s(point).values())
    return Checked(
        case=case,
        point=point,
        role=_role(case, point, place),
        predicted=value_of(step_s, point, case, model),
        likely=value_of(ends[End.LIKELY], point, case, model),
        band=(
            value_of(ends[End.WORST], point, case, model),
            value_of(ends[End.BEST], point, case, model),
        ),
        error_frac=value_of(step_s, point, case, model) / point.value - 1,
        parts={name: seconds / step_s for name, seconds in parts.items()},
        reason=case.reason,
    )


def _role(case: Case, point: Point, place: int) -> str:
    if not point.is_verified or point.is_superlinear:
        return "shown"
    if case.base_s is None and place == 0:
        return "base"
    if case.fitted is not Fitted.NOTHING and place == 1:
        return "fitted"
    return "predicted"


def seconds_of(point: Point, case: Case, model: _Model | None = None) -> float:
    """Return the published seconds of a step of all devices."""
    examples = point.batch * point.gpus * case.example_size
    if point.unit in RATES:
        return examples / point.value
    if point.unit == "efficiency":
        assert case.base_s is not None
        return case.base_s / point.value
    if point.unit == "s/epoch":
        return point.value * examples / _EXAMPLES[case.ids[0]]
    if case.base_s is not None:  # hours of a training, told by its speed-up
        assert model is not None
        alone_s = examples * case.base_s
        return alone_s / point.speedup * case.base_epochs / case.epochs
    return point.value * examples / _EXAMPLES[case.ids[0]]


def value_of(step_s: float, point: Point, case: Case, model: _Model) -> float:
    """Return a step's seconds in the unit of a published value."""
    examples = point.batch * point.gpus * case.example_size
    if point.unit in RATES:
        return examples / step_s
    if point.unit == "efficiency":
        assert case.base_s is not None
        return case.base_s / step_s
    return point.value * step_s / seconds_of(point, case, model)


def _base_batch(base: Point) -> float:
    """Return the examples of the step that `base_s` is of: FireCaffe's is that of one example."""
    return 1.0 if base.unit.startswith("hours") else base.batch


_EXAMPLES: Final = {"DB1": 27_504.0, "GO1": 1_281_167.0 * 90 / 3600}
"""Examples of what a row times: of an epoch; of 90 epochs, for hours in place of seconds."""
