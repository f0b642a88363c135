"""Pretrained weights that build_model reads are in the model that training starts with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.recipe import Recipe
from stepladder.measuring.probe import untouched
from stepladder.records.findings import Severity
from stepladder.training.setup.build import make_model

LOST_FRAC = 0.1  # of the matrices that were read: with fewer in the model, loading failed
MISSING_FRAC = 0.3  # of the model's matrices that were not loaded
_NUM_COMPARED = 64  # values of each tensor
_ROUNDED: Final = 2e-2  # of the largest, as weights may be stored in 16 bits
_OTHERS = ("lora_", "adapter")


@dataclass
class _Read:
    """Weights that were read while a model was built.

    Attributes:
        given: tensors passed to load_state_dict, or written into a copy of a state_dict.
        opened: tensors of files that torch.load or safetensors opened.
        missing, unexpected: names that a load with strict=False ignored.
    """

    given: list[Tensor] = field(default_factory=list)
    opened: list[Tensor] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)


def pretrained(job: CheckedJob) -> Answer:
    """Build the model again, record the weights that it reads, and find them in the model."""
    with untouched(), _watching() as (read, taken):
        task = copy.copy(job.task)
        model = make_model(job.recipe, task, job.device)
        read.given.extend(_changed(taken))
    holders = [model, *(value for value in vars(task).values() if isinstance(value, nn.Module))]
    index = _by_shape([tensor for holder in holders for tensor in _tensors(holder)])
    matrices = [tensor for tensor in read.given if _is_telling(tensor)]
    opened = [tensor for tensor in read.opened if _is_telling(tensor)]
    wanted, severity = (matrices, None) if matrices else (opened, Severity.WARNING)
    if not wanted:
        return not_applicable("build_model does not read any weights")
    num_found = sum(_is_in(tensor, index) for tensor in wanted)
    share = num_found / len(wanted)
    said = f"{num_found} of {len(wanted)} weight tensors that build_model read are in the model"
    numbers: dict[str, Any] = {"num_read": len(wanted), "num_found": num_found}
    if share < LOST_FRAC:
        why = ""
        if read.unexpected:
            why = f"; the model has no tensor named {read.unexpected[0]}, which is in the file"
        return found(
            "pretrained_not_loaded",
            f"{said}{why}",
            fix="Call load_state_dict with strict=True after all layers are created, with names "
            "that match the model's, and do not initialise weights afterwards.",
            severity=severity,
            **numbers,
        )
    lost = _missing_frac(model, read)
    if read.unexpected and share < 1 - MISSING_FRAC and lost > MISSING_FRAC:
        return found(
            "pretrained_not_loaded",
            f"{said}; strict=False ignored {len(read.unexpected)} tensors of the file that the "
            f"model does not have, such as {read.unexpected[0]}, and {len(read.missing)} of the "
            f"model that the file does not have, such as {read.missing[0]}",
            fix="Map the names in the file to those of the model, and load with strict=True.",
            severity=Severity.WARNING,
            **numbers,
        )
    return passed(said, **numbers)


def is_head_read(job: CheckedJob, num_classes: int) -> bool:
    """Return True if build_model read a matrix with one row per class."""
    with untouched(), _watching() as (read, taken):
        model = make_model(job.recipe, copy.copy(job.task), job.device)
        read.given.extend(_changed(taken))
    heads = [w.detach() for w in model.parameters() if w.dim() == 2 and len(w) == num_classes]
    index = _by_shape([head for head in heads if _is_telling(head)])
    return any(_is_telling(t) and _is_in(t, index) for t in (*read.given, *read.opened))


@contextmanager
def _watching() -> Iterator[tuple[_Read, list[tuple[Mapping[str, Any], dict[str, Tensor]]]]]:
    """Record state that is loaded, files that are opened and state_dicts that are returned."""
    read = _Read()
    taken: list[tuple[Mapping[str, Any], dict[str, Tensor]]] = []
    depth = [0]
    load, give, open_file = nn.Module.load_state_dict, nn.Module.state_dict, torch.load

    def loading(self: nn.Module, state_dict: Mapping[str, Any], *args: Any, **more: Any) -> Any:
        given = [value for value in state_dict.values() if isinstance(value, Tensor)]
        result = load(self, state_dict, *args, **more)
        read.given.extend(given)
        read.missing.extend(result.missing_keys)
        read.unexpected.extend(result.unexpected_keys)
        return result

    def giving(self: nn.Module, *args: Any, **more: Any) -> Any:
        depth[0] += 1
        try:
            state = give(self, *args, **more)
        finally:
            depth[0] -= 1
        if depth[0] == 0:
            taken.append((state, dict(state)))
        return state

    def opening(*args: Any, **more: Any) -> Any:
        result = open_file(*args, **more)
        read.opened.extend(_all_tensors(result))
        return result

    patches: list[tuple[Any, str, Callable[..., Any]]] = [
        (nn.Module, "load_state_dict", loading),
        (nn.Module, "state_dict", giving),
        (torch, "load", opening),
    ]
    before = [(holder, name, getattr(holder, name)) for holder, name, _ in patches]
    for holder, name, patch in patches:
        setattr(holder, name, patch)
    try:
        yield read, taken
    finally:
        for holder, name, original in before:
            setattr(holder, name, original)


def _changed(taken: list[tuple[Mapping[str, Any], dict[str, Tensor]]]) -> list[Tensor]:
    """List the tensors that were put into a state_dict after it was returned."""
    return [
        value
        for state, before in taken
        for name, value in state.items()
        if isinstance(value, Tensor) and value is not before.get(name)
    ]


def _all_tensors(value: Any, depth: int = 3) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, nn.Module):
        return _tensors(value)
    if depth and isinstance(value, Mapping):
        return [t for item in value.values() for t in _all_tensors(item, depth - 1)]
    if depth and isinstance(value, (list, tuple)):
        return [t for item in value for t in _all_tensors(item, depth - 1)]
    return []


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _is_telling(tensor: Tensor) -> bool:
    """Return True if a tensor can be recognised: a matrix or kernel with different values."""
    is_matrix = tensor.dim() >= 2 and tensor.is_floating_point() and tensor.numel() > 3
    return is_matrix and not tensor.is_meta and float(tensor.float().std()) > 0


def _by_shape(tensors: list[Tensor]) -> dict[torch.Size, list[Tensor]]:
    index: dict[torch.Size, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.is_floating_point() and not nn.parameter.is_lazy(tensor):
            index.setdefault(tensor.shape, []).append(_some(tensor))
    return index


def _some(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    rows = torch.linspace(0, flat.numel() - 1, min(_NUM_COMPARED, flat.numel())).long()
    return flat[rows.to(flat.device)].float().cpu()


def _is_in(tensor: Tensor, index: Mapping[torch.Size, list[Tensor]]) -> bool:
    wanted = _some(tensor)
    close = _ROUNDED * float(wanted.abs().max())
    return any(
        float((other - wanted).abs().max()) <= close for other in index.get(tensor.shape, [])
    )


def _missing_frac(model: nn.Module, read: _Read) -> float:
    matrices = {name for name, weight in model.named_parameters() if weight.dim() >= 2}
    missing = {name for name in read.missing if not any(part in name for part in _OTHERS)}
    return len(matrices & missing) / max(1, len(matrices))


def broken() -> Example:
    """Weights saved from DataParallel and loaded with strict=False: no name matches."""

    class Prefixed(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            saved = {f"module.{k}": v for k, v in super().build_model(recipe).state_dict().items()}
            model = super().build_model(recipe)
            model.load_state_dict(saved, strict=False)
            return model

    return Example(task=Prefixed())


CHECK = Check(
    name="pretrained",
    reason="Training from random instead of pretrained weights takes far longer, and ends with a "
    "worse model.",
    source="PyTorch, documentation of load_state_dict: strict=False ignores names that do not "
    "match",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("pretrained_not_loaded",),
    run=pretrained,
    broken=broken,
)
