"""Pictures have about the size that the model was designed for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.classes import loss_view
from stepladder.checks.evidence.first_layers import few_examples, first_layers
from stepladder.checks.evidence.sample import take
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.measuring.model.flops import count_flops
from stepladder.measuring.probe import untouched
from stepladder.records.findings import Severity
from stepladder.training.output.wording import percent

_BY_CLASS = ("cross_entropy", "nll_loss")
_SIZE_NAMES = ("input_size", "image_size", "img_size")  # as (c, h, w) or (h, w)
_TIMES = 8.0  # the pixels: fine-tuning at up to 5 times (512 for 224) is common, and helps
_POOLED = 20 * 49  # positions in one average: 20 times those of a model for 224 pixels
_LARGE = 400 * 400  # below that a large map is intended


def input_size(job: CheckedJob) -> Answer:
    """Compare the size of pictures with that of the model, or with the size of its last map."""
    call = loss_view(job).call
    if call is None or call.name not in _BY_CLASS or call.scores.dim() != 2:
        return not_applicable("the model is not a classifier, so large inputs may be intended")
    batch = few_examples(job, Split.TRAIN)
    if batch is None or not isinstance(batch.inputs, Tensor) or batch.inputs.dim() != 4:
        return not_applicable("inputs are not pictures")
    model = job.model().eval()
    own = _own_size(model)
    one = take(batch, torch.arange(1))._replace(targets=torch.zeros_like(batch.targets[:1]))
    seen: list[tuple[str, int]] = []
    with untouched(), torch.no_grad(), job.autocast():
        hooks = _watch_pools(model, seen)
        try:
            flops = count_flops(lambda: job.task.loss(model, one))
        finally:
            for hook in hooks:
                hook.remove()
    height, width = _size(job, one.inputs)
    numbers: dict[str, Any] = {"height": height, "width": width, "flops_per_example": flops}
    cost = f"a forward pass takes {flops / 1e9:.2g} GFLOP per example"
    times = height * width / own[0] / own[1] if own else None
    if times is not None and own is not None and times > _TIMES:
        return found(
            "input_too_large",
            f"pictures are {width}x{height}, {times:.0f} times the pixels of the model's input "
            f"size {own[1]}x{own[0]}; {cost}, of which about {percent(1 - 1 / times, 0)} can be "
            "saved",
            fix=f"Resize pictures to about {own[0]}: --prepare.size {own[0]}, or a transform of "
            "the dataset.",
            **numbers,
        )
    places = max((num for _, num in seen), default=0)
    if own is None and places > _POOLED and height * width > _LARGE:
        name = max(seen, key=lambda pair: pair[1])[0]
        return found(
            "input_too_large",
            f"pictures are {width}x{height}, and {name} pools {places} positions into one: the "
            f"receptive fields before it are a small part of a picture; {cost}",
            fix="Resize pictures so that the last feature map is about 7x7, or downsample more in "
            "the model.",
            **numbers,
        )
    made_for = f", the input size of the model is {own[1]}x{own[0]}" if own else ""
    return passed(f"pictures are {width}x{height}{made_for}; {cost}", **numbers)


def _own_size(model: nn.Module) -> tuple[int, int] | None:
    """Return the (height, width) in the model, its trunk or its timm config."""
    for module in model.modules():
        facts = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        named = facts.get("input_size") if isinstance(facts, dict) else None
        for size in (named, *(getattr(module, name, None) for name in _SIZE_NAMES)):
            if isinstance(size, (tuple, list)) and len(size) in (2, 3):
                return int(size[-2]), int(size[-1])
    return None


def _size(job: CheckedJob, inputs: Tensor) -> tuple[int, int]:
    """Return (height, width) of the first convolution's input; else that of the data."""
    layers = first_layers(job, Split.TRAIN)
    given = layers[0].given if layers else None
    x = given if given is not None and given.dim() == 4 else inputs
    return int(x.shape[-2]), int(x.shape[-1])


def _watch_pools(model: nn.Module, seen: list[tuple[str, int]]) -> list[Any]:
    names = {module: name for name, module in model.named_modules()}

    def look(pool: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        given = args[0] if args else None
        if not isinstance(given, Tensor) or given.dim() != 4 or not isinstance(output, Tensor):
            return
        if output.numel() == given.shape[0] * given.shape[1]:
            seen.append((names[pool], given.shape[2] * given.shape[3]))

    kinds = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.AvgPool2d)
    return [
        module.register_forward_hook(look)
        for module in model.modules()
        if isinstance(module, kinds)
    ]


def broken() -> Example:
    """Large pictures for a network with few layers."""

    class Large(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:  # noqa: ARG002
            body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2))
            return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            return labelled(nn.functional.interpolate(pictures[:8], size=416), numbers[:8])

    return Example(task=Large())


CHECK = Check(
    name="input_size",
    reason="Time grows with the number of pixels, and accuracy seldom does beyond the input size "
    "of the model.",
    source="Tan and Le 2019, EfficientNet, arXiv:1905.11946; a case of 20 times the pixels",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("input_too_large",),
    run=input_size,
    broken=broken,
)
