"""What the trials of a climb share: data, budget, and full trainings."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Self

import numpy as np
import torch
from numpy.typing import NDArray

import stepladder
from stepladder.config.choices import Split
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe, StoppingConfig
from stepladder.ladder.accuracy.exactness import Material
from stepladder.ladder.accuracy.folds import Parts
from stepladder.ladder.keys import code_key, learning_key
from stepladder.ladder.timing.epoch_range import epoch_range
from stepladder.ladder.timing.patience import Patience
from stepladder.ladder.trainings.training_cache import PROBE_ROUNDS, Trainings
from stepladder.ladder.trainings.trial_training import OnValidation
from stepladder.parallel.fleet import Fleet
from stepladder.records.ladder import Outcome
from stepladder.records.profile import Curve, EpochRange, Provenance
from stepladder.rungs.speed.early_stopping import with_early_stopping
from stepladder.stats import resolvable_margin
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.evaluate import Evaluation
from stepladder.training.features.feature_task import features_folder
from stepladder.training.setup.build import Sources, open_sources
from stepladder.training.stopping import EarlyStopping, Weights

BUDGET_S: Final = 600.0
"""Budget that shares refer to if the user sets no limit."""
_CURVE_FRAC: Final = 0.1
_SHOW_FRAC: Final = 0.03  # for a training that only shows the accuracy of the original job
_DISAGREEMENT: Final = 0.05  # assumed share of examples that two trainings classify differently
_TRIAL_SEED: Final = 1000
_PROBE_SEED: Final = 2000
_MIN_SEEDS: Final = 2


LENGTH_ROUNDS: Final = 4
"""Times as many seeds for the number of epochs, if many trainings cost little more than one."""
OUTCOMES_FRAC: Final = 0.2
"""Of the budget, for the trainings of one recipe, and the same for the features of one trunk."""
_ROOM: Final = 1.5  # margin of a recommended budget: part of it will be spent by then
_LEAST_S: Final = 0.1
_IN_SECONDS_S: Final = 60
_IN_HOURS_S: Final = 5400
_IN_HOURS_MIN: Final = 120


def too_long(
    num: int, each_s: float, *, features_s: float | None = None, spent_s: float = 0.0
) -> str:
    """Return a message on trainings that the budget does not allow, and a budget that would.

    Args:
        num: trainings, of `each_s` seconds each.
        features_s: seconds to compute features to train heads on instead; None: not possible.
        spent_s: of the budget, if the share is taken of what is left.
    """
    each = _time(each_s)
    trainings = f"{num} trainings of {each} each" if num > 1 else f"a training of {each}"
    needed_s = num * each_s
    if features_s is None or features_s >= needed_s:
        return (
            f"not compared: it would take {trainings}; {_budget(needed_s, spent_s)} would allow it"
        )
    return (
        f"not compared: it would take {trainings}, or {_time(features_s)} to compute features "
        f"for fast trainings of the head; {_budget(features_s, spent_s)} would allow these"
    )


def _time(seconds: float) -> str:
    if seconds < _IN_SECONDS_S:
        return f"{seconds:.1f} s" if seconds >= _LEAST_S else f"less than {_LEAST_S} s"
    return f"{seconds / 3600:.1f} h" if seconds > _IN_HOURS_S else f"{seconds / 60:.1f} min"


def _budget(needed_s: float, spent_s: float) -> str:
    minutes = math.ceil((spent_s + _ROOM * needed_s / OUTCOMES_FRAC) / 60)
    return f"--budget {f'{minutes}m' if minutes < _IN_HOURS_MIN else f'{math.ceil(minutes / 60)}h'}"


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Full trainings of a recipe.

    Attributes:
        found: by seed; empty if the budget did not allow them.
        why_not: how long they would take, as text; None: the budget allowed them.
    """

    found: tuple[Outcome, ...] = ()
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Own:
    """A training with the recipe's own seed, on the job's own splits.

    Attributes:
        weights: its final weights; None if it diverged.
    """

    outcome: Outcome
    weights: Weights | None = None


@dataclass(kw_only=True)
class Lab:
    """What the trials of a climb share; a context manager that leaves its cache folder empty.

    Attributes:
        cache: private folder for features, decoded copies and compiled code.
        fleet: other hosts, under a launcher; None: this machine is alone.
        seed: all seeds of trials are derived from it.
        store_s: seconds to make decoded copies, by the form that is read.
        reserve_s: of the budget, for the final training.
        patience: for timings that no other process disturbs; by default every timing counts.
    """

    job: JobConfig
    task: Task
    sources: Sources
    device: torch.device
    cache: Path
    seed: int
    fleet: Fleet | None = None
    store_s: dict[tuple[bool, bool], float] = field(default_factory=dict)
    reserve_s: float = 0.0
    patience: Patience = field(default_factory=lambda: Patience(left_s=0.0))
    _started: float = field(default_factory=time.monotonic)
    _curves: dict[Recipe, Curve | None] = field(default_factory=dict)
    _own: dict[Recipe, _Own] = field(default_factory=dict)
    _judged: dict[tuple[Recipe, Split], Outcome | None] = field(default_factory=dict)
    _materials: dict[tuple[bool, bool], Material] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.cache.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for path in self.cache.iterdir():
            shutil.rmtree(path, ignore_errors=True)

    # -- time -------------------------------------------------------------------------------

    @property
    def budget_s(self) -> float:
        """The budget that shares refer to: the user's, or ten minutes."""
        return self.job.ladder.budget_s or BUDGET_S

    def time_left(self) -> float:
        """Return the seconds left of the budget; infinite without a budget."""
        limit_s = self.job.ladder.budget_s
        if limit_s is None:
            return float("inf")
        return limit_s - self.reserve_s - (time.monotonic() - self._started)

    def allowed_s(self, share: float) -> float:
        """Return a share of the time left in the budget."""
        return max(0.0, share * min(self.time_left(), self.budget_s))

    @cached_property
    def commit(self) -> str:
        """The commit of the code, with a digest if files differ from it; or its version."""
        return code_key(Path(stepladder.__file__).parent)

    # -- data -------------------------------------------------------------------------------

    @property
    def copies(self) -> Path:
        """Folder with decoded copies of the store."""
        return self.cache / "copies"

    def material(self, recipe: Recipe) -> Material:
        """Return task and sources for a recipe; a decoded copy is made in the cache."""
        form = _form(recipe)
        if form == _form(self.job.recipe) or not isinstance(self.task, ImageClassification):
            return Material(task=self.task, sources=self.sources)
        if form not in self._materials:
            started = time.monotonic()
            task = self.task.as_read_by(recipe, copies=self.copies)
            self._materials[form] = Material(task=task, sources=open_sources(task))
            if recipe.data.decode_once:
                self.store_s[form] = time.monotonic() - started
        return self._materials[form]

    def one_time_s(self, recipe: Recipe) -> dict[str, float]:
        """Return the seconds of one-time work that the lab did for a recipe, by name."""
        seconds = self.store_s.get(_form(recipe))
        return {} if seconds is None else {"store": seconds}

    def features(self, recipe: Recipe) -> Sources | None:
        """Return the features that a recipe's head trains on; None if replay is not valid."""
        return self._trainings.instrument.features(recipe)

    @cached_property
    def _trainings(self) -> Trainings:
        return Trainings(
            material_of=self.material,
            device=self.device,
            num_seeds=self.job.ladder.num_seeds,
            seed=self.seed,
            folder=self.cache,
            max_features_s=OUTCOMES_FRAC * self.budget_s,
            known_features=features_folder(self.job, self.task),
        )

    # -- trainings to the end ---------------------------------------------------------------

    def outcomes(self, recipe: Recipe, *, also: Sequence[Recipe] = ()) -> Outcomes:
        """Train a recipe in full with each trial seed, and evaluate on held-out examples.

        Uses cross-validation folds over train and validation together if the validation split is
        too small to resolve max_accuracy_loss, else that split. Known trainings are not repeated.

        Args:
            also: recipes that may be asked for next; those that differ only in how they stop are
                covered by the same trainings.
        """
        return self._over_seeds(recipe, self._parts(recipe), also=also)

    def plain(self, recipe: Recipe) -> Outcomes:
        """Train a recipe in full with each trial seed, on the job's own splits.

        With more seeds if many trainings cost little more than one.
        """
        trainings = self._trainings
        num_rounds = LENGTH_ROUNDS if trainings.is_stacked(recipe) else 1
        parts = (trainings.plain(recipe),) * (num_rounds * self.job.ladder.num_seeds)
        return self._over_seeds(recipe, parts, least=self.job.ladder.num_seeds)

    def num_trainings(self, recipe: Recipe) -> int:
        """Return how many trainings judge a recipe; more if many cost little more than one."""
        return len(self._parts(recipe))

    def probe(
        self, recipe: Recipe, *, also: Sequence[Recipe] = (), is_thorough: bool = False
    ) -> tuple[Outcome, ...]:
        """Train with seeds that no trial uses: once, or with each seed if that costs little more.

        Returns nothing if it would take too long.

        Args:
            also: recipes that differ only in how they stop, covered by the same trainings.
            is_thorough: train with each seed, as far as the same share of the budget allows.
        """
        trainings, num = self._trainings, self.job.ladder.num_seeds
        is_stacked = trainings.is_stacked(recipe)
        most = num * PROBE_ROUNDS if is_stacked else num if is_thorough else 1
        num = trainings.num_within(recipe, most, self.allowed_s(OUTCOMES_FRAC))
        if not num:
            return ()
        parts = self._parts(recipe)[:num]
        pairs = [(part, self.seed + _PROBE_SEED + idx) for idx, part in enumerate(parts)]
        return trainings.train_all(recipe, pairs, also=also)

    def probe_ends(self, recipe: Recipe, others: Sequence[Recipe]) -> list[tuple[Outcome, ...]]:
        """Probe a recipe and others that differ only in how they stop, by the same trainings.

        Returns:
            The outcomes of the recipe, then of each of the others; empty if each would need a
            training of its own, or if it would take too long.
        """
        if not self._trainings.is_stacked(recipe):
            return []
        found = self.probe(recipe, also=others)
        # if the loss turned out not to support stacking, only the recipe itself was trained
        if not found or not self._trainings.is_stacked(recipe):
            return []
        return [found, *(self.probe(other) for other in others)]

    def can_show(self, recipe: Recipe) -> bool:
        """Return True if a training is cheap enough to run it only to show its accuracy."""
        return self._trainings.forecast_s(recipe) <= self.allowed_s(_SHOW_FRAC)

    def forecast_s(self, recipe: Recipe) -> float:
        """Forecast the seconds of the trainings that judge a recipe."""
        return self._trainings.forecast_all_s(recipe, self.num_trainings(recipe))

    def expected_epochs(self, recipe: Recipe) -> tuple[float, float, Provenance]:
        """Return epochs and validations until training ends, and how that is known."""
        epochs = self._most_epochs(recipe)
        most = epochs, self._num_validations(recipe, epochs)
        if not recipe.stopping.early or self.sources.val is None:
            return *most, Provenance.READ
        found = [outcome for outcome in self.plain(recipe).found if outcome.why_not is None]
        if not found:
            return *most, Provenance.ASSUMED
        epochs = float(np.mean([outcome.epochs for outcome in found]))
        num_validations = float(np.mean([outcome.num_validations for outcome in found]))
        return epochs, num_validations, found[0].provenance

    def epoch_range(self, recipe: Recipe) -> EpochRange | None:
        """Return how many epochs a recipe takes over seeds; None if early stopping is off."""
        if not recipe.stopping.early or self.sources.val is None:
            return None
        found = [outcome for outcome in self.plain(recipe).found if outcome.why_not is None]
        return epoch_range(
            [outcome.epochs for outcome in found],
            recipe.stopping,
            most=self._most_epochs(recipe),
            steps_per_epoch=self.steps_per_epoch(recipe),
            provenance=found[0].provenance if found else Provenance.ASSUMED,
        )

    def _most_epochs(self, recipe: Recipe) -> float:
        """Return the epochs at which the schedule ends training."""
        epochs, max_steps = float(recipe.schedule.max_epochs), recipe.schedule.max_steps
        return (
            epochs if max_steps is None else min(epochs, max_steps / self.steps_per_epoch(recipe))
        )

    def num_train(self, recipe: Recipe) -> int:
        """Count the training examples of an epoch."""
        return max(1, round(len(self.sources.train) * recipe.data.fraction))

    def steps_per_epoch(self, recipe: Recipe) -> int:
        """Return the optimizer steps per epoch, including a short last one."""
        return -(-self.num_train(recipe) // recipe.batch.global_batch_size)

    def groups(self) -> NDArray[np.int64]:
        """Return the group of each example of train and validation; similar ones share one."""
        return self._trainings.groups(self.job.recipe)

    def curve(self, recipe: Recipe) -> Curve | None:
        """Train a recipe once with its own seed, up to where early stopping would end it.

        None without a validation split, or if it would take over a tenth of the budget.
        """
        key = learning_key(recipe)
        if key not in self._curves:
            self._curves[key] = self._draw_curve(recipe)
        return self._curves[key]

    def judge(self, recipe: Recipe, split: Split) -> Outcome | None:
        """Train once on the job's splits with the recipe's own seed, and evaluate on a split.

        None without that split, or if it would take too long.
        """
        key = learning_key(recipe), split
        if key not in self._judged:
            self._judged[key] = self._judge(recipe, split)
        return self._judged[key]

    # -- how --------------------------------------------------------------------------------

    def _same_for_all(self, recipe: Recipe) -> tuple[Parts, ...]:
        return (self._trainings.plain(recipe),) * self.job.ladder.num_seeds

    def _parts(self, recipe: Recipe) -> tuple[Parts, ...]:
        """Return a fold for each seed, or the job's own splits if these resolve enough."""
        num_val = 0 if self.sources.val is None else len(self.sources.val)
        margin = resolvable_margin(num_val, disagreement=_DISAGREEMENT)
        is_sample = self.job.recipe.data.fraction < 1
        if is_sample or (num_val > 0 and margin <= self.job.ladder.max_accuracy_loss):
            return self._same_for_all(recipe)
        return self._trainings.folds(recipe, job=self.job.recipe)

    def _over_seeds(
        self,
        recipe: Recipe,
        parts: tuple[Parts, ...],
        *,
        also: Sequence[Recipe] = (),
        least: int | None = None,
    ) -> Outcomes:
        """Train with a seed for each of the parts, or for as many as the budget allows.

        Args:
            least: trainings to ask a larger budget for, if it allows none; None: all of them.
        """
        trainings = self._trainings
        seeds = [self.seed + _TRIAL_SEED + idx for idx in range(len(parts))]
        pairs = list(zip(parts, seeds, strict=True))
        num_known = sum(trainings.is_known(recipe, part, seed) for part, seed in pairs)
        if num_known == len(pairs):
            also = ()  # they are limited by their own share of the budget
        else:
            num_new = len(pairs) - num_known
            each_s = trainings.forecast_all_s(recipe, num_new) / num_new
            allowed_s = self.allowed_s(OUTCOMES_FRAC)
            affordable = num_known + trainings.num_within(recipe, num_new, allowed_s)
            if affordable < _MIN_SEEDS:
                spent_s = max(0.0, self.budget_s - self.time_left())
                why_not = self._too_long(recipe, least or len(pairs), each_s, spent_s=spent_s)
                return Outcomes(why_not=why_not)
            pairs = pairs[:affordable]
        return Outcomes(found=trainings.train_all(recipe, pairs, also=also))

    def _num_validations(self, recipe: Recipe, epochs: float) -> float:
        if self.sources.val is None:
            return 0.0
        every_steps = recipe.stopping.validate_every_steps
        if every_steps is not None:
            return float(round(epochs * self.steps_per_epoch(recipe)) // every_steps)
        return float(int(epochs) // recipe.stopping.validate_every_epochs)

    def _draw_curve(self, recipe: Recipe) -> Curve | None:
        trainings = self._trainings
        if self.sources.val is None:
            return None
        if trainings.forecast_s(recipe) > self.allowed_s(_CURVE_FRAC):
            return None
        stopping = EarlyStopping(StoppingConfig())
        losses: list[float] = []
        stops: list[float] = []
        is_job = learning_key(recipe) == learning_key(self.job.recipe)
        goes_on = is_job and self.can_show(recipe)  # its accuracy will be shown

        def look(epochs: float, result: Evaluation) -> bool:
            if stops:
                return False
            stopping.judge(result.monitored(recipe.stopping.monitor))
            losses.append(float(result.losses.mean(dtype="float64")))
            if stopping.is_exhausted:
                stops.append(epochs)
            return stopping.is_exhausted and not goes_on

        own = self._train_own(recipe, on_validation=look)
        if own.outcome.why_not is not None:
            return None
        if goes_on:
            self._own[learning_key(recipe)] = own
        over_seeds = self._stops(recipe)
        return Curve(
            epochs=stops[0] if stops else own.outcome.epochs,
            val_losses=tuple(losses),
            epochs_to_stop=over_seeds.mean if over_seeds else next(iter(stops), None),
            stops=over_seeds,
            provenance=own.outcome.provenance,
        )

    def _stops(self, recipe: Recipe) -> EpochRange | None:
        """Return where default early stopping would end a recipe without it, over seeds.

        None if each seed would need a training of its own.
        """
        if recipe.stopping.early:
            return None
        stopped = with_early_stopping(recipe)
        if not self._trainings.is_stacked(stopped):
            return None
        found = self.epoch_range(stopped)
        return found if found is not None and found.num_seeds else None

    def _judge(self, recipe: Recipe, split: Split) -> Outcome | None:
        trainings, key = self._trainings, learning_key(recipe)
        source = getattr(self.features(recipe) or self.material(recipe).sources, split)
        if source is None:
            return None
        if key not in self._own:
            if self._is_too_long(recipe):
                return None
            self._own[key] = self._train_own(recipe)
        own = self._own[key]
        if own.weights is None:
            return own.outcome
        plain = trainings.plain(recipe)
        rows = np.arange(len(source), dtype=np.int64)
        parts = replace(plain, sources=replace(plain.sources, test=source), rows=rows)
        return trainings.judge(recipe, parts, own.weights, own.outcome)

    def why_not_judged(self) -> str | None:
        """Return why `judge` does not train the original job any more, and what would allow it."""
        recipe = self.job.recipe
        if not self._is_too_long(recipe):
            return None
        return self._too_long(recipe, 1, self._trainings.forecast_s(recipe))

    def _too_long(self, recipe: Recipe, num: int, each_s: float, *, spent_s: float = 0.0) -> str:
        features_s = self._trainings.instrument.refused_s(recipe)
        return too_long(num, each_s, features_s=features_s, spent_s=spent_s)

    def _is_too_long(self, recipe: Recipe) -> bool:
        # a share of the whole budget, not of what is left: this comes after the final training
        over_s = max(0.0, -self.reserve_s - self.time_left())
        return self._trainings.forecast_s(recipe) > OUTCOMES_FRAC * self.budget_s - over_s

    def _train_own(self, recipe: Recipe, *, on_validation: OnValidation | None = None) -> _Own:
        ended: list[Weights] = []
        trainings = self._trainings
        parts = trainings.plain(recipe)
        parts = replace(parts, sources=replace(parts.sources, test=None))  # judged when asked
        outcome = trainings.train_anew(
            recipe, parts, recipe.seed, on_validation=on_validation, on_end=ended.append
        )
        return _Own(outcome=outcome, weights=ended[0] if ended else None)


def _form(recipe: Recipe) -> tuple[bool, bool]:
    """Return the options that decide in which form pictures are read."""
    return recipe.data.decode_once, recipe.loader.scaled_decode
