"""Options of how gradients are sent: what is refused, and with which words."""

from __future__ import annotations

import pytest

from stepladder.config.choices import AllReduce, Buckets, GradientCompression
from stepladder.config.recipe import DeviceConfig
from stepladder.errors import UsageError
from stepladder.parallel.collectives.exchange import exchange_of
from stepladder.parallel.world import World

TWO = World(rank=0, size=2, hosts=(0, 0))
RING = DeviceConfig(count=2, all_reduce=AllReduce.RING)


def test_the_defaults_and_one_process_leave_ddp_as_it_is() -> None:
    assert exchange_of(DeviceConfig(count=2), TWO, is_cuda=False) is None
    assert exchange_of(RING, World(), is_cuda=False) is None


@pytest.mark.parametrize(
    ("config", "megabytes"),
    [
        (RING, None),
        (DeviceConfig(count=2, buckets=Buckets.LAYER), 1e-6),
        (DeviceConfig(count=2, gradient_compression=GradientCompression.POWER_SGD), 1e6),
    ],
)
def test_buckets_are_those_of_ddp_or_one_for_each_weight_or_one_for_all(
    config: DeviceConfig, megabytes: float | None
) -> None:
    exchange = exchange_of(config, TWO, is_cuda=False)
    assert exchange is not None
    assert exchange.bucket_cap_mb == megabytes


def test_gpus_are_left_to_nccl() -> None:
    with pytest.raises(UsageError, match="--all-reduce ring is for CPUs: it sends over gloo"):
        exchange_of(RING, TWO, is_cuda=True)
    for config in (
        DeviceConfig(count=2, all_reduce=AllReduce.AUTO),
        DeviceConfig(count=2, gradient_compression=GradientCompression.BF16),
    ):
        assert exchange_of(config, TWO, is_cuda=True) is not None


def test_a_hierarchy_needs_as_many_ranks_on_each_host() -> None:
    levels = DeviceConfig(count=3, all_reduce=AllReduce.HIERARCHICAL)
    uneven = World(rank=0, size=3, hosts=(0, 0, 1))
    with pytest.raises(UsageError, match="a hierarchy needs as many ranks on each host"):
        exchange_of(levels, uneven, is_cuda=False)
    even = World(rank=0, size=4, hosts=(0, 0, 1, 1))
    assert exchange_of(levels, even, is_cuda=False) is not None


def test_power_sgd_has_an_all_reduce_of_its_own() -> None:
    with pytest.raises(UsageError, match="PowerSGD adds up its matrices by itself"):
        DeviceConfig(
            count=2,
            all_reduce=AllReduce.RING,
            gradient_compression=GradientCompression.POWER_SGD,
        )
