"""The intended checkpoint is kept: the best by the monitored metric, or the last."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from stepladder.checks.contract import Answer, Check, Tier, found, passed
from stepladder.checks.examples import Example, SoundPictures, sound_recipe
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Monitor, Split
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import ArrivalSource
from stepladder.records.findings import Severity
from stepladder.task.contract import Metrics

_MANY = 300  # examples: with fewer, differences below 3 points are not significant


def checkpoint_keeping(job: CheckedJob) -> Answer:
    """Compare the checkpoints that are kept with what is known at that time."""
    stopping, run = job.recipe.stopping, job.config.run
    kept = (
        f"the run is configured to keep its {run.keep_last} newest checkpoints and the "
        f"{run.save_top_k} with the best {stopping.monitor}, and to give the final model its "
        f"{'best' if stopping.restore_best else 'last'} weights"
    )
    if job.sources.val is None:
        if not stopping.restore_best:
            return passed(f"{kept}; there is no validation split")
        return found(
            "wrong_checkpoint_kept",
            f"{kept}; but without a validation split it is unknown which weights are best, so the "
            "final model will have the last ones",
            fix="Add a validation split; or, if the last weights are what you want: "
            "--stopping.no-restore-best",
        )
    num_validations = _num_validations(job)
    if num_validations < 1 and stopping.restore_best:
        return found(
            "wrong_checkpoint_kept",
            f"{kept}; but the training ends before its first validation, so it is unknown which "
            "weights are best, and the final model will have the last ones",
            fix="Validate earlier, with a smaller --stopping.validate-every-epochs (or -steps), or "
            "train for more epochs.",
            num_validations=num_validations,
        )
    num_val = len(job.sources.val)
    if stopping.early and not stopping.restore_best and num_val >= _MANY:
        plural = "" if stopping.patience == 1 else "s"
        return found(
            "wrong_checkpoint_kept",
            f"{kept}; but early stopping ends the training {stopping.patience} "
            f"validation{plural} after the best one, so the final model will be worse than the "
            f"best one. With {num_val:,} validation examples the difference is more than noise",
            fix="Give the final model the best weights: --stopping.restore-best",
            num_val=num_val,
        )
    if stopping.monitor is Monitor.VAL_ACCURACY and not _has_class_scores(job):
        return found(
            "wrong_checkpoint_kept",
            f"{kept}; but metrics() of the Task returns no class scores, so there is no accuracy, "
            "and the best checkpoints will be those with the lowest val_loss",
            fix="Return class scores of shape (n, C) as `outputs` of Metrics; or, if val_loss is "
            "what you want: --stopping.monitor val_loss",
        )
    plural = "" if num_validations == 1 else "s"
    return passed(f"{kept}; at most {num_validations:.4g} validation{plural}")


def _num_validations(job: CheckedJob) -> float:
    """Count the validations of the training without early stopping."""
    recipe = job.recipe
    num_train = max(1, round(len(job.sources.train) * recipe.data.fraction))
    per_epoch = -(-num_train // recipe.batch.global_batch_size)
    steps = recipe.schedule.max_epochs * per_epoch
    steps = min(steps, recipe.schedule.max_steps or steps)
    every = recipe.stopping.validate_every_steps
    return steps // (every or per_epoch * recipe.stopping.validate_every_epochs)


def _has_class_scores(job: CheckedJob) -> bool:
    """Return True if metrics() returns class scores, which accuracy needs."""
    if isinstance(job.sources.val, ArrivalSource):
        return True  # reading it would use it up
    batch = next(iter(job.held_out_batches(Split.VAL, 1)))
    model = job.model().eval()
    with torch.no_grad(), job.autocast():
        outputs = job.task.metrics(model, batch).outputs
    return outputs is not None and outputs.dim() == 2


def broken() -> Example:
    """The monitored metric is accuracy, but metrics() returns only the loss."""

    class LossOnly(SoundPictures):
        def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
            return Metrics(losses=self.loss(model, batch))

    recipe = sound_recipe()
    stopping = replace(recipe.stopping, monitor=Monitor.VAL_ACCURACY)
    return Example(task=LossOnly(), recipe=replace(recipe, stopping=stopping))


CHECK = Check(
    name="checkpoint_keeping",
    reason="If the last weights are deployed instead of the best, or the best by another metric, "
    "the deployed model is not the one that was evaluated.",
    source="Keras #12511, #20323: best weights not restored, or those of another epoch",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("wrong_checkpoint_kept",),
    run=checkpoint_keeping,
    broken=broken,
)
