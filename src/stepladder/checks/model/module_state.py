"""Weights and buffers are initialised: no uninitialised memory, lazy layers or NaN."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.one_pass import look
from stepladder.checks.evidence.sample import training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.checks.wording import listed
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.measuring.probe import untouched
from stepladder.records.findings import Severity
from stepladder.training.setup.build import make_model

NUM_EXAMPLES = 16
OFF_NORM = 1.5  # times 1, the norm that spectral norm guarantees


def module_state(job: CheckedJob) -> Answer:
    """Find lazy layers, values that are not finite, and uninitialised memory."""
    model = job.model()
    lazy = [name for name, tensor in _tensors(model) if nn.parameter.is_lazy(tensor)]
    if lazy:
        return found(
            "uninitialised_module_state",
            "the model has lazy layers, whose weights have no shape yet when the optimizer is "
            f"created, so they would not be trained: {listed(lazy)}",
            fix="Run a forward pass in build_model, or use layers with explicit sizes.",
            names=[*lazy],
        )
    bad = [name for name, tensor in _tensors(model) if _is_bad(tensor)]
    if bad:
        return found(
            "uninitialised_module_state",
            f"weights or buffers of the model are NaN or infinite before the first step: "
            f"{listed(bad)}",
            fix="Initialise every weight and buffer (torch.zeros, nn.init).",
            names=[*bad],
        )
    empty = _never_written(job)
    if empty:
        return found(
            "uninitialised_module_state",
            "weights or buffers of the model are uninitialised memory, with arbitrary values: "
            f"{listed(empty)}",
            fix="Fill tensors from torch.empty, such as with nn.init, or create them with "
            "torch.zeros or torch.randn.",
            names=[*empty],
        )
    return _off_norm(model) or _in_evaluation(job, model)


class _FilledMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fill all uninitialised memory that torch allocates with NaN.

    `torch.use_deterministic_algorithms` does this too, but takes seconds to import a compiler.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if "empty" in func.name() and isinstance(result, Tensor) and result.is_floating_point():
            result.fill_(math.nan)
        return result


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _is_bad(tensor: Tensor) -> bool:
    """Return True if a tensor has NaN, or a weight infinity; a buffer such as a mask may."""
    if not tensor.is_floating_point():
        return False
    if isinstance(tensor, nn.Parameter):
        return not bool(torch.isfinite(tensor).all())
    return bool(torch.isnan(tensor).any())


def _never_written(job: CheckedJob) -> list[str]:
    """Build the model with new memory full of NaN, and return where it remains and matters."""
    with untouched(), _FilledMemory():  # type: ignore[no-untyped-call]
        model = make_model(job.recipe, copy.copy(job.task), job.device)
    names = [name for name, tensor in _tensors(model) if _is_bad(tensor)]
    if not names:
        return []
    batch = training_sample(job, NUM_EXAMPLES)
    losses = look(job, model.eval(), batch, is_as_begun=False).losses
    return [] if bool(torch.isfinite(losses).all()) else names


def _off_norm(model: nn.Module) -> Answer | None:
    """Find a layer with spectral norm in evaluation mode whose norm was never estimated."""
    for name, module in model.named_modules():
        hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
        if "SpectralNorm" not in hooks or module.training or not hasattr(module, "weight_orig"):
            continue
        weight = module.weight_orig.detach().flatten(1).float()
        u, v = module.weight_u.float(), module.weight_v.float()
        estimate = float(torch.dot(u, weight @ v)) if u.numel() == len(weight) else 0.0
        norm = float(torch.linalg.matrix_norm(weight, 2))
        if estimate <= 0 or norm / estimate > OFF_NORM:
            return found(
                "uninitialised_module_state",
                f"the spectral norm of {name} was never estimated, because the layer was never in "
                "training mode: its weights have norm "
                f"{norm / estimate if estimate > 0 else norm:.2g}, not 1",
                fix="Run some batches in training mode first, or use "
                "nn.utils.parametrizations.spectral_norm.",
                names=[name],
            )
    return None


def _in_evaluation(job: CheckedJob, model: nn.Module) -> Answer:
    """Compare evaluation before and after one pass in training mode."""
    batch = training_sample(job, NUM_EXAMPLES)
    num = len(_tensors(model))
    said = (
        f"all {num} weights and buffers are initialised, and losses are finite in evaluation mode"
    )
    if batch.ids.numel() < 2:
        return passed(f"all {num} weights and buffers are initialised")
    before = _losses(job, job.model().eval(), batch)
    if before is not None and bool(torch.isfinite(before).all()):
        return passed(said)
    in_training = _losses(job, model, batch)
    if in_training is None or not bool(torch.isfinite(in_training).all()):
        return not_applicable("the loss is not finite in training mode either")
    return found(
        "uninitialised_module_state",
        "before training, the model "
        + ("fails" if before is None else "has losses that are not finite")
        + " in evaluation mode but not in training mode: some buffers get values only in training",
        fix="Initialise running statistics and similar buffers where they are created.",
        severity=Severity.WARNING,
    )


def _losses(job: CheckedJob, model: nn.Module, batch: Batch) -> Tensor | None:
    try:
        return look(job, model, batch, is_as_begun=False).losses
    except Exception:  # a layer without state may raise anything
        return None


def broken() -> Example:
    """A scale from torch.empty."""

    class Scaled(nn.Module):
        def __init__(self, layers: nn.Module) -> None:
            super().__init__()
            self.layers = layers
            self.scale = nn.Parameter(torch.empty(4))

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.layers(x) * self.scale
            return scores

    class Empty(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return Scaled(super().build_model(recipe))

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    return Example(task=Empty())


CHECK = Check(
    name="module_state",
    reason="A layer that is used before it is initialised computes with arbitrary values, which "
    "differ on each machine.",
    source="PyTorch issue 51800 (spectral norm in evaluation mode first); documentation of lazy "
    "modules and of fill_uninitialized_memory",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("uninitialised_module_state",),
    run=module_state,
    broken=broken,
)
