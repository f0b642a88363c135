"""Inputs of the first layers of a model, after any normalisation in the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase

from stepladder.checks.evidence.sample import merge, take
from stepladder.checks.evidence.spread import spread_sample
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.measuring.probe import untouched

NORMS = (NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NUM_LAYERS = 3
_NUM_EXAMPLES = 32


@dataclass(frozen=True, kw_only=True)
class LayerInput:
    """A layer with weights, or a norm, and its input.

    Attributes:
        given: its first argument, detached; None: it is not a floating-point tensor.
    """

    name: str
    layer: nn.Module
    given: Tensor | None

    @property
    def is_norm(self) -> bool:
        """Whether it normalises its input."""
        return isinstance(self.layer, NORMS)


class _SeenEnoughError(Exception):
    """Stop a forward pass after the layers that are needed."""


def first_layers(job: CheckedJob, split: Split) -> list[LayerInput]:
    """Return the first layers that are called for a few examples, in call order.

    Train is augmented and passed to the loss, other splits to metrics(). The pass stops at the
    third layer, before the loss; errors of the model after the first layer are ignored.
    """
    return job.remember(f"first layers.{split.value}", lambda: _look(job, split))


def _look(job: CheckedJob, split: Split) -> list[LayerInput]:
    batch = few_examples(job, split)
    if batch is None:
        return []
    model = job.model()
    names = {module: name for name, module in model.named_modules()}
    seen: list[LayerInput] = []

    def look(layer: nn.Module, args: tuple[Any, ...]) -> None:
        first = args[0] if args else None
        is_numbers = isinstance(first, Tensor) and first.is_floating_point()
        given = first.detach().clone() if is_numbers and isinstance(first, Tensor) else None
        seen.append(LayerInput(name=names.get(layer, ""), layer=layer, given=given))
        if len(seen) == _NUM_LAYERS:
            raise _SeenEnoughError

    hooks = [
        layer.register_forward_pre_hook(look)
        for layer in model.modules()
        if next(layer.parameters(recurse=False), None) is not None or isinstance(layer, NORMS)
    ]
    with untouched(), torch.no_grad(), job.autocast():
        try:
            (job.task.loss if split is Split.TRAIN else job.task.metrics)(model, batch)
        except Exception as error:  # other checks report a loss that fails
            if not seen:
                raise error from None
        finally:
            for hook in hooks:
                hook.remove()
    return seen


def few_examples(job: CheckedJob, split: Split) -> Batch | None:
    """Return up to 32 examples, evenly spaced over a split; train is augmented as in the run."""
    seen = spread_sample(job, split)
    if seen is not None:
        whole = merge(list(seen.batches))
        places = torch.linspace(0, len(whole.ids) - 1, min(_NUM_EXAMPLES, len(whole.ids))).long()
        batch = take(whole, places)
    elif split is Split.TRAIN:
        first = merge(job.train_batches(2))
        batch = take(first, torch.arange(min(_NUM_EXAMPLES, len(first.ids))))
    else:
        return None
    return job.augmented(batch) if split is Split.TRAIN else batch


def learnt_norm(layer: LayerInput) -> BatchNorm | None:
    """Return a BatchNorm with running statistics from an earlier training; else None."""
    norm = layer.layer
    if not isinstance(norm, BatchNorm) or norm.running_var is None or norm.running_mean is None:
        return None
    is_fresh = bool((norm.running_var == 1).all() and (norm.running_mean == 0).all())
    return None if is_fresh else norm
