"""Initial weights allow learning: not all equal, not far too large, no dead units."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.one_pass import look
from stepladder.checks.evidence.sample import training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity
from stepladder.training.output.wording import percent

NUM_EXAMPLES = 16
NUM_TRIES = 3  # steps in which equal weights may diverge
LARGE_GAIN = 5.0  # times the size of its input; He's initialisation gives 1.4, torch's own 0.6
LARGE_STD = 30.0  # of the output of a layer without a norm: a softmax or tanh is saturated
SMALL_GAIN = 1e-2  # times the size of its input
SMALL_STD = 1e-5  # over examples; a gradient through it vanishes
DEAD_FRAC = 0.8  # of a ReLU's units are 0 for all examples; half of them is normal
FULL, FULL_FRAC = 0.99, 0.8  # |tanh| at saturation, and the fraction of values there
_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = ("norm",)


@dataclass(frozen=True)
class _Layer:
    """Input and output statistics of a layer: kind is "weights", "norm", "relu" or "tanh"."""

    name: str
    kind: str
    size_in: float
    std: float
    idle_frac: float
    learns: bool


def initialisation(job: CheckedJob) -> Answer:
    """Check the initial output of each layer, and find units that cannot diverge."""
    model = job.model()
    batch = training_sample(job, NUM_EXAMPLES)
    alike = _units_alike(job, model, batch)
    seen = f"{batch.ids.numel()} training examples"
    if alike:
        return found(
            "bad_initialisation",
            f"all units of {alike[0]} have equal weights and equal gradients, so they stay equal"
            + (f"; so do those of {len(alike) - 1} more layers" if len(alike) > 1 else ""),
            fix="Initialise weights at random, as torch does by default (Kaiming); only biases "
            "may be constant.",
            coverage=seen,
            layers=list(alike),
        )
    with _watching(model) as layers:
        look(job, model, batch)
    if not any(layer.learns and layer.kind == "weights" for layer in layers):
        return not_applicable("the model has no trainable linear or convolutional layer")
    fault = _out_of_scale(layers)
    if fault is None:
        stds = [layer.std for layer in layers if layer.kind == "weights" and layer.learns]
        if not all(math.isfinite(std) for std in stds):
            return not_applicable("outputs of layers are not finite: see not_finite")
        return passed(
            f"outputs of layers have a standard deviation of {min(stds):.2g} to {max(stds):.2g}",
            coverage=seen,
            smallest_std=min(stds),
            largest_std=max(stds),
        )
    evidence, fix = fault
    return found("bad_initialisation", evidence, fix=fix, severity=Severity.WARNING, coverage=seen)


def _out_of_scale(layers: list[_Layer]) -> tuple[str, str] | None:
    for idx, layer in enumerate(layers):
        follows = layers[idx + 1].kind if idx + 1 < len(layers) else ""
        if layer.kind == "weights" and layer.learns and follows != "norm":
            gain = layer.std / layer.size_in if layer.size_in > 0 else 0.0
            if layer.std > LARGE_STD and gain > LARGE_GAIN:
                return (
                    f"the output of {layer.name} is {gain:.0f} times as large as its input, with a "
                    f"standard deviation of {layer.std:.3g}",
                    "Scale its initial weights by 1 / sqrt(fan_in), as torch does by default.",
                )
            is_lost = 0 < layer.std < min(SMALL_STD, SMALL_GAIN * layer.size_in)
            if is_lost and _leads_nowhere(layers, idx):
                return (
                    f"the output of {layer.name} varies by only {layer.std:.1g} between examples",
                    "Use larger initial weights (Kaiming), or add a norm layer.",
                )
        if layer.kind == "relu" and layer.idle_frac > DEAD_FRAC:
            return (
                f"{percent(layer.idle_frac, 0)} of the units of {layer.name} are 0 for all "
                "examples, so they get no gradient",
                "Initialise biases to zero, and weights with mean 0.",
            )
        if layer.kind == "tanh" and layer.idle_frac > FULL_FRAC:
            return (
                f"{percent(layer.idle_frac, 0)} of the output of {layer.name} is saturated, so its "
                "gradient is nearly 0",
                "Use smaller initial weights (Glorot), or scale the inputs.",
            )
    return None


def _leads_nowhere(layers: list[_Layer], idx: int) -> bool:
    """Return True if no later layer or skip connection restores the signal of a layer."""
    later = layers[idx + 1 :]
    weighted = [layer for layer in later if layer.kind == "weights"]
    return (
        bool(weighted)
        and weighted[-1].std < SMALL_STD
        and all(layer.kind != "norm" for layer in later)
    )


# --- outputs of layers


@contextmanager
def _watching(model: nn.Module) -> Iterator[list[_Layer]]:
    layers: list[_Layer] = []
    hooks = [
        module.register_forward_hook(_noter(name, kind, layers))
        for name, module in model.named_modules()
        if (kind := _kind(module)) is not None
    ]
    try:
        yield layers
    finally:
        for hook in hooks:
            hook.remove()


def _kind(module: nn.Module) -> str | None:
    if isinstance(module, _WEIGHTED):
        return "weights"
    if isinstance(module, (nn.ReLU, nn.ReLU6)):
        return "relu"
    if isinstance(module, nn.Tanh):
        return "tanh"
    return "norm" if "norm" in type(module).__name__.lower() else None


def _noter(name: str, kind: str, layers: list[_Layer]) -> Any:
    def note(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        given = args[0] if args else None
        if not isinstance(given, Tensor) or not isinstance(result, Tensor) or len(result) < 2:
            return
        values = result.detach().float()
        learns = any(weight.requires_grad for weight in module.parameters(recurse=False))
        layers.append(
            _Layer(
                name=name or type(module).__name__,
                kind=kind,
                size_in=float(given.detach().float().square().mean().sqrt()),
                std=float(values.std(0).square().mean().sqrt()),
                idle_frac=_idle_frac(values, kind),
                learns=learns,
            )
        )

    return note


def _idle_frac(values: Tensor, kind: str) -> float:
    if kind == "tanh":
        return float((values.abs() > FULL).float().mean())
    if kind != "relu":
        return 0.0
    channels = 1 if values.dim() in (2, 4) else values.dim() - 1
    units = values.movedim(channels, 0).flatten(1)  # (C, everything else)
    return float((units <= 0).all(1).float().mean())


# --- units with equal weights


def _units_alike(job: CheckedJob, model: nn.Module, batch: Batch) -> list[str]:
    """Return layers whose units all have equal weights, even after some steps."""
    suspects = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, _WEIGHTED)
        and _is_alike(module.weight)
        and module.weight.requires_grad
    ]
    if not suspects:
        return []
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    model.eval()
    for _ in range(NUM_TRIES):
        losses = look(job, model, batch, has_graph=True).losses
        if not losses.requires_grad:
            break
        grads = torch.autograd.grad(losses.float().mean(), weights, allow_unused=True)
        if not all(torch.isfinite(grad).all() for grad in grads if grad is not None):
            break
        with torch.no_grad():
            for weight, grad in zip(weights, grads, strict=True):
                if grad is not None:
                    norm = math.sqrt(float(grad.double().square().sum()))
                    weight.sub_(grad, alpha=0.1 / norm if norm > 1e-12 else 0.0)
        suspects = [(name, module) for name, module in suspects if _is_alike(module.weight)]
    model.load_state_dict(job.model().state_dict())
    model.train()
    return [name or type(module).__name__ for name, module in suspects]


def _is_alike(weight: Tensor) -> bool:
    if weight.dim() < 2 or weight.shape[0] < 2 or isinstance(weight, nn.UninitializedParameter):
        return False
    values = weight.detach().float()
    return float((values - values[:1]).abs().max()) <= 1e-6 * float(values.abs().max())


def broken() -> Example:
    """Every weight 0.01."""

    class Constant(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            for weight in model.parameters():
                nn.init.constant_(weight, 0.01)
            return model

    return Example(task=Constant())


CHECK = Check(
    name="initialisation",
    reason="Units with equal initial weights stay equal, and with signals that explode or vanish "
    "from layer to layer there is no useful gradient.",
    source="He et al. 2015, Delving Deep into Rectifiers, arXiv:1502.01852; TheDeepChecker (Ben "
    "Braiek and Khomh 2023, TOSEM) for dead and full units",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("bad_initialisation",),
    run=initialisation,
    broken=broken,
)
