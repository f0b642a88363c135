"""Targets have the shape and the kind that the loss expects."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.loss_calls import LossCall
from stepladder.checks.evidence.one_pass import Pass, is_same, look, result_of
from stepladder.checks.evidence.sample import training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity
from stepladder.training.output.wording import percent

NUM_EXAMPLES = 16
LEAST_EXAMPLES = 4  # fewer are hard to permute
SAME = 1e-6  # of the loss: rounding of a sum in a different order
MOVED = 1e-4  # of the loss: different targets change it by more
SPREAD = 1e-3  # of the outputs, relative to their mean: equal outputs do not distinguish targets
MAX_CLASSES = 50  # integers from 0 to this look like classes
OUT_OF_REACH_FRAC = 0.1  # of targets outside the range of the last activation
_POINTWISE = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")
_BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")


@dataclass(frozen=True)
class _Fault:
    name: str
    evidence: str
    fix: str
    severity: Severity | None = None


def loss_targets(job: CheckedJob) -> Answer:
    """Compare shapes and kinds of outputs and targets, and permute the targets."""
    batch = training_sample(job, NUM_EXAMPLES)
    if not isinstance(batch.targets, Tensor):
        return not_applicable("targets are not a single tensor")
    model = job.model().eval()
    seen = look(job, model, batch)
    num = batch.ids.numel()
    fault = next(
        (f for call in seen.calls if (f := _of_call(call, batch.targets)) is not None), None
    )
    fault = fault or _of_own(seen, batch)
    fault = fault or _of_distance(seen, batch.targets) or _out_of_reach(seen, batch.targets)
    fault = fault or _broadcast(job, model, batch, seen)
    seen_text = f"{num} training examples"
    if fault is None:
        return passed("targets have the shape and kind that the loss expects", coverage=seen_text)
    return found(
        fault.name, fault.evidence, fix=fault.fix, severity=fault.severity, coverage=seen_text
    )


def _of_call(call: LossCall, targets: Tensor) -> _Fault | None:
    if not call.is_loss or call.targets is None:
        return None
    if call.name in _POINTWISE and call.scores.shape != call.targets.shape:
        return _shapes(call)
    if call.name in ("cross_entropy", "nll_loss"):
        return _of_classes(call, targets)
    if call.name in _BINARY:
        return _of_binary(call)
    return None


def _shapes(call: LossCall) -> _Fault | None:
    assert call.targets is not None
    scores, targets = tuple(call.scores.shape), tuple(call.targets.shape)
    shapes = call.scores.shape, call.targets.shape
    whole: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    if whole.numel() == max(call.scores.numel(), call.targets.numel()):
        return None  # one of them is repeated, no pairs are formed
    what = f"{call.name} broadcasts outputs of shape {scores} and targets of shape {targets} to "
    return _Fault(
        "target_broadcast",
        f"{what}{tuple(whole)}: each output is compared with each target",
        "Make both shapes equal: outputs.squeeze(1), or targets.unsqueeze(1).",
    )


def _of_classes(call: LossCall, targets: Tensor) -> _Fault | None:
    assert call.targets is not None
    wanted, scores = call.targets, call.scores
    if scores.dim() >= 2 and scores.shape[1] == 1 and scores.shape[0] > 1:
        return _Fault(
            "loss_kind_mismatch",
            f"{call.name} over a single class is always 0",
            "Use binary_cross_entropy_with_logits for two classes, mse_loss for regression.",
        )
    if wanted.shape == scores.shape:
        return _of_several(call.name, wanted)
    is_cut = targets.is_floating_point() and not wanted.is_floating_point()
    if is_cut and targets.numel() == wanted.numel():
        numbers = targets.reshape(wanted.shape)
        if bool((numbers.long() == wanted).all()) and bool((numbers != wanted).any()):
            return _Fault(
                "loss_kind_mismatch",
                f"{call.name} uses numbers such as {float(numbers.flatten()[0]):.3g}, truncated to "
                "integers, as classes",
                "Use a regression loss, such as mse_loss.",
            )
    return None


def _of_own(seen: Pass, batch: Batch) -> _Fault | None:
    """Find multi-hot targets that a custom loss multiplies with a log_softmax."""
    targets, inputs = batch.targets, batch.inputs
    if isinstance(inputs, Tensor) and inputs.shape == targets.shape:
        return None  # it reconstructs its input: usually counts of a multinomial
    for call in seen.calls:
        if call.name == "log_softmax" and call.scores.shape == targets.shape:
            fault = _of_several(call.name, targets)
            if fault is not None:
                return replace(
                    fault,
                    fix=f"{fault.fix} Ignore this for a multinomial likelihood.",
                    severity=Severity.WARNING,
                )
    return None


def _of_several(name: str, wanted: Tensor) -> _Fault | None:
    """Find multi-hot targets, for which a softmax is wrong."""
    if not wanted.is_floating_point() or wanted.dim() != 2:
        return None
    is_hot = bool(((wanted == 0) | (wanted == 1)).all())
    sums = wanted.sum(1)
    if not is_hot or not bool((sums > 1).any()):
        return None
    return _Fault(
        "loss_kind_mismatch",
        f"examples have several classes (up to {int(sums.max())}), but {name} assumes exactly one",
        "Use binary_cross_entropy_with_logits, with one output per class.",
    )


def _of_binary(call: LossCall) -> _Fault | None:
    assert call.targets is not None
    wanted = call.targets.float()
    outside = (wanted < 0) | (wanted > 1)
    if not bool(outside.any()):
        return None
    return _Fault(
        "loss_kind_mismatch",
        f"targets of {call.name} range from {float(wanted.min()):g} to {float(wanted.max()):g}; it "
        "expects 0 to 1",
        "Use cross_entropy for several classes, mse_loss for regression.",
    )


def _of_distance(seen: Pass, targets: Tensor) -> _Fault | None:
    """Find class numbers used as regression targets: integers 0, 1, 2 ... for a single output."""
    if targets.is_floating_point() or targets.dim() != 1 or targets.dtype is torch.bool:
        return None
    if seen.outputs is None or seen.outputs.numel() != targets.numel():
        return None
    if any(call.name in (*_BINARY, "cross_entropy", "nll_loss") for call in seen.calls):
        return None
    values = set(targets.tolist())
    top = max(values)
    if min(values) != 0 or not 2 <= top < MAX_CLASSES or len(values) < 3:
        return None
    return _Fault(
        "loss_kind_mismatch",
        f"integer targets from 0 to {top} look like classes, but are compared with a single output "
        f"as numbers: class {top} is {top} times as far from 0 as class 1",
        "Use cross_entropy with one output per class; for regression, use floating-point targets.",
        Severity.WARNING,
    )


def _out_of_reach(seen: Pass, targets: Tensor) -> _Fault | None:
    """Find targets outside the range of the model's last activation."""
    outputs = seen.outputs
    if outputs is None or not targets.is_floating_point() or outputs.numel() != targets.numel():
        return None
    if any(call.name in (*_BINARY, "kl_div", "cross_entropy") for call in seen.calls):
        return None
    calls = [call for call in seen.calls if call.name == "sigmoid"]
    results = [result_of(call) for call in calls if call.scores.numel() == outputs.numel()]
    is_sigmoid = any(is_same(result.reshape(outputs.shape), outputs) for result in results)
    is_relu = bool((outputs >= 0).all()) and float((outputs == 0).float().mean()) > 0.05
    low, high = (0.0, 1.0) if is_sigmoid else (0.0, float("inf"))
    share = float(((targets < low) | (targets > high)).float().mean())
    if not (is_sigmoid or is_relu) or share <= OUT_OF_REACH_FRAC:
        return None
    name = "a sigmoid (0 to 1)" if is_sigmoid else "a ReLU (0 or more)"
    return _Fault(
        "loss_kind_mismatch",
        f"the model ends in {name}, but {percent(share, 0)} of the targets are out of its range",
        "Remove the last activation, or scale the targets into its range.",
        Severity.WARNING,
    )


def _broadcast(job: CheckedJob, model: nn.Module, batch: Batch, seen: Pass) -> _Fault | None:
    """Permute targets: if the total loss is unchanged, each output is paired with each target."""
    num = batch.ids.numel()
    outputs, targets = seen.outputs, batch.targets
    assert isinstance(targets, Tensor)
    if outputs is None or num < LEAST_EXAMPLES or outputs.numel() != targets.numel():
        return None
    if outputs.shape == targets.shape or bool((targets == targets[:1]).all()):
        return None
    if float(outputs.float().std()) <= SPREAD * float(outputs.float().abs().mean()):
        return None
    total = float(seen.losses.double().sum())
    rolled = [targets.roll(shift, 0) for shift in range(1, LEAST_EXAMPLES)]
    totals = [float(_losses(job, model, batch, other).double().sum()) for other in rolled]
    changed = targets.clone()
    changed[0] = targets[_other_row(targets)]
    moved = abs(float(_losses(job, model, batch, changed).double().sum()) - total)
    scale = max(abs(total), 1e-12)
    if moved <= MOVED * scale or any(abs(other - total) > SAME * scale for other in totals):
        return None
    return _Fault(
        "target_broadcast",
        f"outputs have shape {tuple(outputs.shape)}, targets {tuple(targets.shape)}, and permuting "
        "the targets does not change the loss: each output is compared with each target",
        "Make both shapes equal: outputs.squeeze(1), or targets.unsqueeze(1).",
    )


def _losses(job: CheckedJob, model: nn.Module, batch: Batch, targets: Tensor) -> Tensor:
    return look(job, model, batch._replace(targets=targets)).losses


def _other_row(targets: Tensor) -> int:
    """Return the first row whose target differs from that of row 0."""
    differs = (targets != targets[:1]).reshape(len(targets), -1).any(1)
    return int(differs.float().argmax())


def broken() -> Example:
    """A regression whose outputs (n, 1) minus targets (n,) are (n, n)."""

    class Paired(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            assert isinstance(model, nn.Sequential)
            head = model[-1]
            assert isinstance(head, nn.Linear)
            model[-1] = nn.Linear(head.in_features, 1)
            return model

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            wanted = batch.targets.float() / 3 + torch.linspace(0, 0.1, len(batch.targets))
            return F.mse_loss(model(batch.inputs), wanted, reduction="none").mean(1)

    return Example(task=Paired())


CHECK = Check(
    name="loss_targets",
    reason="A loss that pairs each output with each target, or expects another kind of target, "
    "trains towards the wrong goal.",
    source="PyTorch, warning of mse_loss about broadcast; TheDeepChecker (Ben Braiek and Khomh "
    "2023, TOSEM)",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("target_broadcast", "loss_kind_mismatch"),
    run=loss_targets,
    broken=broken,
)
