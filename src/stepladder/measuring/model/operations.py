"""Measure a model's FLOPs, single operations and gradient noise per example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepladder.data.batch import Batch
from stepladder.measuring.facts import has_bf16
from stepladder.measuring.model.flops import count_flops, count_flops_by_operation
from stepladder.measuring.model.leaves import count_moved
from stepladder.measuring.model.noise_scale import (
    MAX_LARGE_FRAC,
    TOO_FEW,
    NoiseScale,
    measure_noise_scale,
)
from stepladder.measuring.model.replays import (
    choose_times,
    replay_fused_optimizer,
    replay_operations,
    variants_of,
)
from stepladder.measuring.probe import untouched
from stepladder.measuring.subject import Subject
from stepladder.models.features import evaluating
from stepladder.models.folding import fold_batchnorm
from stepladder.training.features.feature_pass import batch_size_on
from stepladder.training.step import split_batch

_SMALL, _SMALL_BATCHNORM = 2, 8  # BatchNorm over two examples would be a different model
_LARGE = (32, 16, 8)  # the largest one up to a quarter of the examples is used
_PAIRS = (2, 8)  # minimum, maximum
MAX_NOISE_GRADIENTS = _PAIRS[1] * _LARGE[0] // _SMALL
"""Maximum number of small-batch gradients in an estimate of the noise scale."""


@dataclass(frozen=True, kw_only=True)
class Flops:
    """The work of the model for one example.

    Attributes:
        forward, step: floating-point operations of forward, and of forward and backward.
        activation_bytes: bytes of activations read and written in forward.
        weight_bytes: bytes of weights read in forward, the same for a batch as for one example.
        conv_frac: fraction of the forward operations in convolutions.
    """

    forward: float
    step: float
    activation_bytes: float
    weight_bytes: float
    conv_frac: float


def measure_flops(subject: Subject) -> Flops:
    """Count the FLOPs of the recipe's loss and its gradient for the trainable weights.

    Also counts the bytes that its single operations move.
    """
    num = subject.min_batch_size
    batch = subject.to_device(subject.batch_of(num))
    num = batch.ids.numel()

    with untouched(subject.model), subject.as_built():

        def forward() -> Tensor:
            with subject.autocast():
                result = subject.task.loss(subject.model, batch)
            losses: Tensor = result[0] if isinstance(result, tuple) else result
            return losses.float().sum()

        def forward_and_backward() -> None:
            torch.autograd.grad(forward(), subject.learning(), allow_unused=True)

        with torch.no_grad():
            by_operation = count_flops_by_operation(forward)
            moved = count_moved(subject.model, forward)
        forward_flops = sum(by_operation.values())
        conv_flops = sum(flops for name, flops in by_operation.items() if "conv" in name)
        return Flops(
            forward=forward_flops / num,
            step=count_flops(forward_and_backward) / num,
            activation_bytes=moved.activations / num,
            weight_bytes=moved.weights,
            conv_frac=conv_flops / forward_flops if forward_flops else 0.0,
        )


def measure_replays(
    subject: Subject, *, is_cached: bool, example_s: float, budget_s: float
) -> dict[str, float]:
    """Replay the single operations of a frozen trunk, or of the whole model and its gradient.

    Args:
        is_cached: use the batch size for computing features, not that of training.
        example_s: estimated seconds of the model per example.

    Returns:
        By variant, its time divided by the current time.
    """
    config, device = subject.recipe.device, subject.device
    has_conv = any(isinstance(module, nn.Conv2d) for module in subject.model.modules())
    variants = variants_of(
        config, has_conv=has_conv, has_bf16=has_bf16(device), is_cuda=device.type == "cuda"
    )
    batch = subject.to_device(subject.batch_of(min(2, subject.num_train)))
    size = batch_size_on(device)
    if not is_cached:
        size = min(subject.batch_size, size)
    recorded = batch.ids.numel()
    with untouched(subject.model), subject.as_built():
        model, run = _to_replay(subject, batch)
        is_folded = subject.recipe.model.fold_batchnorm
        replayed = replay_operations(
            model,
            run,
            now=config,
            variants=variants,
            times=choose_times(
                size,
                recorded,
                example_s=example_s,
                num_variants=len(variants),
                budget_s=budget_s,
            ),
            device=device,
            budget_s=budget_s,
            folds=model if subject.is_trunk_frozen and not is_folded else None,
        )
        fused = replay_fused_optimizer(
            subject.recipe.optimizer, subject.model, device, lr=subject.lr, budget_s=budget_s / 10
        )
    ratios = dict(replayed.ratios) if replayed is not None else {}
    return ratios if fused is None else {**ratios, "fused_optimizer": fused}


def _to_replay(subject: Subject, batch: Batch) -> tuple[nn.Module, Callable[[], object]]:
    """Return the module to replay, and a call that runs the batch through it."""
    parts = subject.trunk_and_head
    if parts is None or not subject.is_trunk_frozen:
        return subject.model, lambda: subject.task.loss(subject.model, batch)
    trunk, calls = parts[0], []
    hook = trunk.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    try:
        subject.task.loss(subject.model, batch)
    finally:
        hook.remove()
    if not calls:
        return subject.model, lambda: subject.task.loss(subject.model, batch)
    args, kwargs = calls[0]
    if subject.recipe.model.fold_batchnorm:
        trunk = fold_batchnorm(trunk, *args, **kwargs)
    return trunk, lambda: trunk(*args, **kwargs)


def estimate_noise_scale(
    subject: Subject, head: Subject | None, *, example_s: float, budget_s: float
) -> NoiseScale:
    """Estimate the gradient noise scale at the current weights, or return why it is unknown.

    If the trunk is frozen, each example goes through it once, and the gradients are those of the
    head on its features.

    Args:
        head: the subject that trains only the head; None if the trunk is trained.
        example_s: estimated seconds of forward and backward per example.
    """
    small = _SMALL if subject.min_batch_size == 1 else _SMALL_BATCHNORM
    large = next((size for size in _LARGE if size <= MAX_LARGE_FRAC * subject.num_train), 0)
    if large <= small:
        return NoiseScale(unknown_because=TOO_FEW)
    least, most = _PAIRS
    pairs = min(most, max(least, int(budget_s / (large * example_s))))
    batch = subject.batch_of(pairs * large)
    measured = subject if head is None else head
    with untouched(subject.model), subject.as_built():
        return measure_noise_scale(
            measured.task,
            measured.model,
            _batches(subject, batch, large, is_on_features=head is not None),
            num_examples=subject.num_train,
            small=small,
            device=subject.device,
            precision=subject.recipe.device.precision,
        )


def _batches(subject: Subject, batch: Batch, size: int, *, is_on_features: bool) -> Iterator[Batch]:
    """Split a batch into batches of equal size, and drop the remainder."""
    way = subject.trunk_pass()
    for part in split_batch(batch, size):
        if part.ids.numel() < size:
            return
        moved = subject.to_device(part)
        moved = subject.task.augment(moved, seed=subject.recipe.seed, epoch=0)
        if is_on_features:
            with evaluating(subject.model):
                features = way.features(moved)
            moved = Batch(features.clone(), moved.targets, moved.ids)
        yield moved
