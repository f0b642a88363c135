"""A model of several layers is not a single linear map."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.one_pass import Pass, look
from stepladder.checks.evidence.sample import each_tensor, tensors_of, training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity

NUM_EXAMPLES = 8
LINEAR = 1e-4  # of the spread of the outputs; float32 rounding is a hundred times smaller
_A, _B = 0.7, -0.4  # any two numbers
_FAR = 1000.0  # scale of inputs beyond the linear range of any activation
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PASSING = (nn.Dropout, nn.Identity, nn.BatchNorm1d)  # linear in evaluation mode


@dataclass(frozen=True)
class _Call:
    name: str
    module: nn.Module
    given: int
    gave: int
    keep: tuple[Tensor, Tensor]  # so that no other tensor gets their addresses


def nonlinearity(job: CheckedJob) -> Answer:
    """Test f(ax + by) = a f(x) + b f(y) + (1 - a - b) f(0), and find adjacent linear layers."""
    batch = training_sample(job, 2 * NUM_EXAMPLES)
    model = job.model().eval()
    _fill_constants_(model)
    calls = _calls(job, model, batch)
    if len({id(call.module) for call in calls}) < 2:
        return not_applicable("the model has at most one layer with weights")
    if any(isinstance(call.module, nn.Embedding) for call in calls):
        error = None
    else:
        error = _error(job, model, batch)
    inner = _hidden_layers(calls)
    if error is not None and error < LINEAR:
        if not inner and not _is_chain_of_wide(job, model, batch, calls):
            return passed(
                "the model is linear, but has a bottleneck, such as in a matrix factorisation",
                error=error,
            )
        return found(
            "no_nonlinearity",
            f"the model is linear: its {len(calls)} layers could be replaced by one",
            fix="Add an activation, such as nn.ReLU(), between the layers.",
            error=error,
        )
    if inner:
        first, second = inner[0]
        return found(
            "no_nonlinearity",
            f"there is no activation between {first} and {second}: together they are one linear "
            "layer",
            fix="Add an activation, such as nn.ReLU(), between them, or remove one of them.",
            severity=Severity.WARNING,
            pairs=[list(pair) for pair in inner],
        )
    if error is None:
        return passed(
            "no two linear layers are adjacent; token ids cannot be added to test if the model is "
            "linear"
        )
    return passed(
        "the model is not linear: its outputs differ from those of a linear function by "
        f"{error:.1g} standard deviations",
        error=error,
    )


def _fill_constants_(model: nn.Module) -> None:
    """Randomise constant weights, so that branches initialised to zero count."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_bias = name.endswith("bias")
            if is_bias or not weight.is_floating_point() or float(weight.max() - weight.min()) > 0:
                continue
            drawn = torch.rand(weight.shape, generator=generator) - 0.5
            scale = 1.0 if weight.dim() < 2 else weight[0].numel() ** -0.5
            weight.copy_((1.0 if weight.dim() < 2 else 0.0) + scale * drawn)


def _calls(job: CheckedJob, model: nn.Module, batch: Batch) -> list[_Call]:
    """List the calls of layers in order, including linear pass-through layers."""
    calls: list[_Call] = []

    def noter(name: str) -> object:
        def note(module: nn.Module, args: tuple[object, ...], result: object) -> None:
            if args and isinstance(args[0], Tensor) and isinstance(result, Tensor):
                pair = (args[0], result)
                calls.append(_Call(name, module, id(args[0]), id(result), pair))

        return note

    kinds = (*_LAYERS, *_PASSING, nn.Embedding)
    hooks = [
        module.register_forward_hook(noter(name))  # type: ignore[arg-type]
        for name, module in model.named_modules()
        if isinstance(module, kinds)
    ]
    try:
        look(job, model, batch, is_as_begun=False)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _hidden_layers(calls: list[_Call]) -> list[tuple[str, str]]:
    """Return pairs of nn.Linear in which the second directly reads the output of the first.

    Not included: outputs that several layers read, such as the heads of a VAE; layers in different
    modules, such as an embedding and the prototypes that it is compared with; and bottlenecks, such
    as a factorised layer and the middle of an autoencoder.
    """
    pairs = []
    for call in calls:
        if not isinstance(call.module, nn.Linear) or not call.module.weight.requires_grad:
            continue
        at, readers = call.gave, [other for other in calls if other.given == call.gave]
        while len(readers) == 1 and isinstance(readers[0].module, _PASSING):
            at = readers[0].gave if readers[0].gave != at else -1
            readers = [other for other in calls if other.given == at]
        if len(readers) != 1 or not isinstance(readers[0].module, nn.Linear):
            continue
        second = readers[0].module
        between = call.module.out_features
        is_chain = call.name.rpartition(".")[0] == readers[0].name.rpartition(".")[0]
        if is_chain and between >= min(call.module.in_features, second.out_features):
            pairs.append((call.name, readers[0].name))
    return pairs


def _is_chain_of_wide(job: CheckedJob, model: nn.Module, batch: Batch, calls: list[_Call]) -> bool:
    """Return True if a linear model has a redundant layer.

    A layer that another layer reads is redundant if it is as wide as its input or as the output of
    the model: one layer can replace both, unlike in a factorisation. Tested again with inputs a
    thousand times as large, where an activation that is linear near 0 is not.
    """
    seen = look(job, model, batch, is_as_begun=False)
    if seen.outputs is None or not (_error(job, model, batch, times=_FAR) or 0.0) < LINEAR:
        return False
    num_given = seen.outputs[0].numel()
    for call in calls:
        given, gave = call.keep
        is_layer = isinstance(call.module, _LAYERS) and call.module.weight.requires_grad
        if not is_layer or gave.dim() < 2 or gave[0].numel() < min(given[0].numel(), num_given):
            continue
        if _is_read(job, model, batch, call.module):
            return True
    return False


def _is_read(job: CheckedJob, model: nn.Module, batch: Batch, layer: nn.Module) -> bool:
    """Return True if the input of another layer changes with the output of this one."""
    before = _calls(job, model, batch)
    hook = layer.register_forward_hook(lambda _m, _a, result: result + 1.0)
    try:
        after = _calls(job, model, batch)
    finally:
        hook.remove()
    return len(before) == len(after) and any(
        not torch.equal(one.keep[0], other.keep[0])
        for one, other in zip(before, after, strict=True)
        if isinstance(one.module, _LAYERS) and one.module is not layer
    )


def _error(job: CheckedJob, model: nn.Module, batch: Batch, *, times: float = 1.0) -> float | None:
    """Return how far the model is from linear, relative to the spread of its outputs.

    Args:
        times: scale of the inputs.
    """
    mixable = [t for t in tensors_of(batch.inputs) if t.is_floating_point()]
    if not mixable or len(mixable) != len(tensors_of(batch.inputs)):
        return None
    num = batch.ids.numel() // 2
    if num < 2:
        return None

    def at(mix: object) -> Tensor | None:
        inputs = each_tensor(lambda value: mix(value * times), batch.inputs)  # type: ignore[operator]
        changed = batch._replace(inputs=inputs)
        return _scores(look(job, model, changed, is_as_begun=False))

    def mixed(value: Tensor) -> Tensor:
        return torch.cat([_A * value[:num] + _B * value[num : 2 * num], value[num:]])

    whole, mix, zero = at(lambda value: value), at(mixed), at(torch.zeros_like)
    if whole is None or mix is None or zero is None:
        return None
    wanted = _A * whole[:num] + _B * whole[num : 2 * num] + (1 - _A - _B) * zero[:num]
    spread = float((whole - zero).abs().max())
    return float((mix[:num] - wanted).abs().max()) / spread if spread > 0 else None


def _scores(seen: Pass) -> Tensor | None:
    """Return the outputs before a last softmax or sigmoid."""
    call = seen.shares_of_output
    if call is not None and seen.outputs is not None and call.scores.shape == seen.outputs.shape:
        return call.scores.double()
    return None if seen.outputs is None else seen.outputs.double()


def broken() -> Example:
    """Three linear layers without activations."""

    class Flat(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:  # noqa: ARG002
            return nn.Sequential(
                nn.Flatten(), nn.Linear(432, 64), nn.Linear(64, 32), nn.Linear(32, 4)
            )

    return Example(task=Flat())


CHECK = Check(
    name="nonlinearity",
    reason="Any number of layers without activations is equivalent to a single linear layer.",
    source="the definition of an affine map; NeuraLint (Nikanjam et al. 2021, TOSEM), rule on "
    "missing activations",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("no_nonlinearity",),
    run=nonlinearity,
    broken=broken,
    needs_loss=True,
)
