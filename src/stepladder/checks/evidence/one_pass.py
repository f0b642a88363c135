"""One pass of a batch through a job's loss, with its outputs and loss calls."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.checks.evidence.loss_calls import LossCall, loss_calls
from stepladder.checks.job import CheckedJob
from stepladder.data.batch import Batch
from stepladder.measuring.probe import untouched
from stepladder.models.freezing import set_training
from stepladder.training.setup.build import make_model
from stepladder.training.stage import enter_stage, stages_of

_SEED = 20_000


_MAX_HELD = 64  # batches


@contextmanager
def holding_features(job: CheckedJob, model: nn.Module) -> Iterator[None]:
    """Cache the features of a frozen trunk in the block, by batch.

    For models with the initial weights of the run: a frozen trunk is then the same in all of them,
    so features are shared between blocks. A trunk that is trained, or draws, is not cached.
    """
    trunk = _frozen_trunk(job, model)
    if trunk is None:
        yield
        return
    forward, had_own = trunk.forward, "forward" in vars(trunk)
    held: dict[int, tuple[Any, Any]] = job.remember("held_features", dict)

    def once(x: Any) -> Any:
        if id(x) in held:
            return held[id(x)][1]
        features = forward(x)
        if len(held) < _MAX_HELD:
            held[id(x)] = (x, features)  # with x, so that no other object gets its id
        return features

    trunk.forward = once
    try:
        yield
    finally:
        if had_own:
            trunk.forward = forward
        else:
            del trunk.forward


def _frozen_trunk(job: CheckedJob, model: nn.Module) -> nn.Module | None:
    try:
        parts = job.task.split(model)
    except (AttributeError, AssertionError, TypeError, KeyError, IndexError):
        return None  # not the Task's own model
    if parts is None:
        return None
    trunk = parts[0]
    if trunk.training or any(weight.requires_grad for weight in trunk.parameters()):
        return None
    return trunk


@dataclass(kw_only=True)
class Pass:
    """The results of one pass.

    Attributes:
        losses: of each example, with their graph if it was kept.
        outputs: the first tensor that the whole model returned; None: it was not called exactly
        once, or returns no tensor with one row per example.
        calls: of loss functions, softmax and sigmoid.
    """

    losses: Tensor
    outputs: Tensor | None
    calls: list[LossCall] = field(default_factory=list)

    @property
    def shares_of_output(self) -> LossCall | None:
        """The softmax or sigmoid whose input or result is the model's output."""
        for call in reversed(self.calls):
            if not call.is_loss and self.outputs is not None:
                result = result_of(call)
                if is_same(result, self.outputs) or is_same(call.scores, self.outputs):
                    return call
        return None


def look(
    job: CheckedJob,
    model: nn.Module,
    batch: Batch,
    *,
    has_graph: bool = False,
    is_as_begun: bool = True,
) -> Pass:
    """Pass a batch through the job's loss, with the same random state each time.

    The mode of the model is kept, and random states are restored.

    Args:
        has_graph: keep gradients.
        is_as_begun: a frozen trunk has the initial weights of the run, so its features may be
            cached.
    """
    holding = holding_features(job, model) if is_as_begun else nullcontext()
    seen: list[Any] = []
    hook = model.register_forward_hook(lambda _m, _a, out: seen.append(out))
    try:
        with holding, untouched(), torch.set_grad_enabled(has_graph), loss_calls() as calls:
            torch.manual_seed(_SEED)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # checks find what torch warns about
                losses = job.loss(model, batch)
    finally:
        hook.remove()
    outputs = first_tensor(seen[0]) if len(seen) == 1 else None
    num = batch.ids.numel()
    if outputs is not None and (outputs.dim() == 0 or outputs.shape[0] != num):
        outputs = None
    return Pass(losses=losses, outputs=outputs, calls=list(calls))


def first_tensor(value: Any) -> Tensor | None:
    """Return the first floating-point tensor in a model's output, or None."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    items = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(items, (list, tuple)):
        for item in items:
            found = first_tensor(item)
            if found is not None:
                return found
    return None


def result_of(call: LossCall) -> Tensor:
    """Compute the result of a call of softmax, log_softmax or sigmoid."""
    scores = call.scores.float()
    if call.name == "sigmoid":
        return scores.sigmoid()
    dim = dim_of(call)
    return scores.softmax(dim) if call.name == "softmax" else scores.log_softmax(dim)


def dim_of(call: LossCall) -> int:
    """Return the dimension of a softmax, from 0; torch's default if none was given."""
    dim = call.options.get("dim")
    rank = call.scores.dim()
    if dim is None:
        return 0 if rank in (0, 1, 3) else 1
    return int(dim) % max(rank, 1)


def is_same(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors have the same shape and values, up to rounding."""
    if a.shape != b.shape:
        return False
    return bool(torch.allclose(a.detach().float(), b.detach().float(), rtol=1e-4, atol=1e-6))


def own_pair(job: CheckedJob) -> tuple[CheckedJob, nn.Module]:
    """Build another model, with a copy of the Task that may hold parts of it.

    If a weight has to be the same object in the model and in the Task, both must be built together.

    Returns:
        The job with that Task, and the initial model, in its first stage.
    """
    own = replace(job, task=copy.copy(job.task))
    with untouched():
        recipe = replace(job.recipe, device=replace(job.recipe.device, compile=False))
        model = make_model(recipe, own.task, job.device)
        frozen = enter_stage(stages_of(recipe.train, recipe.batch)[0], own.task, model)
    set_training(model, frozen)
    return own, model


@contextmanager
def seeing_modules() -> Iterator[dict[nn.Module, bool]]:
    """Record each module that is called in the block, and whether gradients were enabled."""
    seen: dict[nn.Module, bool] = {}

    def note(module: nn.Module, _: Any) -> None:
        seen[module] = seen.get(module, False) or torch.is_grad_enabled()

    hook = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        hook.remove()
