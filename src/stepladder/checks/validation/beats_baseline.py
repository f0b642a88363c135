"""A short training generalises to held-out examples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.one_pass import look
from stepladder.checks.evidence.practice import practise
from stepladder.checks.evidence.sample import example_seconds
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity
from stepladder.training.output.wording import percent

MAX_TRAIN, LEAST_TRAIN = 512, 100
MAX_VAL, LEAST_VAL = 512, 100
PASS_S = 3.0  # seconds for one forward pass over the training examples
BUDGET_S = 8.0
NUM_STEPS = 2000
FIRST_LOOK = 25  # steps until the first validation; then doubled each time
LEARNT = 0.9  # accuracy on the training examples it was trained on
Z = 1.645  # one-sided 95 %: below it, a recall above chance may be chance
MAX_SEM = 0.05  # of the mean recall; with more, the result is undecided


@dataclass(frozen=True)
class _Recall:
    """Mean recall over classes, its standard error, and its value by chance."""

    mean: float
    sem: float
    chance: float

    @property
    def z(self) -> float:
        return (self.mean - self.chance) / max(self.sem, 1e-9)


def beats_baseline(job: CheckedJob) -> Answer:
    """Train on a few examples, and validate on the way."""
    if job.num_classes is None or job.source(Split.VAL) is None:
        return not_applicable("there is no validation split, or no cross-entropy over classes")
    num_val = len(job.source(Split.VAL) or ())
    if num_val < LEAST_VAL:
        return not_applicable(f"{num_val} validation examples are too few")
    num_train = min(MAX_TRAIN, int(PASS_S / example_seconds(job)), len(job.sources.train))
    if num_train < LEAST_TRAIN:
        return not_applicable("forward passes take too long to train on enough examples")
    batches = [job.augmented(batch) for batch in job.train_batches(_num(job, num_train))]
    held_out = _held_out(job, min(MAX_VAL, max(LEAST_VAL, num_train)))
    looks: list[_Recall] = []

    def is_enough(model: nn.Module, step: int) -> bool:
        times = step / FIRST_LOOK
        if times < 1 or math.log2(times) % 1:
            return False
        recall = _recall(job, model, held_out)
        if recall is not None:
            looks.append(recall)
        return recall is not None and recall.z > 2 * Z

    budget_s = min(BUDGET_S, 0.2 * job.left_s())
    course = practise(
        job, batches, num_steps=NUM_STEPS, budget_s=budget_s, goal=0.02, is_enough=is_enough
    )
    return _judge(course.accuracy, looks, sum(batch.ids.numel() for batch in batches))


def _judge(accuracy: float | None, looks: list[_Recall], num_train: int) -> Answer:
    if not looks:
        return not_applicable("there was no time for a step, or outputs are not class scores")
    best = max(looks, key=lambda recall: recall.z)
    said = (
        f"balanced accuracy on validation is {percent(best.mean)} ± {percent(best.sem)}; by chance "
        f"it would be {percent(best.chance)}"
    )
    numbers = {"recall": best.mean, "sem": best.sem, "chance": best.chance}
    seen = f"{num_train} training examples"
    if best.z > Z:
        return passed(f"after training on {num_train} examples, {said}", coverage=seen, **numbers)
    if best.sem > MAX_SEM or accuracy is None or accuracy < LEARNT:
        return not_applicable(
            f"{said}: the model learned too little in this time, or there are too few examples"
        )
    return found(
        "no_better_than_baseline",
        f"accuracy on {num_train} training examples is {percent(accuracy, 0)}, but {said}",
        fix="Check the model's inputs and labels: the crop or the columns may not contain what "
        "the labels depend on.",
        coverage=seen,
        recall=best.mean,
        sem=best.sem,
        chance=best.chance,
        accuracy=accuracy,
    )


def _num(job: CheckedJob, num_train: int) -> int:
    return max(1, num_train // job.recipe.batch.global_batch_size)


def _held_out(job: CheckedJob, num: int) -> list[Batch]:
    batches: list[Batch] = []
    for batch in job.held_out_batches(Split.VAL):
        batches.append(batch)
        if sum(one.ids.numel() for one in batches) >= num:
            break
    return batches


def _recall(job: CheckedJob, model: nn.Module, batches: list[Batch]) -> _Recall | None:
    flags = {module: module.training for module in model.modules()}
    model.eval()
    try:
        outputs = [look(job, model, batch).outputs for batch in batches]
    finally:
        for module, is_training in flags.items():
            module.training = is_training
    targets = [batch.targets for batch in batches]
    scores = [one for one in outputs if one is not None and one.dim() == 2]
    if len(scores) < len(batches) or not all(isinstance(t, Tensor) for t in targets):
        return None
    wanted = torch.cat(targets).cpu()
    if wanted.dim() != 1 or wanted.is_floating_point():
        return None
    hits = (torch.cat(scores).argmax(1).cpu() == wanted).double()
    num_classes = scores[0].shape[1]
    counts = torch.bincount(wanted, minlength=num_classes).double()
    seen = counts > 0
    recalls = torch.bincount(wanted, weights=hits, minlength=num_classes)[seen] / counts[seen]
    chance = 1 / len(recalls)
    spread = torch.full_like(recalls, chance * (1 - chance))  # by chance: never 0
    sem = float((spread / counts[seen]).sum().sqrt()) / len(recalls)
    return _Recall(float(recalls.mean()), sem, chance) if len(recalls) > 1 else None


def broken() -> Example:
    """Pictures of noise, with labels that have nothing to do with them."""

    class Nothing(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            pictures, labels = draw(split)
            noise = torch.Generator().manual_seed(60 + list(Split).index(split))
            return labelled(torch.randn(pictures.shape, generator=noise), labels)

    return Example(task=Nothing())


CHECK = Check(
    name="beats_baseline",
    reason="If a model memorises its training examples and is at chance on others, its inputs do "
    "not determine the classes.",
    source="Karpathy 2019, A Recipe for Training Neural Networks: baselines; mean recall is 1/C "
    "for any guess, however unequal the classes",
    severity=Severity.WARNING,
    tier=Tier.FULL,
    faults=("no_better_than_baseline",),
    run=beats_baseline,
    broken=broken,
    least_s=5.0,
    needs_loss=True,
)
