"""Weight decay on matrices and kernels, not on biases and the scales of norms."""

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
from stepladder.data.batch import Batch
from stepladder.measuring.probe import untouched
from stepladder.optim.contract import Decay
from stepladder.optim.table import spec_of
from stepladder.records.findings import Severity

LARGE_L2 = 0.005  # AdamW's usual 0.01 is meant for its own rule; Adam's usual L2 is 1e-5 to 1e-4
_NUM_EXAMPLES = 4
_BY_CHANNEL = frozenset(  # what is done with a scale or a shift
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
    """Look at what the optimiser decays, and at what the loss itself holds down."""
    model = _with_shapes(job)
    if model is None:
        return not_applicable("some weights have no shape, even after a forward pass")
    optimizer = job.recipe.optimizer
    decay = optimizer.weight_decay
    penalised = _penalised_in_loss(job, model)
    if penalised:
        return found(
            "decay_on_norms_and_biases",
            f"the loss holds down {len(penalised)} biases and scales of norms as well, such as "
            f"{penalised[0]}",
            fix="Leave weights of one dimension out of the penalty: `if w.dim() > 1`.",
            num=len(penalised),
        )
    if decay == 0:
        return not_applicable("there is no weight decay")
    vectors = _vectors(job, model)
    spec = spec_of(optimizer.name)
    if spec.decay is Decay.L2 and spec.is_scale_free:
        large = decay >= LARGE_L2
        return found(
            "decay_on_norms_and_biases",
            f"{spec.title} with an L2 term of {decay:g}: it is divided by the gradient's size like "
            "the gradient, so that weights with large gradients hardly decay",
            fix="Use --optimizer.name adamw, whose decay is decoupled.",
            severity=Severity.WARNING if large else Severity.INFO,
            weight_decay=decay,
        )
    if vectors:
        return found(
            "decay_on_norms_and_biases",
            f"{len(vectors)} weights of several dimensions are scales or shifts, one number a "
            f"channel, and decay by {decay:g}: {', '.join(vectors[:3])}",
            fix="Keep them as (C,) and reshape them in forward: weights of one dimension do not "
            "decay.",
            weight_decay=decay,
        )
    return passed(f"matrices and kernels decay by {decay:g}, biases and norms do not")


def _with_shapes(job: CheckedJob) -> nn.Module | None:
    """Return a model whose lazy layers have got their shapes by a forward pass; None: they do not."""
    model = job.model()
    if not _has_lazy(model):
        return model
    with torch.no_grad():
        job.loss(model, training_sample(job, _NUM_EXAMPLES))
    return None if _has_lazy(model) else model


def _has_lazy(model: nn.Module) -> bool:
    return any(is_lazy(weight) for weight in model.parameters())


def _vectors(job: CheckedJob, model: nn.Module) -> list[str]:
    """Name weights of several dimensions that are scales or shifts, by shape and by use.

    A matrix of one row has the shape of one as well, as that of a layer with one output, and so
    has a token that is put before others: what is used otherwise than number by number is left out.
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
    """Name a function of torch's, "mul" for `__mul__`, or the property that it gets, "shape"."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    return str(name).strip("_")


def _is_vector(weight: Tensor) -> bool:
    """Return True if all but one dimension are 1, as of a scale (1, C, 1, 1)."""
    return weight.numel() > 1 and weight.numel() == max(weight.shape) and weight.shape[0] == 1


def _penalised_in_loss(job: CheckedJob, model: nn.Module) -> list[str]:
    """Name biases and scales of norms that the loss squares, or takes the size of, by itself."""
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
    """A penalty on all weights, biases among them."""

    class Penalised(SoundPictures):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
            return losses + 1e-3 * sum(weight.square().sum() for weight in model.parameters())

    return Example(task=Penalised())


CHECK = Check(
    name="weight_decay_groups",
    reason="Decay of biases and norms costs accuracy and buys nothing, and L2 with Adam is not "
    "the decay that is meant.",
    source="Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, arXiv:1711.05101; "
    "He et al. 2019, Bag of Tricks, section 3.1, arXiv:1812.01187",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("decay_on_norms_and_biases",),
    run=weight_decay_groups,
    broken=broken,
)
