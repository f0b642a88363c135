"""Formulas of exchanges count what the schedules do."""

from __future__ import annotations

import pytest

from stepladder.errors import UsageError
from stepladder.parallel.collectives.algorithms import ALGORITHMS, Algorithm, Shape
from stepladder.parallel.collectives.choice import SEGMENTS
from stepladder.parallel.collectives.cost import schedule_s
from stepladder.parallel.collectives.hierarchical import hierarchical
from stepladder.planning.costs.all_reduce import (
    ALL_REDUCES,
    FORMULAS,
    Group,
    all_reduce_s,
    hierarchical_s,
    nccl_ring_s,
    ring_s,
)
from stepladder.planning.costs.divided import (
    fsdp_s,
    pipeline_bubble_frac,
    pipeline_s,
    tensor_parallel_s,
)
from stepladder.records.collectives import Link

LINKS = (
    Link(
        alpha_s=1e-5,
        beta_s=1e-9,
        exchange_alpha_s=1.5e-5,
        exchange_beta_s=1.3e-9,
        gamma_s=2e-10,
    ),
    Link.plain(alpha_s=5e-5, beta_s=1e-10),
)
RANKS = (2, 3, 4, 5, 6, 7, 8, 11, 16, 24, 33, 64)
SIZES = (64 * 33 * 35, 64 * 1024**2)
EXACT = 1e-3  # chunks are whole bytes


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda one: one.name)
def test_a_formula_is_the_time_of_its_schedule(algorithm: Algorithm) -> None:
    if algorithm.has_hosts:
        assert algorithm.name in ALL_REDUCES
        return  # of two connections: see below
    segments = SEGMENTS if algorithm.has_segments else (1,)
    if algorithm.name == "reduction_tree":
        segments = (1,)  # the paper's, unpipelined
    for num in RANKS:
        schedules = [algorithm.schedule(Shape(num_ranks=num, num_segments=k)) for k in segments]
        for link in LINKS:
            for size in SIZES:
                wanted = min(schedule_s(one, size, link) for one in schedules)
                found = FORMULAS[algorithm.name](num, size, link)
                # the formula of a tree counts whole levels; small blocks overlap in places
                is_regular = num & (num - 1) == 0
                low = 0.85 if algorithm.name == "reduction_tree" and not is_regular else 1 - EXACT
                high = 1.05 if algorithm.name == "binary_blocks" and not is_regular else 1 + EXACT
                assert low * wanted <= found <= high * wanted, (num, size)


def test_a_hierarchy_over_one_kind_of_connection_is_its_schedule() -> None:
    for hosts, devices in ((2, 2), (3, 4), (4, 2)):
        for link in LINKS:
            group = Group(hosts=hosts, devices=devices, inside=link, network=link, cards=devices)
            wanted = schedule_s(hierarchical(hosts * devices, devices), 4_800_000, link)
            assert hierarchical_s(group, 4_800_000) == pytest.approx(wanted, rel=EXACT)


def test_cards_of_a_host_share_what_it_sends() -> None:
    network = Link.plain(alpha_s=0.0, beta_s=1e-9)
    inside = Link.plain(alpha_s=0.0, beta_s=0.0)
    one, four = (
        hierarchical_s(Group(hosts=2, devices=8, inside=inside, network=network, cards=cards), 1e9)
        for cards in (1, 4)
    )
    assert one == pytest.approx(1.0)  # 2 (m - 1) / m of a gigabyte
    assert four == pytest.approx(0.25)


def test_bytes_of_a_flat_ring_flow_through_the_slowest_connection() -> None:
    network, inside = (Link.plain(alpha_s=0.0, beta_s=beta) for beta in (1e-9, 1e-10))
    group = Group(hosts=2, devices=4, inside=inside, network=network)
    assert nccl_ring_s(group, 8e9) == pytest.approx(2 * 7 / 8 * 8)
    assert all_reduce_s("ring", group, 8e9) == pytest.approx(ring_s(8, 8e9, network))
    assert all_reduce_s("native", group, 8e9) <= nccl_ring_s(group, 8e9)


def test_devices_of_a_host_share_its_card_in_a_butterfly() -> None:
    network = Link.plain(alpha_s=0.0, beta_s=1e-9)
    one, four = (
        all_reduce_s(
            "halving_doubling",
            Group(hosts=4 // devices * 2, devices=devices, inside=network, network=network),
            1e9,
        )
        for devices in (1, 4)
    )
    assert four == pytest.approx(4 * one)


def test_one_device_sends_nothing_and_unknown_names_are_refused() -> None:
    alone = Group(hosts=1, devices=1, inside=None, network=None)
    assert all(all_reduce_s(name, alone, 1e9) == 0 for name in ALL_REDUCES)
    pair = Group(hosts=1, devices=2, inside=LINKS[0], network=None)
    with pytest.raises(UsageError, match="no all-reduce named 'rings'"):
        all_reduce_s("rings", pair, 1e9)


def test_parts_of_a_model() -> None:
    pair = Group(hosts=1, devices=2, inside=Link.plain(alpha_s=0, beta_s=1e-9), network=None)
    assert fsdp_s(pair, 1e9) == pytest.approx(3 * 0.5)
    assert fsdp_s(pair, 1e9, is_resharded=False) == pytest.approx(2 * 0.5)
    assert tensor_parallel_s(pair, 1e6, num_sums=24) == pytest.approx(4 * 12 * 1e-3)
    assert pipeline_bubble_frac(4, 12) == pytest.approx(3 / 15)
    assert pipeline_bubble_frac(4, 12, interleaved=2) == pytest.approx(3 / 27)
    assert pipeline_bubble_frac(1, 4) == 0
    found = pipeline_s(
        8.0, num_stages=4, num_parts=8, cut_bytes=0.0, link=Link.plain(alpha_s=0.5, beta_s=0.0)
    )
    assert found == pytest.approx(2.0 * (1 + 3 / 8) + 3 * 1.0)
