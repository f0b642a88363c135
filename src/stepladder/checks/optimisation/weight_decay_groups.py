"""Weight decay applies to matrices and kernels, not to biases and norm scales."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.nn.parameter import is_lazy

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.loss_calls import EachCall
from stepladder.checks.evidence.sample import tensors_of, training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.checks.wording import listed
from stepladder.data.batch import Batch
from stepladder.measuring.probe import untouched
from stepladder.optim.contract import Decay
from stepladder.optim.table import spec_of
from stepladder.records.findings import Severity

LARGE_L2 = 0.005  # 0.01 is usual for AdamW's decoupled decay; Adam's usual L2 is 1e-5 to 1e-4
_NUM_EXAMPLES = 4
_BY_CHANNEL = frozenset(  # operations on a scale or a shift
    {"mul", "add", "sub", "div", "rsub", "addcmul", "addcdiv", "multiply", "subtract", "lerp"}
)
_LOOKS = frozenset({"shape", "dtype", "device", "dim", "size", "numel", "requires_grad"})
_WITH_MATRICES = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.MultiheadAttention,
    nn.RNNBase,
    ConvNd,
)
_SQUARES = {
    torch.square,
    Tensor.square,
    torch.pow,
    Tensor.pow,
    Tensor.__pow__,
    torch.norm,
    Tensor.norm,
    torch.linalg.norm,
    torch.linalg.vector_norm,
    torch.abs,
    Tensor.abs,
}


def weight_decay_groups(job: CheckedJob) -> Answer:
    """Check which weights the optimizer decays, and which the loss penalises."""
    model = _with_shapes(job)
    if model is None:
        return not_applicable("some weights have no shape even after a forward pass")
    optimizer = job.recipe.optimizer
    decay = optimizer.weight_decay
    penalised = _penalised_in_loss(job, model)
    if penalised:
        return found(
            "decay_on_norms_and_biases",
            f"the loss penalises {len(penalised)} biases and norm scales as well, such as "
            f"{penalised[0]}",
            fix="Exclude one-dimensional weights from the penalty: `if w.dim() > 1`.",
            num=len(penalised),
        )
    if decay == 0:
        return not_applicable("weight decay is 0")
    vectors = _vectors(job, model)
    spec = spec_of(optimizer.name)
    if spec.decay is Decay.L2 and spec.is_scale_free:
        large = decay >= LARGE_L2
        return found(
            "decay_on_norms_and_biases",
            f"{spec.title} adds the weight decay of {decay:g} to the gradient (L2) and normalises "
            "both, so weights with large gradients hardly decay",
            fix="Use --optimizer.name adamw, which has decoupled weight decay.",
            severity=Severity.WARNING if large else Severity.INFO,
            weight_decay=decay,
        )
    if vectors:
        return found(
            "decay_on_norms_and_biases",
            f"weight decay {decay:g} also shrinks {len(vectors)} scales or shifts, which usually "
            f"should not decay, because they have more than one dimension: {listed(vectors)}",
            fix="Store them with shape (C,) and reshape them in forward(): one-dimensional weights "
            "do not decay.",
            weight_decay=decay,
        )
    return passed(f"weight decay is {decay:g} for matrices and kernels, 0 for biases and norms")


def _with_shapes(job: CheckedJob) -> nn.Module | None:
    """Return a model whose lazy layers have shapes, after a forward pass; else None."""
    model = job.model()
    if not _has_lazy(model):
        return model
    with torch.no_grad():
        job.loss(model, training_sample(job, _NUM_EXAMPLES))
    return None if _has_lazy(model) else model


def _has_lazy(model: nn.Module) -> bool:
    return any(is_lazy(weight) for weight in model.parameters())


def _vectors(job: CheckedJob, model: nn.Module) -> list[str]:
    """Return multi-dimensional weights that are scales or shifts, by shape and by use.

    A matrix of a layer with one output has such a shape as well, and so has a class token: weights
    without an elementwise use are excluded.
    """
    matrices = {
        id(weight)
        for module in model.modules()
        if isinstance(module, _WITH_MATRICES)
        for weight in module.parameters(recurse=False)
    }
    named = {
        id(weight): name
        for name, weight in model.named_parameters()
        if weight.requires_grad and weight.dim() >= 2 and _is_vector(weight)
    }
    named = {key: name for key, name in named.items() if key not in matrices}
    uses: dict[int, set[str]] = {key: set() for key in named}

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in tensors_of([list(args), kwargs]) if named else ():
            if id(value) in uses:
                uses[id(value)].add(_name_of(func))

    with untouched(model), torch.no_grad(), EachCall(note):
        job.loss(model, training_sample(job, _NUM_EXAMPLES))
    seen = {key: kinds - _LOOKS for key, kinds in uses.items()}
    return [name for key, name in named.items() if not seen[key] or seen[key] & _BY_CHANNEL]


def _name_of(func: Any) -> str:
    """Return the name of a torch function, "mul" for `__mul__`, or of a property, "shape"."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    return str(name).strip("_")


def _is_vector(weight: Tensor) -> bool:
    """Return True if all but one dimension are 1, as in a scale (1, C, 1, 1)."""
    return weight.numel() > 1 and weight.numel() == max(weight.shape) and weight.shape[0] == 1


def _penalised_in_loss(job: CheckedJob, model: nn.Module) -> list[str]:
    """Return biases and norm scales of which the loss computes a square or a norm."""
    vectors = {
        id(weight): f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name, weight in module.named_parameters(recurse=False)
        if weight.requires_grad and weight.dim() <= 1 and (name == "bias" or _is_norm(module))
    }
    seen: list[str] = []

    def note(func: Any, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        if func in _SQUARES and args and id(args[0]) in vectors and not inside:
            seen.append(vectors[id(args[0])])

    inside: list[int] = []
    enter = model.register_forward_pre_hook(lambda *_: inside.append(1))
    leave = model.register_forward_hook(lambda *_: inside.clear())
    try:
        with untouched(model), torch.no_grad(), EachCall(note):
            job.loss(model, training_sample(job, _NUM_EXAMPLES))
    finally:
        enter.remove()
        leave.remove()
    return sorted(set(seen))


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def broken() -> Example:
    """A penalty on all weights, including biases."""

    class Penalised(SoundPictures):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
            return losses + 1e-3 * sum(weight.square().sum() for weight in model.parameters())

    return Example(task=Penalised())


CHECK = Check(
    name="weight_decay_groups",
    reason="Decay of biases and norms costs accuracy without any benefit, and L2 with Adam is not "
    "weight decay.",
    source="Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, arXiv:1711.05101; "
    "He et al. 2019, Bag of Tricks, section 3.1, arXiv:1812.01187",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("decay_on_norms_and_biases",),
    run=weight_decay_groups,
    broken=broken,
)
