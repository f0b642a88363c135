"""The loss falls as outputs approach their targets, and along its negative gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.one_pass import look
from stepladder.checks.evidence.sample import training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.data.batch import Batch
from stepladder.measuring.probe import untouched
from stepladder.records.findings import Severity
from stepladder.training.output.wording import percent

NUM_EXAMPLES = 16
LEAST_EXAMPLES = 8
WRONG_FRAC = 0.9  # of examples; for embeddings, or outputs of another kind, about a half
STEPS = (1e-2, 3e-3, 1e-3)  # fraction of the loss that a step should remove, by its gradient
AGAINST = -0.5  # of that: how much the loss must rise instead, for each step size
_FIX = "Flip the sign of the loss: minimise the negative log-likelihood or the error."


def loss_sign(job: CheckedJob) -> Answer:
    """Check that the loss pulls outputs towards their targets, and that a small step lowers it."""
    batch = training_sample(job, NUM_EXAMPLES)
    seen_text = f"{batch.ids.numel()} training examples"
    model = job.model().eval()
    share = _wrong_frac(job, model, batch)
    if share is not None and share >= WRONG_FRAC:
        return found(
            "loss_maximised",
            f"for {percent(share, 0)} of the examples, the loss falls as the output moves away "
            "from its target",
            fix=_FIX,
            coverage=seen_text,
            wrong_frac=share,
        )
    slopes = _slopes(job, model, batch)
    if slopes and max(slopes) <= AGAINST:
        return found(
            "loss_maximised",
            "small steps along the negative gradient raise the loss instead of lowering it, by at "
            f"least {-max(slopes):.2f} times the expected decrease",
            fix="Check custom backward functions and hooks for a flipped sign.",
            coverage=seen_text,
            slopes=[*slopes],
        )
    if share is None and not slopes:
        return not_applicable(
            "outputs cannot be compared with targets, and no weight has a gradient"
        )
    if share is None:
        said = "outputs cannot be compared with targets; a small step lowers the loss by"
    else:
        pulled = percent(1 - share, 0)
        said = f"{pulled} of outputs are pulled to their targets; a small step lowers the loss by"
    first = f"{slopes[-1]:.2f}" if slopes else "an unknown fraction"
    return passed(
        f"{said} {first} of the decrease predicted by its gradient",
        coverage=seen_text,
        wrong_frac=share,
        slopes=[*slopes],
    )


def _wrong_frac(job: CheckedJob, model: nn.Module, batch: Batch) -> float | None:
    """Return the fraction of examples whose output is pushed away from its target, or None."""
    targets = batch.targets
    if not isinstance(targets, Tensor) or batch.ids.numel() < LEAST_EXAMPLES:
        return None
    seen = look(job, model, batch, has_graph=True)
    outputs = seen.outputs
    if outputs is None or not outputs.requires_grad or not seen.losses.requires_grad:
        return None
    pull = torch.autograd.grad(seen.losses.sum(), outputs, allow_unused=True)[0]
    if pull is None:
        return None
    return _share_away(outputs.detach().float(), pull.float(), targets)


def _share_away(outputs: Tensor, pull: Tensor, targets: Tensor) -> float | None:
    num = len(outputs)
    is_class = not targets.is_floating_point() and targets.shape == (num,)
    if outputs.dim() == 2 and outputs.shape[1] > 1 and is_class:
        is_inside = int(targets.min()) >= 0 and int(targets.max()) < outputs.shape[1]
        if not is_inside:
            return None
        own = pull.gather(1, targets.unsqueeze(1)).squeeze(
            1
        )  # (n,), negative if the score is raised
        return float((own > 0).float().mean())
    if outputs.numel() != targets.numel():
        return None
    wanted = targets.reshape(outputs.shape).float()
    values = outputs
    is_binary = bool(((wanted == 0) | (wanted == 1)).all())
    if is_binary and bool(((outputs < 0) | (outputs > 1)).any()):
        values = outputs.sigmoid()  # binary logits
    along = (
        (pull * (values - wanted)).reshape(num, -1).sum(1)
    )  # (n,), positive if the distance is lowered
    return float((along < 0).float().mean())


def _slopes(job: CheckedJob, model: nn.Module, batch: Batch) -> list[float]:
    """Return the actual over the predicted decrease of the loss for each small step."""
    seen = look(job, model, batch, has_graph=True)
    if not seen.losses.requires_grad:
        return []
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    total = seen.losses.double().mean()
    grads = torch.autograd.grad(total, weights, allow_unused=True)
    pairs = [(w, g) for w, g in zip(weights, grads, strict=True) if g is not None]
    square = sum(float(grad.double().square().sum()) for _, grad in pairs)
    start = float(total.detach())
    if not pairs or not 1e-20 < square < float("inf") or start == 0:
        return []
    kept = []
    with untouched(model), torch.no_grad():
        before = [weight.clone() for weight, _ in pairs]
        for share in STEPS:
            for (weight, grad), old in zip(pairs, before, strict=True):
                weight.copy_(old - share * abs(start) / square * grad)
            now = float(look(job, model, batch).losses.double().mean())
            kept.append((start - now) / (share * abs(start)))
    return kept


def broken() -> Example:
    """The log-likelihood instead of its negative."""

    class Likelihood(SoundPictures):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            shares = F.log_softmax(model(batch.inputs), dim=1)
            return shares.gather(1, batch.targets.unsqueeze(1)).squeeze(1)

    return Example(task=Likelihood())


CHECK = Check(
    name="loss_sign",
    reason="With the wrong sign, training runs without errors but makes the model worse.",
    source="Armijo 1966, Minimization of functions having Lipschitz continuous first partial "
    "derivatives: a small step along the negative gradient lowers the function",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("loss_maximised",),
    run=loss_sign,
    broken=broken,
    needs_loss=True,
)
