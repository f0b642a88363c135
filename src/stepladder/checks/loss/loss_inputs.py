"""The input of a loss is what it expects: logits, log-probabilities or probabilities."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.loss_calls import LossCall
from stepladder.checks.evidence.one_pass import Pass, dim_of, is_same, look, result_of
from stepladder.checks.evidence.sample import training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.recipe import Recipe
from stepladder.records.findings import Severity

NUM_EXAMPLES = 16
SUM_TOLERANCE = 1e-3  # from 1, for rows of a softmax in 16 bits
LEAST_COLUMNS = 10  # so many biases are not all positive by chance
OFF_NORMAL = 0.05  # logsumexp of log-probabilities is 0; of logits about ln C
_WITH_SOFTMAX = ("cross_entropy", "log_softmax")
_OWN_DIM = "Use the class dimension: dim=1 for scores of shape (n, C)."


@dataclass(frozen=True)
class _Fault:
    name: str
    evidence: str
    fix: str
    severity: Severity | None = None


def loss_inputs(job: CheckedJob) -> Answer:
    """Check the inputs of the losses in one forward pass."""
    batch = training_sample(job, NUM_EXAMPLES)
    seen = look(job, job.model(), batch)
    losses = [call for call in seen.calls if call.is_loss or call.name == "log_softmax"]
    if not seen.calls:
        return not_applicable("the loss does not call a loss function, softmax or sigmoid of torch")
    num = batch.ids.numel()
    for idx, call in enumerate(seen.calls):
        fault = _fault(seen, idx, call, num)
        if fault is not None:
            return found(
                fault.name,
                fault.evidence,
                fix=fault.fix,
                severity=fault.severity,
                coverage=f"{num} training examples",
                function=call.name,
                shape=list(call.scores.shape),
            )
    names = sorted({call.name for call in losses})
    what = " and ".join(names) if names else "the softmax or sigmoid"
    return passed(f"the input of {what} is as expected", coverage=f"{num} training examples")


def _fault(seen: Pass, idx: int, call: LossCall, num: int) -> _Fault | None:
    if not call.scores.is_floating_point() or call.scores.numel() == 0:
        return None
    before = seen.calls[:idx]
    scores = call.scores.float()
    if not call.is_loss and _is_over_batch(seen, call, num):
        what = f"{call.name} is over dimension 0 of {tuple(call.scores.shape)}, which is the batch"
        return _Fault("softmax_wrong_dim", what, _OWN_DIM)
    if call.name in _WITH_SOFTMAX:
        return _of_softmax_loss(call, scores, before, num)
    if call.name == "nll_loss":
        return _of_nll(scores, num)
    if call.name == "binary_cross_entropy_with_logits":
        return _of_binary(scores, before)
    return None


def _is_over_batch(seen: Pass, call: LossCall, num: int) -> bool:
    """Return True if a softmax over the batch is the model's output, or is applied to it."""
    if call.name == "sigmoid" or call.scores.dim() != 2 or dim_of(call) != 0:
        return False
    columns = call.scores.shape[1]
    if call.scores.shape[0] != num or columns in (1, num) or num < 2:
        return False  # weights over a set, or similarities of all pairs
    users = [other.scores for other in seen.calls if other.is_loss]
    if seen.outputs is not None:
        users.append(seen.outputs)
    result = result_of(call)
    return any(is_same(result, user) or is_same(call.scores, user) for user in users)


def _of_softmax_loss(
    call: LossCall, scores: Tensor, before: list[LossCall], num: int
) -> _Fault | None:
    if scores.dim() < 2 or scores.shape[1] < 2:
        return None
    dim = 1 if call.name == "cross_entropy" else dim_of(call)
    fix = "Pass logits to the loss: remove the softmax or sigmoid from the model, and apply it "
    fix += "only where probabilities are needed."
    if _are_shares(scores, dim):
        what = f"the input of {call.name} is probabilities: each row is in [0, 1] and sums to 1"
        return _Fault("softmax_before_loss", what, fix)
    if _is_made_by(before, scores, ("sigmoid",)):
        return _Fault("softmax_before_loss", f"the input of {call.name} is a sigmoid", fix)
    if _is_over_examples(scores, num):
        what = f"the input of {call.name} sums to 1 over the batch"
        return _Fault("softmax_wrong_dim", what, _OWN_DIM)
    if _lies_inside(scores):
        what = f"all {scores.numel()} scores passed to {call.name} are between 0 and 1"
        return _Fault("softmax_before_loss", what, fix, Severity.WARNING)
    return None


def _of_nll(scores: Tensor, num: int) -> _Fault | None:
    if scores.dim() < 2 or scores.shape[1] < 2:
        return None
    off = scores.logsumexp(1)
    is_normal = float(off.abs().median()) < OFF_NORMAL
    if is_normal:
        return None
    if num > 2 and scores.dim() == 2 and float(scores.logsumexp(0).abs().max()) < OFF_NORMAL:
        what = "the input of nll_loss is log-probabilities that are normalised over the batch"
        return _Fault("softmax_wrong_dim", what, _OWN_DIM)
    kind = "probabilities" if _are_shares(scores, 1) else "logits"
    what = (
        f"the input of nll_loss is {kind}, not log-probabilities: logsumexp of a row is "
        f"{float(off.median()):.2f} instead of 0"
    )
    fix = "Use cross_entropy on logits, or log_softmax(scores, dim=1) before nll_loss."
    return _Fault("nll_without_log_softmax", what, fix)


def _of_binary(scores: Tensor, before: list[LossCall]) -> _Fault | None:
    fix = "Pass logits to the loss, or use binary_cross_entropy on probabilities."
    name = "binary_cross_entropy_with_logits"
    if _is_made_by(before, scores, ("sigmoid", "softmax")):
        return _Fault("softmax_before_loss", f"the input of {name} is a sigmoid", fix)
    if scores.dim() == 2 and scores.shape[1] > 1 and _are_shares(scores, 1):
        return _Fault("softmax_before_loss", f"the input of {name} is a softmax", fix)
    if _lies_inside(scores):
        what = f"all {scores.numel()} scores passed to {name} are between 0 and 1"
        return _Fault("softmax_before_loss", what, fix, Severity.WARNING)
    return None


def _are_shares(scores: Tensor, dim: int) -> bool:
    is_inside = bool((scores >= 0).all()) and bool((scores <= 1 + SUM_TOLERANCE).all())
    return is_inside and float((scores.sum(dim) - 1).abs().max()) < SUM_TOLERANCE


def _is_over_examples(scores: Tensor, num: int) -> bool:
    is_square = scores.shape[0] == scores.shape[1]
    return scores.dim() == 2 and num > 2 and not is_square and _are_shares(scores, 0)


def _lies_inside(scores: Tensor) -> bool:
    """Return True if all scores are in (0, 1) and differ; a ReLU would give exact zeros."""
    if scores.dim() < 2 or scores.shape[1] < LEAST_COLUMNS:
        return False
    is_inside = bool((scores > 0).all()) and bool((scores < 1).all())
    return is_inside and float(scores.std()) > 0


def _is_made_by(before: list[LossCall], scores: Tensor, names: tuple[str, ...]) -> bool:
    return any(
        call.name in names
        and call.scores.numel() == scores.numel()
        and is_same(result_of(call).reshape(scores.shape), scores)
        for call in before
    )


def broken() -> Example:
    """A model that ends in a softmax, with a cross-entropy that applies its own."""

    class Twice(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return nn.Sequential(super().build_model(recipe), nn.Softmax(dim=1))

    return Example(task=Twice())


CHECK = Check(
    name="loss_inputs",
    reason="With probabilities instead of logits, or the reverse, training works but stalls far "
    "above the loss that the model could reach.",
    source="Karpathy 2018, most common neural net mistakes; PyTorch, documentation of "
    "CrossEntropyLoss, NLLLoss and BCEWithLogitsLoss",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("softmax_before_loss", "nll_without_log_softmax", "softmax_wrong_dim"),
    run=loss_inputs,
    broken=broken,
)
