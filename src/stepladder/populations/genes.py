"""Genes: options that differ between the members of a population, and change while they train."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NoReturn

import numpy as np

from stepladder.config.checks import BadValueError
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.config.resolve import find_option
from stepladder.config.schema import Option, build
from stepladder.errors import UsageError
from stepladder.optim.table import spec_of

Value = float | int | str
Values = tuple[Value, ...]
"""The values of a member's genes, in the order of the genes."""

KEY: Final = "population.genes"
_NUMBER: Final = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE: Final = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})(?:\s+(log))?")
_LARGEST: Final = 2**31 - 1
_EXAMPLE: Final = "batch.lr 1e-4..1e-1 log"
_COMMON: Final = ("weight_decay", "clip_norm")  # options of all optimizers
MOVABLE: Final = (
    "batch.lr",
    "batch.global_batch_size",
    "head.dropout",
    "loss.label_smoothing",
    "loss.class_weights",
    "optimizer.momentum",
    "optimizer.trust_coefficient",
    "optimizer.beta1",
    "optimizer.beta2",
    "optimizer.damping",
    "optimizer.kl_clip",
    "optimizer.factor_decay",
    "optimizer.eps",
    "optimizer.weight_decay",
    "optimizer.clip_norm",
    "augment.crop",
    "augment.flip",
    "augment.randaugment_ops",
    "augment.randaugment_magnitude",
    "augment.mixup_alpha",
)
"""Options that can change while a model is trained, and do not change the shape of its weights."""


class Scale(StrEnum):
    """How values of a range are drawn: uniformly, or uniformly in their logarithm."""

    LINEAR = "linear"
    LOG = "log"


@dataclass(frozen=True, kw_only=True)
class Gene:
    """An option with the range of its values, or a choice among some.

    Attributes:
        key: dotted name of the option.
        low, high: the range; both ends are valid.
        is_whole: values are whole numbers.
        choices: the values, if it is not a number.
        levels: the values of a number that has only some, in order.
    """

    key: str
    low: float = 0.0
    high: float = 1.0
    scale: Scale = Scale.LINEAR
    is_whole: bool = False
    choices: tuple[str, ...] = ()
    levels: tuple[float, ...] = ()

    def draw(self, rng: np.random.Generator) -> Value:
        """Return a value drawn from the whole range."""
        if self.choices:
            return self.choices[int(rng.integers(len(self.choices)))]
        if self.levels:
            return self.fitted(self.levels[int(rng.integers(len(self.levels)))])
        if self.is_whole and self.scale is Scale.LINEAR:
            return int(rng.integers(round(self.low), round(self.high) + 1))
        low, high = self._scaled(self.low), self._scaled(self.high)
        return self.fitted(self._unscaled(rng.uniform(low, high)))

    def perturbed(
        self, value: Value, rng: np.random.Generator, *, factor: float, redraw_frac: float
    ) -> Value:
        """Return a value near another, or with some probability one drawn from the whole range.

        A number is multiplied or divided by the factor; without a logarithmic scale it moves by
        (factor - 1) of the range, so that 0 can be left. One of some levels moves to the next. A
        choice is drawn again.

        Args:
            factor: above 1.
            redraw_frac: the probability.
        """
        if rng.random() < redraw_frac or isinstance(value, str):
            return self.draw(rng)
        is_up = rng.random() < 0.5
        if self.levels:
            at = self.levels.index(self._nearest(value)) + (1 if is_up else -1)
            return self.fitted(self.levels[min(max(at, 0), len(self.levels) - 1)])
        if self.scale is Scale.LOG:
            moved = value * factor if is_up else value / factor
        else:
            step = (factor - 1) * (self.high - self.low)
            moved = value + step if is_up else value - step
        if self.is_whole and round(moved) == round(value):
            moved = value + (1 if is_up else -1)
        return self.fitted(moved)

    def fitted(self, value: float | str) -> Value:
        """Return the nearest value within the range, or of the levels."""
        if isinstance(value, str):
            return value
        inside = min(max(value, self.low), self.high)
        if self.levels:
            inside = self._nearest(inside)
        return round(inside) if self.is_whole else inside

    def has(self, value: float) -> bool:
        """Return whether a number is in the range, or one of the levels."""
        return value in self.levels if self.levels else self.low <= value <= self.high

    def _nearest(self, value: float) -> float:
        return min(self.levels, key=lambda level: abs(level - value))

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.scale is Scale.LOG else value

    def _unscaled(self, value: float) -> float:
        return math.exp(value) if self.scale is Scale.LOG else value


def genes_of(text: str, recipe: Recipe) -> tuple[Gene, ...]:
    """Read genes, such as `batch.lr 1e-4..1e-1 log, loss.class_weights none|balanced`.

    Args:
        recipe: with which both ends of each range must be valid.

    Raises:
        UsageError: for an option that does not exist, cannot change during training or has no
            range, and for a range that is not valid.
    """
    parts = [part.strip() for part in re.split(r"[,;\n]", text) if part.strip()]
    if not parts:
        raise UsageError(
            "no gene is declared: the members of the population would all be the same",
            where=KEY,
            fix=f'Declare options with their ranges, such as --population.genes "{_EXAMPLE}"',
        )
    genes = tuple(_gene_of(part) for part in parts)
    keys = [gene.key for gene in genes]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise UsageError(
            f"the gene {twice} is declared twice", where=KEY, fix="Remove one of the two."
        )
    for gene in genes:
        _require_valid(gene, recipe)
    return genes


def require_effect(genes: Sequence[Gene], recipe: Recipe) -> None:
    """Check that no gene is an option that the recipe does not use.

    Raises:
        UsageError: if one is.
    """
    spec, keys = spec_of(recipe.optimizer.name), [gene.key for gene in genes]
    for key in keys:
        group, _, name = key.partition(".")
        if group == "optimizer" and name not in (*spec.options, *_COMMON):
            named = ", ".join(f"optimizer.{one}" for one in (*spec.options, *_COMMON))
            raise UsageError(
                f"{key} has no effect: {spec.title} does not use it",
                where=KEY,
                fix=f"Use some of {named}, or another --optimizer.name.",
            )
    ops = "augment.randaugment_ops"
    has_ops = recipe.augment.randaugment_ops > 0 or ops in keys
    if "augment.randaugment_magnitude" in keys and not has_ops:
        raise UsageError(
            "augment.randaugment_magnitude has no effect: RandAugment is off",
            where=KEY,
            fix="Switch it on: --augment.randaugment-ops 2",
        )


def applied(recipe: Recipe, genes: Sequence[Gene], values: Values) -> Recipe:
    """Return a recipe with the genes of a member."""
    named: Mapping[str, object] = dict(zip((gene.key for gene in genes), values, strict=True))
    settings = {key: _as_option(find_option(key), value) for key, value in named.items()}
    return build(settings, JobConfig(recipe=recipe)).recipe


def own_values(recipe: Recipe, genes: Sequence[Gene]) -> tuple[Value | None, ...]:
    """Return the values that a recipe has; None for one that is outside the range of its gene."""
    job = JobConfig(recipe=recipe)
    values: list[Value | None] = []
    for gene in genes:
        value = find_option(gene.key).value(job)
        if gene.choices:
            text = _text(value)
            values.append(text if text in gene.choices else None)
        else:
            values.append(value if value is not None and gene.has(value) else None)
    return tuple(values)


def _gene_of(part: str) -> Gene:
    """Read one gene."""
    name, _, rest = part.partition(" ")
    option = find_option(name.rstrip(":"), where=KEY)
    _require_movable(option)
    rest = rest.strip()
    is_number = int in option.wanted.kinds or float in option.wanted.kinds
    if is_number and "|" in rest:
        return _levels_of(option, rest)
    if is_number:
        match = _RANGE.fullmatch(rest)
        if match is None:
            _refuse_range(option, rest)
        low, high = float(match[1]), float(match[2])
        scale = Scale.LOG if match[3] else Scale.LINEAR
        is_whole = int in option.wanted.kinds
        if low >= high or (scale is Scale.LOG and low <= 0):
            why = "begins at 0 or below" if low < high else "has no values"
            raise UsageError(
                f"{option.key}: the range {rest} {why}",
                where=KEY,
                fix=f"Write the smaller number first, such as {option.key} 0..1"
                if low >= high
                else f"Begin above 0, or leave out log: {option.key} {low:g}..{high:g}",
            )
        if is_whole and not (low.is_integer() and high.is_integer()):
            raise UsageError(
                f"{option.key} is a whole number, but the range {rest} has fractions",
                where=KEY,
                fix=f"Write {option.key} {math.ceil(low)}..{math.floor(high)}",
            )
        if is_whole and high > _LARGEST:
            raise UsageError(
                f"{option.key}: {match[2]} is too large a number",
                where=KEY,
                fix=f"Write at most {_LARGEST}.",
            )
        return Gene(key=option.key, low=low, high=high, scale=scale, is_whole=is_whole)
    choices = tuple(word.strip() for word in rest.split("|") if word.strip())
    valid = option.wanted.choices or ("true", "false")
    unknown = next((word for word in choices if word not in valid), None)
    if len(set(choices)) < len(choices) or len(choices) < 2 or unknown is not None:
        what = f"{unknown} is not one of its values" if unknown else "it has no choices"
        raise UsageError(
            f"{option.key}: {what}", where=KEY, fix=f"Write {option.key} {'|'.join(valid)}"
        )
    return Gene(key=option.key, choices=choices)


def _levels_of(option: Option, rest: str) -> Gene:
    """Read a number that has only some values, such as `16|32|64`."""
    words = [word.strip() for word in rest.split("|")]
    is_whole = int in option.wanted.kinds
    wrong = next((word for word in words if not re.fullmatch(_NUMBER, word)), None)
    levels = tuple(sorted({float(word) for word in words})) if wrong is None else ()
    if is_whole:
        wrong = next((f"{level:g}" for level in levels if not level.is_integer()), wrong)
    if wrong is not None or len(levels) < 2:
        kind = "a whole number" if is_whole else "a number"
        what = f"{wrong!r} is not {kind}" if wrong is not None else "it has one value only"
        raise UsageError(
            f"{option.key}: {what}",
            where=KEY,
            fix=f"Write its values with | between them, such as {option.key} "
            + ("16|32|64" if is_whole else "0.1|0.2|0.4"),
        )
    return Gene(key=option.key, low=levels[0], high=levels[-1], is_whole=is_whole, levels=levels)


def _require_movable(option: Option) -> None:
    if option.key in MOVABLE:
        return
    raise UsageError(
        f"{option.key} cannot change while a model is trained",
        where=KEY,
        why="Members take the weights and the optimizer's state of each other, and train on with "
        "settings of their own.",
        fix=f"Use some of {', '.join(MOVABLE)}.",
    )


def _refuse_range(option: Option, rest: str) -> NoReturn:
    what = f"{rest!r} is not a range" if rest else "the gene has no range"
    raise UsageError(
        f"{option.key}: {what}",
        where=KEY,
        fix=f"Write its smallest and its largest value, such as {option.key} "
        + ("1..3" if int in option.wanted.kinds else "0.1..0.5")
        + ", with log behind it if values differ by factors, or some values: 16|32|64.",
    )


def _require_valid(gene: Gene, recipe: Recipe) -> None:
    """Check that a recipe can have the ends of a range.

    Raises:
        UsageError: if it cannot.
    """
    ends: tuple[Value, ...] = gene.choices or tuple(map(gene.fitted, gene.levels))
    if not ends:
        ends = (gene.fitted(gene.low), gene.fitted(gene.high))
    for end in ends:
        try:
            applied(recipe, [gene], (end,))
        except BadValueError as error:
            error.where = KEY
            raise


def _as_option(option: Option, value: object) -> object:
    if not isinstance(value, str):
        return value
    kinds = option.wanted.kinds
    if bool in kinds and value in ("true", "false"):
        return value == "true"
    kind = next(kind for kind in kinds if issubclass(kind, StrEnum) and value in list(kind))
    return kind(value)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
