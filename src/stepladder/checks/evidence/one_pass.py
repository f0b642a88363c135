"""One pass of a batch through a job's loss, and what can be seen on the way."""

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
    """Let a frozen trunk compute each batch once in the block, and give the same again.

    For models that begin as the run does: a frozen trunk is then the same in all of them, so that
    features are shared between blocks. A trunk that learns, or draws, is left alone.
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
            held[id(x)] = (x, features)  # with x, so that no other value gets its id
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
        return None  # another model than the Task's own
    if parts is None:
        return None
    trunk = parts[0]
    if trunk.training or any(weight.requires_grad for weight in trunk.parameters()):
        return None
    return trunk


@dataclass(kw_only=True)
class Pass:
    """What one pass gave.

    Attributes:
        losses: of each example, with their graph where one was kept.
        outputs: what the whole model gave, in its first tensor; None: it was not called just
            once, or gives no tensor with one row an example.
        calls: of loss functions, softmax and sigmoid.
    """

    losses: Tensor
    outputs: Tensor | None
    calls: list[LossCall] = field(default_factory=list)

    @property
    def shares_of_output(self) -> LossCall | None:
        """The softmax or sigmoid whose scores, or whose result, are what the model gives."""
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
    """Pass a batch through the job's loss; what is random is drawn alike each time.

    The model stays in the mode that it has. Random states come back.

    Args:
        has_graph: keep gradients.
        is_as_begun: a frozen trunk is as the run begins with it, so that its features may be held.
    """
    holding = holding_features(job, model) if is_as_begun else nullcontext()
    seen: list[Any] = []
    hook = model.register_forward_hook(lambda _m, _a, out: seen.append(out))
    try:
        with holding, untouched(), torch.set_grad_enabled(has_graph), loss_calls() as calls:
            torch.manual_seed(_SEED)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what torch warns of, checks find
                losses = job.loss(model, batch)
    finally:
        hook.remove()
    outputs = first_tensor(seen[0]) if len(seen) == 1 else None
    num = batch.ids.numel()
    if outputs is not None and (outputs.dim() == 0 or outputs.shape[0] != num):
        outputs = None
    return Pass(losses=losses, outputs=outputs, calls=list(calls))


def first_tensor(value: Any) -> Tensor | None:
    """Return the first floating-point tensor of what a model gives; None: there is none."""
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
    """Compute what a call of softmax, log_softmax or sigmoid gave."""
    scores = call.scores.float()
    if call.name == "sigmoid":
        return scores.sigmoid()
    dim = dim_of(call)
    return scores.softmax(dim) if call.name == "softmax" else scores.log_softmax(dim)


def dim_of(call: LossCall) -> int:
    """Return the dimension of a softmax, from 0; where none was named, what torch then takes."""
    dim = call.options.get("dim")
    rank = call.scores.dim()
    if dim is None:
        return 0 if rank in (0, 1, 3) else 1
    return int(dim) % max(rank, 1)


def is_same(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors hold the same numbers, to rounding, in the same shape."""
    if a.shape != b.shape:
        return False
    return bool(torch.allclose(a.detach().float(), b.detach().float(), rtol=1e-4, atol=1e-6))


def own_pair(job: CheckedJob) -> tuple[CheckedJob, nn.Module]:
    """Build a model anew, with a copy of the Task that may hold parts of it.

    A copy of a model is not what the Task holds: where one weight has to be the same object in
    both, they must be made together.

    Returns:
        The job with that Task, and the model as it begins, in its first stage.
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
    """Note every module that is called in the block, and whether gradients were kept there."""
    seen: dict[nn.Module, bool] = {}

    def note(module: nn.Module, _: Any) -> None:
        seen[module] = seen.get(module, False) or torch.is_grad_enabled()

    hook = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        hook.remove()
