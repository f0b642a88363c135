"""Each trainable weight gets a gradient, and each weight with a gradient is in the model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.one_pass import look, own_pair, seeing_modules
from stepladder.checks.evidence.sample import training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.checks.wording import listed
from stepladder.config.choices import Precision
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.measuring.probe import untouched
from stepladder.records.findings import Severity
from stepladder.training.setup.build import make_model
from stepladder.training.stage import enter_stage, stages_of

NUM_EXAMPLES = 16
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.RNNBase)
Named = list[tuple[str, nn.Parameter]]


def gradients_reach(job: CheckedJob) -> Answer:
    """Follow the graph of a loss to the weights that it depends on."""
    batch = training_sample(job, NUM_EXAMPLES)
    job, model = own_pair(job)
    versions = {id(weight): weight._version for weight in model.parameters()}
    with seeing_modules() as called:
        losses = look(job, model, batch, has_graph=True).losses
    learning = [(name, w) for name, w in model.named_parameters() if w.requires_grad]
    if not losses.requires_grad:
        return _without_graph(learning)
    reached = {id(leaf): leaf for leaf in leaves_of(losses)}
    lost = _lost_gradients(job, losses, learning)  # before _matter changes weights
    answer = _strangers(job, model, reached, called)
    if answer is not None:
        return answer
    missing = [
        (name, weight)
        for name, weight in learning
        if id(weight) not in reached and weight._version == versions.get(id(weight), -1)
    ]
    missing = [pair for pair in missing if not _is_copy(pair[1], model)]
    if missing and _matter(job, model, batch, [weight for _, weight in missing]):
        return _cut_off(missing, called)
    frozen = _frozen_at_random(job, model)
    if frozen:
        return found(
            "frozen_by_accident",
            f"{len(frozen)} weights are frozen with random initial values: {_listed(frozen)}",
            fix="Train them (requires_grad_(True)). If random features are intended, return trunk "
            "and head from split() and use --train head.",
            severity=Severity.WARNING,
            names=[name for name, _ in frozen],
        )
    if lost:
        return found(
            "loss_not_finite",
            f"the loss is finite, but the gradient of {len(lost)} of {len(learning)} weights is "
            f"not: {_listed(lost)}",
            fix="Check for sqrt, norm or power of 0, and for a where() that hides a NaN; "
            "torch.autograd.set_detect_anomaly(True) finds the line.",
            names=[name for name, _ in lost],
        )
    unused = f"; it does not depend on {len(missing)}: {_listed(missing)}" if missing else ""
    num = len(learning) - len(missing)
    return passed(
        f"{num} of {len(learning)} weights get a gradient from the loss{unused}", reached=num
    )


def _lost_gradients(job: CheckedJob, losses: Tensor, learning: Named) -> Named:
    """Return weights with a NaN or infinite gradient; none in fp16, which skips such steps."""
    if job.recipe.device.precision in (Precision.FP16, Precision.FP16_MASTER):
        return []
    weights = [weight for _, weight in learning]
    if not weights:
        return []
    grads = torch.autograd.grad(losses.mean(), weights, allow_unused=True)
    return [
        pair
        for pair, grad in zip(learning, grads, strict=True)
        if grad is not None and not bool(torch.isfinite(_values(grad)).all())
    ]


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def leaves_of(losses: Tensor) -> Iterator[Tensor]:
    """Yield the leaves of the graph of a tensor."""
    waiting, seen = [losses.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            yield leaf
        waiting.extend(parent for parent, _ in node.next_functions)


def _without_graph(learning: Named) -> Answer:
    if not learning:
        return not_applicable("the model has no trainable weights")
    return found(
        "frozen_by_accident",
        f"the loss has no gradient: none of {len(learning)} weights is trained",
        fix="Check for no_grad, detach, .data, .item() or argmax between model and loss.",
    )


# --- weights with a gradient that are not in the model


def _strangers(
    job: CheckedJob, model: nn.Module, reached: Mapping[int, Tensor], called: Iterable[nn.Module]
) -> Answer | None:
    known = {id(weight) for weight in model.parameters()}
    own_optimizers = [v for v in vars(job.task).values() if isinstance(v, torch.optim.Optimizer)]
    known |= {id(w) for o in own_optimizers for g in o.param_groups for w in g["params"]}
    strangers = {key: leaf for key, leaf in reached.items() if key not in known}
    if not strangers:
        return None
    inside = {id(module) for module in model.modules()}
    of_task = {id(module) for module in _modules_in(vars(job.task).values())}
    of_layers = {
        id(weight): module
        for module in called
        if id(module) not in inside
        for weight in module.parameters(recurse=False)
    }
    hidden = [of_layers[key] for key in strangers if key in of_layers]
    if any(id(module) in of_task for module in hidden) or _held_by(job.task, strangers):
        return found(
            "parameters_not_in_optimizer",
            f"{len(strangers)} weights in the loss belong to the Task, not to the model, so the "
            "optimizer does not have them",
            fix="Create them in build_model, as part of the model that it returns.",
            num=len(strangers),
        )
    held = any(_held_by(module, strangers) for module in model.modules())
    if not hidden and not held:
        return None  # temporary, such as inputs that require a gradient
    names = sorted({type(module).__name__ for module in hidden}) or ["tensors"]
    return found(
        "unregistered_modules",
        f"{len(strangers)} weights of {', '.join(names)} are used but not registered in the model: "
        "they are neither trained nor saved",
        fix="Use nn.ModuleList or nn.ModuleDict for layers, nn.ParameterList for weights.",
        num=len(strangers),
    )


def _held_by(holder: object, strangers: Mapping[int, Tensor]) -> bool:
    return any(id(tensor) in strangers for tensor in _tensors_in(vars(holder).values()))


def _tensors_in(values: Iterable[Any], depth: int = 2) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif depth and isinstance(value, (list, tuple)):
            yield from _tensors_in(value, depth - 1)
        elif depth and isinstance(value, dict):
            yield from _tensors_in(value.values(), depth - 1)


def _modules_in(values: Iterable[Any]) -> Iterator[nn.Module]:
    for value in values:
        if isinstance(value, nn.Module):
            yield from value.modules()
        elif isinstance(value, (list, tuple)):
            yield from _modules_in(value)
        elif isinstance(value, dict):
            yield from _modules_in(value.values())


# --- trainable weights without a gradient


def _cut_off(missing: Named, called: Mapping[nn.Module, bool]) -> Answer:
    owners = {id(w): m for m in called for w in m.parameters(recurse=False)}
    without = [(name, w) for name, w in missing if id(w) in owners and not called[owners[id(w)]]]
    is_meant = len(without) == len(missing)
    how = "as they are used under no_grad" if is_meant else "because of detach, .data or similar"
    return found(
        "frozen_by_accident",
        f"the loss depends on {len(missing)} weights that get no gradient, {how}: "
        f"{_listed(missing)}",
        fix="Remove no_grad. If they should not be trained, use requires_grad_(False)."
        if is_meant
        else "Remove detach (or .data, .numpy(), torch.tensor(...)) between weights and loss.",
        severity=Severity.WARNING if is_meant else None,
        names=[name for name, _ in missing],
    )


def _matter(job: CheckedJob, model: nn.Module, batch: Batch, weights: list[nn.Parameter]) -> bool:
    """Return True if the loss changes with some weights; unused branches do not matter."""
    before = look(job, model, batch).losses
    with untouched(model), torch.no_grad():
        torch.manual_seed(1)
        for weight in weights:
            scale = float(weight.float().std()) if weight.numel() > 1 else 0.0
            weight.add_(torch.randn_like(weight) * (scale or 0.1))
        after = look(job, model, batch).losses
    return not torch.equal(before, after)


def _is_copy(weight: nn.Parameter, model: nn.Module) -> bool:
    """Return True if another weight has the same initial values, as in a teacher model."""
    if weight.dim() < 2:
        others = [w for w in model.parameters() if w is not weight and w.shape == weight.shape]
        return bool(others) and any(torch.equal(w, weight) for w in others) and _has_twin(model)
    return any(
        w is not weight and w.shape == weight.shape and torch.equal(w, weight)
        for w in model.parameters()
    )


def _has_twin(model: nn.Module) -> bool:
    matrices = [w for w in model.parameters() if w.dim() >= 2 and float(w.detach().std()) > 0]
    return any(
        a.shape == b.shape and torch.equal(a, b)
        for idx, a in enumerate(matrices)
        for b in matrices[idx + 1 :]
    )


def _frozen_at_random(job: CheckedJob, model: nn.Module) -> Named:
    """Return frozen weights that depend on the seed, so they are random and not loaded."""
    parts = job.task.split(model)
    trunk = set() if parts is None else {id(weight) for weight in parts[0].parameters()}
    suspects = [
        (f"{prefix}.{name}" if prefix else name, weight)
        for prefix, module in model.named_modules()
        if isinstance(module, _LAYERS)
        for name, weight in module.named_parameters(recurse=False)
        if not weight.requires_grad and weight.dim() >= 2 and id(weight) not in trunk
    ]
    suspects = [pair for pair in suspects if not _is_copy(pair[1], model)]
    if not suspects:
        return []
    recipe = replace(job.recipe, seed=job.recipe.seed + 1)
    with untouched():
        task = copy.copy(job.task)
        other = make_model(recipe, task, job.device)
        enter_stage(stages_of(recipe.train, recipe.batch)[0], task, other)
    drawn = dict(other.named_parameters())
    return [
        (name, weight)
        for name, weight in suspects
        if name in drawn and not torch.equal(drawn[name], weight)
    ]


def _listed(pairs: Named) -> str:
    return listed(name for name, _ in pairs)


def broken() -> Example:
    """A trunk whose features are detached before the head."""

    class Cut(nn.Module):
        def __init__(self, layers: nn.Sequential) -> None:
            super().__init__()
            self.trunk, self.head = layers[:-1], layers[-1]

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.trunk(x).detach())
            return scores

    class Detached(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            assert isinstance(model, nn.Sequential)
            return Cut(model)

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    return Example(task=Detached())


CHECK = Check(
    name="gradients_reach",
    reason="Weights without a gradient, or that are not in the optimizer, keep their random "
    "values; the rest is trained without any error.",
    source="PyTorch, documentation of nn.ModuleList and of autograd mechanics; TrainCheck (Jiang "
    "et al. 2025, OSDI)",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=(
        "frozen_by_accident",
        "unregistered_modules",
        "parameters_not_in_optimizer",
        "loss_not_finite",
    ),
    run=gradients_reach,
    broken=broken,
    needs_loss=True,
)
