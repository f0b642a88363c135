"""Time single operations, unchanged and as a rung would change them.

Never the model end to end: a prediction must not run the candidate. Each leaf module is timed on
inputs of the shape and format it has in the model, interleaved over the variants; equal ones are
timed once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.utils._pytree import tree_leaves

from stepladder.config.choices import MemoryFormat, Precision
from stepladder.config.recipe import DeviceConfig, OptimizerConfig
from stepladder.measuring.blocks.timing import lower_median, time_in_turn
from stepladder.measuring.model.leaves import Call, enlarge, record_calls
from stepladder.measuring.probe import is_out_of_memory
from stepladder.models.fusing import fused_convolution
from stepladder.optim.optimizers import build_optimizer
from stepladder.optim.table import spec_of
from stepladder.training.setup.build import MEMORY_FORMATS
from stepladder.training.step import autocast

NOW = "now"
_FOLDED = "folded"


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Times of the operations of a model.

    Attributes:
        now_s: sum over all calls, unchanged.
        ratios: by variant, its time divided by the current time.
    """

    now_s: float
    ratios: Mapping[str, float]


def variants_of(
    device: DeviceConfig, *, has_conv: bool, has_bf16: bool, is_cuda: bool = False
) -> dict[str, DeviceConfig]:
    """Return the memory formats and precisions that are not in use yet, with their config.

    Args:
        is_cuda: on a GPU, which uses fp16 if it has no bf16.
    """
    changes: dict[str, dict[str, Any]] = {}
    if has_conv and device.memory_format is not MemoryFormat.CHANNELS_LAST:
        changes["channels_last"] = {"memory_format": MemoryFormat.CHANNELS_LAST}
    if (has_bf16 or is_cuda) and device.precision is Precision.FP32:
        half = Precision.BF16 if has_bf16 else Precision.FP16
        changes[str(half)] = {"precision": half}
    if len(changes) == 2:
        layout, precision = changes
        changes[f"{layout}+{precision}"] = {**changes[layout], **changes[precision]}
    return {name: replace(device, **change) for name, change in changes.items()}


def replay_operations(
    model: nn.Module,
    run: Callable[[], object],
    *,
    now: DeviceConfig,
    variants: Mapping[str, DeviceConfig],
    times: int,
    device: torch.device,
    budget_s: float,
    folds: nn.Module | None = None,
) -> Replayed | None:
    """Time the leaf modules of a model one by one in each variant, and sum the times.

    The ratios are those of the variants; "pointwise" is the time without elementwise operations,
    which a compiler could fuse into others; and, with `folds`, "folded" is the time without the
    BatchNorm layers that follow a convolution in that part of the model, and with their activations
    fused into the convolution if a folded trunk has them there.

    Args:
        run: runs few examples through the model, with gradients if the step needs them; called
            once per precision, to record the formats of inputs, and never timed.
        times: factor on the number of examples for the replay.

    Returns:
        None if no leaf module was called.
    """
    with autocast(device, now.precision):
        calls = record_calls(model, run)
    settings = {NOW: (now, calls)}
    for name, setting in variants.items():
        with autocast(device, setting.precision):
            settings[name] = (setting, record_calls(model, run))
    counts = Counter(call.key for call in calls)
    if not counts or any(len(found) != len(calls) for _, found in settings.values()):
        return None
    places = {call.key: idx for idx, call in enumerate(calls)}
    folded = _after_folding(folds, calls, now) if folds is not None else {}
    totals: dict[str, float] = defaultdict(float)
    for key, idx in places.items():
        call, count = calls[idx], counts[key]
        try:
            functions = {
                name: _replay(found[idx], setting, times=times, device=device)
                for name, (setting, found) in settings.items()
            }
            if (module := folded.get(id(call.module))) is not None:
                rest = replace(call, module=module)
                functions[_FOLDED] = _replay(rest, now, times=times, device=device)
            timed = time_in_turn(functions, device, budget_s=budget_s / len(places), max_rounds=7)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            continue  # a module that fails on more examples, or cannot be copied
        seconds = {name: count * lower_median(values) for name, values in timed.items()}
        for name in settings:
            totals[name] += seconds[name]
        totals[_FOLDED] += seconds.get(_FOLDED, seconds[NOW])
        totals["pointwise"] += 0.0 if call.is_pointwise else seconds[NOW]
    if folds is None:
        totals.pop(_FOLDED, None)
    now_s = totals.pop(NOW, 0.0)
    if not now_s:
        return None
    return Replayed(now_s=now_s, ratios={name: s / now_s for name, s in totals.items()})


def _after_folding(
    folds: nn.Module, calls: Sequence[Call], setting: DeviceConfig
) -> dict[int, nn.Module]:
    """Return the modules after folding by the id of the original; None if nothing is left."""
    inside = {id(module) for module in folds.modules()}
    left: dict[int, nn.Module] = {}
    for call in calls:
        if id(call.norm) in inside and (fused := _fused(call, setting)) is not None:
            left[id(call.module)], left[id(call.norm)] = fused, nn.Identity()
        elif id(call.module) in inside and _is_foldable(call):
            left.setdefault(id(call.module), getattr(call.module, "act", nn.Identity()))
    return left


def _is_foldable(call: Call) -> bool:
    return isinstance(call.module, BatchNorm) and not call.module.training and call.follows_conv


def _fused(call: Call, setting: DeviceConfig) -> nn.Module | None:
    """Return a convolution with the layers folded into it; None if nothing is folded into it."""
    if not isinstance(call.module, nn.Conv2d) or call.norm is None or call.norm.training:
        return None
    conv = deepcopy(call.module)
    if setting.memory_format is MemoryFormat.CHANNELS_LAST:
        conv = conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return fused_convolution(conv, call.norm)


def _replay(
    call: Call, setting: DeviceConfig, *, times: int, device: torch.device
) -> Callable[[], object]:
    memory_format = MEMORY_FORMATS[setting.memory_format]
    module = deepcopy(call.module)
    if setting.memory_format is MemoryFormat.CHANNELS_LAST:
        module = module.to(memory_format=memory_format)  # type: ignore[call-overload]
    args, kwargs = enlarge((call.args, dict(call.kwargs)), times, memory_format=memory_format)
    wanted = [
        tensor
        for tensor in (*tree_leaves((args, kwargs)), *module.parameters())
        if isinstance(tensor, Tensor) and tensor.requires_grad
    ]

    def once() -> None:
        with autocast(device, setting.precision), nullcontext() if wanted else torch.no_grad():
            output = module(*args, **kwargs)
        results = [v for v in tree_leaves(output) if isinstance(v, Tensor) and v.requires_grad]
        if wanted and results:
            ones = torch.ones_like(results[0])
            torch.autograd.grad(results[0], wanted, ones, allow_unused=True)

    return once


def replay_fused_optimizer(
    config: OptimizerConfig, model: nn.Module, device: torch.device, *, lr: float, budget_s: float
) -> float | None:
    """Return the time of a fused optimizer step divided by an unfused one, on weight copies.

    None if it is fused already, or the optimizer has no fused kernel on the device.
    """
    if config.fused or not spec_of(config.name).can_fuse(device.type):
        return None
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    functions: dict[bool, Callable[[], object]] = {}
    for fused in (False, True):
        copies = nn.ParameterList([weight.detach().clone() for weight in learning])
        for weight in copies:
            weight.grad = torch.randn_like(weight)
        functions[fused] = build_optimizer(replace(config, fused=fused), copies, lr=lr).step
    times = time_in_turn(functions, device, budget_s=budget_s, min_rounds=5, max_rounds=100)
    return lower_median(times[True]) / lower_median(times[False])


def choose_times(
    batch_size: int, recorded: int, *, example_s: float, num_variants: int, budget_s: float
) -> int:
    """Return the factor on the recorded examples: up to a batch, less if time is short.

    Args:
        example_s: estimated seconds of the unchanged model per example.
    """
    per_example_s = example_s * (1 + num_variants) * 3
    num_examples = batch_size
    while num_examples > recorded and num_examples * per_example_s > budget_s:
        num_examples //= 2
    return max(1, num_examples // recorded)
