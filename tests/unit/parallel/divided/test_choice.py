"""Which kind of parallelism fits a model: memory first, then how many examples there are."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from stepladder.models.torchvision_shim import import_timm
from stepladder.parallel.divided.choice import Kind, choose, memory_of, size_words, traffic_of
from stepladder.parallel.divided.size import model_size
from stepladder.records.model_size import ModelSize

MB = 10**6
SIZE = ModelSize(
    weights=100 * MB,
    trained=100 * MB,
    states=200 * MB,
    kept=10 * MB,
    unit=10 * MB,
    divided=80 * MB,
    shares=4,
    inner=8 * MB,
    summed=1 * MB,
    cut=MB // 2,
    num_cuts=12,
)


def test_memory_by_kind() -> None:
    """Four devices, 32 examples: 8 each if each computes its own."""
    found = {kind: num / MB for kind, num in memory_of(SIZE, devices=4, batch=32).items()}
    assert found[Kind.DATA] == 400 + 8 * 10
    assert found[Kind.SHARDED] == 400 / 4 + 2 * 10 + 8 * 10
    assert found[Kind.TENSOR] == pytest.approx(400 * (0.2 + 0.8 / 4) + 32 * (2 + 8 / 4))
    assert found[Kind.PIPELINE] == 400 / 4 + 32 * 10 / 4 / 4


def test_traffic_by_kind() -> None:
    found = {kind: num / MB for kind, num in traffic_of(SIZE, devices=4, batch=32).items()}
    assert found[Kind.DATA] == pytest.approx(2 * 3 / 4 * 100)
    assert found[Kind.SHARDED] == pytest.approx(3 * 3 / 4 * 100)
    assert found[Kind.TENSOR] == pytest.approx(2 * 3 / 4 * 2 * 32)  # a sum forward, one backward
    assert found[Kind.PIPELINE] == pytest.approx(2 * 0.5 * 32)


@pytest.mark.parametrize(
    ("memory_mb", "batch", "kind"),
    [
        (500, 32, Kind.DATA),
        (450, 32, Kind.SHARDED),
        (190, 32, Kind.PIPELINE),
        (100, 32, None),
        (500, 2, Kind.TENSOR),  # two devices would have nothing to compute
        (120, 2, Kind.PIPELINE),
    ],
)
def test_the_first_kind_that_fits(memory_mb: int, batch: int, kind: Kind | None) -> None:
    choice = choose(SIZE, devices=4, batch=batch, memory=memory_mb * MB)
    assert choice.kind is kind


def test_the_reason_has_both_byte_counts() -> None:
    reason = choose(SIZE, devices=4, batch=32, memory=500 * MB).reason
    assert reason == (
        "copies fit, with 480 MB of 500 MB; copies send 150 MB a step, a pipeline 32 MB"
    )


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [(350_000, "0.35 MB"), (35 * MB, "35 MB"), (999_800_000, "1 GB"), (3.5e9, "3.5 GB")],
)
def test_sizes_are_short(num_bytes: float, words: str) -> None:
    assert size_words(num_bytes) == words


def test_the_size_of_a_small_network_is_that_of_its_tensors() -> None:
    """Of an example: the inputs of both layers, and the output of tanh, which is one."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    inputs = torch.rand(3, 4)
    size = model_size(
        net, lambda num: net(inputs[:num]), state_numbers=lambda weight: 2 * weight.numel()
    )
    num = 4 * 8 + 8 + 8 * 2 + 2
    assert (size.weights, size.trained, size.states) == (4 * num, 4 * num, 8 * num)
    assert size.kept == 4 * (4 + 8)
    assert (size.divided, size.inner, size.summed) == (4 * num, 4 * 8, 4 * 2)
    assert size.cut == 4 * 8
    assert all(weight.grad is None for weight in net.parameters())


def test_the_meta_device_gives_what_the_processor_gives() -> None:
    sizes = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            net = import_timm().create_model("resnet18", num_classes=3).eval()
            inputs = torch.empty(2, 3, 224, 224)

        def run(num: int, net: nn.Module = net, inputs: torch.Tensor = inputs) -> Any:
            return net(inputs[:num])

        sizes.append(model_size(net, run, state_numbers=torch.numel))
    assert sizes[0].kept == sizes[1].kept
    assert replace(sizes[0], copies=0) == replace(sizes[1], copies=0)  # means of BatchNorm


def test_a_vit_adds_up_the_output_of_each_attention_and_mlp() -> None:
    with torch.device("meta"):
        net = import_timm().create_model("vit_tiny_patch16_224", num_classes=3).eval()
        inputs = torch.empty(2, 3, 224, 224)
    size = model_size(net, lambda num: net(inputs[:num]), state_numbers=torch.numel)
    assert size.summed == 24 * 197 * 192 * 4
    assert size.cut == 197 * 192 * 4
    assert 0.6 < size.inner / size.kept < 0.9
    assert size.shares == 3  # heads


def test_sixteen_bit_copies_of_weights_do_not_grow_with_the_batch() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    inputs = torch.rand(2, 64)

    def run(num: int) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return net(inputs[:num])

    size = model_size(net, run, state_numbers=torch.numel)
    assert size.copies == 2 * 64 * 8  # the gradient of the first layer needs its inputs alone
    assert size.kept < 1000


def test_kinds_that_the_model_does_not_allow_are_left_out() -> None:
    """Six heads for four devices, and one cut for four stages."""
    found = memory_of(replace(SIZE, shares=6, num_cuts=1), devices=4, batch=32)
    assert set(found) == {Kind.DATA, Kind.SHARDED}


def test_a_pipeline_of_single_examples_keeps_all_of_them() -> None:
    found = memory_of(SIZE, devices=4, batch=2)
    assert found[Kind.PIPELINE] / MB == 400 / 4 + 2 * 10 / 4


def test_examples_that_are_not_computed_at_once_are_not_kept() -> None:
    found = memory_of(SIZE, devices=4, batch=32, at_once=4)
    assert found[Kind.DATA] / MB == 400 + 10


def test_a_pass_that_counts_leaves_nothing_behind() -> None:
    """A weight that its graph kept would stay in memory until the process ends."""

    def count() -> tuple[Any, Any]:
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        inputs = torch.rand(3, 4)
        model_size(net, lambda num: net(inputs[:num]), state_numbers=torch.numel)
        return weakref.ref(net[0].weight.untyped_storage()), weakref.ref(net[0].weight)

    alive, weight = count()
    gc.collect()
    assert weight() is None
    assert alive() is None
