"""What would improve a run, in the order to try it, each with its evidence.

More data or regularisation is never recommended for a high training error: both increase it. The
names are those of the rungs of `climb --aim accuracy`, except for those in `BY_HAND`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepladder.config.choices import Monitor, TrainMode
from stepladder.config.recipe import AugmentConfig, Recipe
from stepladder.diagnosis.fit.levels import Levels
from stepladder.records.diagnosis import (
    Fit,
    FitKind,
    LearningCurve,
    LrVerdict,
    RangeTest,
    Remedy,
)
from stepladder.records.files import Json
from stepladder.training.output.wording import percent

TRAINING: Final = "training error"
VALIDATION: Final = "validation error"
FOR_TRAINING: Final = (
    "learning_rate_lower",
    "learning_rate_higher",
    "train_longer",
    "hidden_layer",
    "larger_model",
    "whole_model",
    "add_normalisation",
)
"""Remedies for a high training error."""
MORE_DATA: Final = "more_data"
FOR_VALIDATION: Final = (
    "all_data",
    MORE_DATA,
    "stop_by_accuracy",
    "augmentation",
    "dropout",
    "weight_decay",
    "label_smoothing",
    "earlier_stop",
)
"""Remedies for a validation error that is high compared with the training error."""
BY_HAND: Final = frozenset({MORE_DATA, "stop_by_accuracy"})
"""Remedies that no rung tries: they are up to the user."""
_OUT_OF_TIME: Final = frozenset({"max_epochs", "max_steps", "max_time", "early_stopping"})


@dataclass(frozen=True, kw_only=True)
class Known:
    """The basis for choosing remedies.

    Attributes:
        fit, levels: how well the run fits.
        recipe: of the run; None if its config cannot be read.
        is_built_in: whether it used the built-in Task; None if unknown.
        stop_reason: why training stopped; None if it has not, or if unknown.
        range_test, learning_curve: None if not measured.
        num_norms, num_dropouts: number of such layers; None if the model was not built.
        augments: whether the Task augments training batches; None if unknown.
        run: the folder, for the commands.
        task_name: "FILE.py:NAME" of a custom Task; None for the built-in one.
    """

    fit: Fit
    levels: Levels
    recipe: Recipe | None
    run: Path
    is_built_in: bool | None = None
    stop_reason: str | None = None
    range_test: RangeTest | None = None
    learning_curve: LearningCurve | None = None
    num_norms: int | None = None
    num_dropouts: int | None = None
    augments: bool | None = None
    task_name: str | None = None


def remedies_for(known: Known) -> tuple[Remedy, ...]:
    """Return what to try, the most likely first; they fit the verdict, and nothing else.

    A good fit has no remedy but longer training, if it was still improving, and those of its
    probabilities, if these became overconfident. Only one side is addressed: the training error if
    that is high, otherwise that of validation.

    Source: Ng 2018, "Machine Learning Yearning", 20 to 27 ("Bias and Variance").
    """
    if lacks_training(known):
        return tuple(_against_training(known))
    if known.fit.kind is FitKind.GOOD_FIT and _could_go_on(known):
        return tuple(_train_longer(known))
    if lacks_validation(known):
        return tuple(_against_validation(known))
    return ()


def lacks_training(known: Known) -> bool:
    """Return True if the training error is high."""
    fit = known.fit
    if fit.kind is FitKind.OVERFIT or fit.is_overconfident:
        return False
    return fit.is_learning_rate_too_high or fit.kind is FitKind.UNDERFIT


def lacks_validation(known: Known) -> bool:
    """Return True if the run overfits, or has become overconfident."""
    return known.fit.kind is FitKind.OVERFIT or known.fit.is_overconfident


def _against_training(known: Known) -> Iterator[Remedy]:
    fit, test, recipe = known.fit, known.range_test, known.recipe
    is_lr_off = test is not None and test.verdict in (LrVerdict.TOO_LOW, LrVerdict.TOO_HIGH)
    if test is not None and is_lr_off:
        yield _other_lr(known, test)
    elif fit.is_learning_rate_too_high and (test is None or test.verdict is LrVerdict.NOT_TOLD):
        why = f"{_first(fit)}; how much too high is unknown without a range test"
        yield _remedy(known, "learning_rate_lower", TRAINING, why)
    yield from _train_longer(known)
    level = _level(known.levels)
    if is_lr_off:  # what a model of this size can learn is unknown until it is fixed
        level = f"if the learning rate is not the only cause: {level}"
    if known.is_built_in and recipe is not None and recipe.head.hidden == 0:
        why = f"{level}, and the head has a single layer"
        yield _remedy(known, "hidden_layer", TRAINING, why)
    yield _remedy(known, "larger_model", TRAINING, f"{level}: a larger model can fit more of it")
    if recipe is not None and recipe.train is TrainMode.HEAD and known.is_built_in:
        why = f"{level}, and only the head is trained"
        yield _remedy(known, "whole_model", TRAINING, why)
    if known.num_norms == 0:
        why = f"{level}, and the model has no normalisation layers"
        yield _remedy(known, "add_normalisation", TRAINING, why)


def _other_lr(known: Known, test: RangeTest) -> Remedy:
    is_high = test.verdict is LrVerdict.TOO_HIGH
    name = "learning_rate_lower" if is_high else "learning_rate_higher"
    why = (
        f"the learning rate is {test.lr:.3g}; the range test finds {test.low:.2g} to "
        f"{test.high:.2g} usable"
    )
    options: dict[str, Json] = {}
    if known.recipe is not None and test.suggested is not None and test.lr > 0:
        is_second = known.recipe.train is TrainMode.HEAD_THEN_ALL
        key = "batch.lr_all" if is_second else "batch.lr"
        batch = known.recipe.batch
        configured = batch.lr_all if is_second else batch.lr  # lr_rule scales it by the batch
        options[key] = float(f"{configured * test.suggested / test.lr:.2g}")
    return _remedy(known, name, TRAINING, why, options)


def _could_go_on(known: Known) -> bool:
    return known.fit.is_still_improving and known.stop_reason in _OUT_OF_TIME


def _train_longer(known: Known) -> Iterator[Remedy]:
    if _could_go_on(known):
        why = "validation was still improving when training ended"
        yield _remedy(known, "train_longer", TRAINING, why, _longer(known.recipe))


def _longer(recipe: Recipe | None) -> Mapping[str, Json]:
    if recipe is None:
        return {}
    schedule = recipe.schedule
    options: dict[str, Json] = {"schedule.max_epochs": 2 * schedule.max_epochs}
    if schedule.max_steps is not None:
        options["schedule.max_steps"] = 2 * schedule.max_steps
    if schedule.max_time_s is not None:
        options["schedule.max_time_s"] = 2 * schedule.max_time_s
    return options


def _against_validation(known: Known) -> Iterator[Remedy]:
    fit, recipe = known.fit, known.recipe
    gap = _gap(known.levels)
    if fit.is_overconfident and _goes_by_loss(recipe):
        why = "accuracy still rose while the loss rose: stop by accuracy"
        options = {"stopping.monitor": str(Monitor.VAL_ACCURACY)}
        yield _remedy(known, "stop_by_accuracy", VALIDATION, why, options)
    if fit.kind is FitKind.OVERFIT:
        yield from _against_overfitting(known, gap)
    if known.is_built_in and recipe is not None and recipe.loss.label_smoothing == 0:
        why = (
            "predictions became overconfident"
            if fit.is_overconfident
            else "targets are not smoothed"
        )
        yield _remedy(known, "label_smoothing", VALIDATION, why)
    if fit.kind is FitKind.OVERFIT and fit.best_epoch is not None and not _keeps_best(recipe):
        why = f"validation was best at epoch {fit.best_epoch:.4g} and became worse afterwards"
        yield _remedy(known, "earlier_stop", VALIDATION, why)


def _keeps_best(recipe: Recipe | None) -> bool:
    return recipe is not None and recipe.stopping.restore_best


def _against_overfitting(known: Known, gap: str) -> Iterator[Remedy]:
    recipe = known.recipe
    yield from _more_data(known, gap)
    if known.augments is False or (known.is_built_in and _is_plain(recipe)):
        yield _remedy(known, "augmentation", VALIDATION, "training data is not augmented")
    has_dropout = bool(known.num_dropouts) or (recipe is not None and recipe.head.dropout > 0)
    if not has_dropout and (known.num_dropouts is not None or known.is_built_in):
        yield _remedy(known, "dropout", VALIDATION, "there is no dropout")
    if recipe is not None and recipe.optimizer.weight_decay == 0:
        yield _remedy(known, "weight_decay", VALIDATION, "weight decay is 0")


def _more_data(known: Known, gap: str) -> Iterator[Remedy]:
    """Yield the remedy of more data, unless a learning curve shows that it has no effect."""
    curve, recipe = known.learning_curve, known.recipe
    if recipe is not None and recipe.data.fraction < 1:
        why = f"{gap}, and only {percent(recipe.data.fraction)} of the data is used"
        options: dict[str, Json] = {"data.fraction": 1.0}
        yield _remedy(known, "all_data", VALIDATION, why, options)
        return
    if curve is None:
        why = f"{gap}; {_used(recipe)}; `--learning-curve` measures what twice the data would give"
        command = f"stepladder diagnose {shlex.quote(str(known.run))} --learning-curve"
        yield Remedy(
            name=MORE_DATA, against=VALIDATION, why=why, command=_with_task(known, command)
        )
        return
    if curve.low_gain <= 0:
        return
    why = f"{said_of(curve)}; {_used(recipe)}"
    yield Remedy(name=MORE_DATA, against=VALIDATION, why=why)


def _used(recipe: Recipe | None) -> str:
    """Describe how much data is in use, so that the remedy is found under its rung's name."""
    if recipe is None:
        return "if the run uses only part of its data, the rung is `all_data`"
    return "all data is in use (the rung `all_data`), so more must be collected"


def said_of(curve: LearningCurve) -> str:
    """Return what a learning curve found, with its interval."""

    def say(value: float) -> str:
        return percent(value) if curve.is_share else f"{value:.4g}"

    what = "error" if curve.is_share else "loss"
    return (
        f"twice the data would take the validation {what} from {say(curve.error_now)} to "
        f"{say(curve.error_at_double)} (90 % interval {say(curve.low_at_double)} to "
        f"{say(curve.high_at_double)}; gain {say(curve.low_gain)} to {say(curve.high_gain)})"
    )


def _remedy(
    known: Known, name: str, against: str, why: str, options: Mapping[str, Json] | None = None
) -> Remedy:
    return Remedy(
        name=name, against=against, why=why, options=options or {},
        command=_command(known, name, options or {}),
    )  # fmt: skip


def _command(known: Known, name: str, options: Mapping[str, Json]) -> str:
    """Return the command to type: with the options if known, else the climb that finds them."""
    if known.recipe is None or (name in BY_HAND and not options):
        return ""
    config = shlex.quote(str(known.run / "config.yaml"))
    suffix = name if options else "better"
    folder = f"--run.dir {shlex.quote(f'{known.run}-{suffix}')}"
    if options:
        flags = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in options.items())
        return _with_task(known, f"stepladder train {config} {flags} {folder}")
    return _with_task(known, f"stepladder climb {config} --aim accuracy {folder}")


def _with_task(known: Known, command: str) -> str:
    if known.task_name is None:
        return command
    return f"{command} --task {shlex.quote(known.task_name)}"


def _level(levels: Levels) -> str:
    if levels.train_error is not None:
        return f"{percent(levels.train_error)} of the training examples are misclassified"
    if levels.train_loss is not None:
        return f"the training loss stays at {levels.train_loss:.4g}"
    return "training stays poor"


def _gap(levels: Levels) -> str:
    if levels.train_error is not None and levels.val_error is not None:
        return (
            f"{percent(levels.val_error)} of the validation examples and "
            f"{percent(levels.train_error)} of the training examples are misclassified"
        )
    if levels.train_loss is not None and levels.val_loss is not None:
        val, train = f"{levels.val_loss:.4g}", f"{levels.train_loss:.4g}"
        return f"the loss is {val} on validation and {train} on training"
    return "validation is worse than training"


def _goes_by_loss(recipe: Recipe | None) -> bool:
    return recipe is not None and recipe.stopping.monitor is Monitor.VAL_LOSS


def _is_plain(recipe: Recipe | None) -> bool:
    return recipe is not None and recipe.augment == AugmentConfig()


def _first(fit: Fit) -> str:
    return fit.evidence[0] if fit.evidence else "training is not stable"
