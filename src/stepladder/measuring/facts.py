"""Collect facts about a job without timing it: the machine, the model, the stored images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from stepladder.config.choices import Encoding, Split, VerifyPages, WeightsSource
from stepladder.config.recipe import Recipe
from stepladder.data.decoding.decode import find_form
from stepladder.data.reading.datasets import DatasetSource
from stepladder.data.store.shard import Shard
from stepladder.data.store.store import Store
from stepladder.machine import (
    available_memory_bytes,
    cpu_model,
    disk_free_bytes,
    instruction_set,
    num_cores,
)
from stepladder.machine.compiler import compiler_missing
from stepladder.measuring.subject import Subject
from stepladder.models.checkpointing import can_checkpoint
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification

_MIN_CAPABILITY_BF16 = (8, 0)  # Ampere
_NUM_SIZED = 32
NORMS = (
    BatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)
"""Normalization layers."""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """Facts about the machine, with the names of Profile."""

    device: str
    device_name: str
    num_cores: int
    has_cuda: bool
    has_bf16: bool
    has_compiler: bool
    free_memory_bytes: int
    free_host_bytes: int
    free_disk_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about the model, with the names of Profile."""

    is_built_in: bool
    has_head: bool
    is_trunk_frozen: bool
    is_random_before_head: bool
    default_threads: int | None
    is_pretrained: bool
    num_conv2d: int
    num_batchnorm: int
    num_norms: int
    num_blocks: int
    weight_bytes: int
    trainable_bytes: int


def machine_facts(device: torch.device, cache: Path) -> MachineFacts:
    """Collect facts about the machine.

    Args:
        cache: folder for artifacts.
    """
    is_cuda = device.type == "cuda"
    free_host_bytes = available_memory_bytes()
    return MachineFacts(
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if is_cuda else cpu_model(),
        num_cores=num_cores(),
        has_cuda=torch.cuda.is_available(),
        has_bf16=has_bf16(device),
        has_compiler=compiler_missing(device.type) is None,
        free_memory_bytes=_device_bytes(device) if is_cuda else free_host_bytes,
        free_host_bytes=free_host_bytes,
        free_disk_bytes=disk_free_bytes(cache),
    )


def _device_bytes(device: torch.device) -> int:
    """Return the GPU memory available to this process: free memory plus torch's reserved memory.

    Torch's cache keeps freed memory, so free memory alone would shrink from probe to probe.
    """
    return int(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))


def has_bf16(device: torch.device) -> bool:
    """Return True if the device multiplies bfloat16 in hardware."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= _MIN_CAPABILITY_BF16
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(instruction_set()))


def model_facts(subject: Subject) -> ModelFacts:
    """Collect facts about the model of a subject."""
    modules = list(subject.model.modules())
    weights = list(subject.model.parameters())
    train = subject.sources.train
    is_stochastic = isinstance(train, DatasetSource) and train.is_stochastic
    return ModelFacts(
        is_built_in=isinstance(subject.task, ImageClassification),
        has_head=subject.trunk_and_head is not None,
        is_trunk_frozen=subject.is_trunk_frozen,
        is_random_before_head=subject.task.is_random_before_head or is_stochastic,
        default_threads=train.default_threads,
        is_pretrained=is_pretrained(subject.task, subject.recipe),
        num_conv2d=sum(isinstance(module, nn.Conv2d) for module in modules),
        num_batchnorm=sum(isinstance(module, BatchNorm) for module in modules),
        num_norms=sum(isinstance(module, NORMS) for module in modules),
        num_blocks=num_blocks(subject.model) if can_checkpoint(subject.model) else 0,
        weight_bytes=sum(weight.nbytes for weight in weights),
        trainable_bytes=sum(weight.nbytes for weight in weights if weight.requires_grad),
    )


def num_blocks(model: nn.Module) -> int:
    """Count the blocks in the longest sequence of similar blocks in a model, or return 0."""
    rows = (
        list(module.children())
        for module in model.modules()
        if isinstance(module, (nn.Sequential, nn.ModuleList))
    )
    return max((len(row) for row in rows if _are_alike_blocks(row)), default=0)


def _are_alike_blocks(row: list[nn.Module]) -> bool:
    """Return True if all modules have the same type and have children."""
    return len({type(one) for one in row}) == 1 and any(True for _ in row[0].children())


def is_pretrained(task: Task, recipe: Recipe) -> bool:
    """Return True if the trunk has pretrained weights; a user's own model counts as untrained."""
    is_built_in = isinstance(task, ImageClassification)
    return is_built_in and recipe.model.weights is not WeightsSource.NONE


def store_encoding(task: Task) -> str | None:
    """Return the encoding of the task's store; None without a store."""
    store = getattr(task, "store", None)
    return str(store.manifest.encoding) if isinstance(store, Store) else None


def stored_bytes(task: Task) -> float | None:
    """Return the mean bytes of an example in the task's store; None without a store."""
    store = getattr(task, "store", None)
    shards = store.manifest.shards if isinstance(store, Store) else ()
    num_rows = sum(info.num_rows for info in shards)
    return sum(info.size_bytes for info in shards) / num_rows if num_rows else None


def source_pixels(task: Task) -> float | None:
    """Return the mean pixels of stored JPEGs, from the headers of a sample; None if unknown."""
    store = getattr(task, "store", None)
    if not isinstance(store, Store) or store.manifest.encoding != Encoding.JPEG:
        return None
    info = next((i for i in store.manifest.shards if i.split == Split.TRAIN and i.num_rows), None)
    if info is None:
        return None
    shard = Shard(store.files.path(info), info, verify=VerifyPages.NEVER)
    try:
        rows = range(0, info.num_rows, max(1, info.num_rows // _NUM_SIZED))
        forms = [find_form(shard.read(row)) for row in rows]
    finally:
        shard.close()
        store.files.release(info)
    return sum(form.height * form.width for form in forms) / len(forms)
