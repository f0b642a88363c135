"""The fitted cost of messages, and the algorithm that it chooses for a size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepladder.config.choices import AllReduce
from stepladder.parallel.collectives.algorithms import ALGORITHMS, Shape, distinct
from stepladder.parallel.collectives.choice import NATIVE, Choice, crossovers, native_s
from stepladder.parallel.collectives.cost import schedule_s
from stepladder.parallel.collectives.executor import Executor
from stepladder.parallel.collectives.probe import MessageTimes, fit_line, fit_link
from stepladder.parallel.collectives.transport import Hub
from stepladder.records.collectives import Fit, Link

LINK = Link.plain(alpha_s=1e-3, beta_s=1e-8, gamma_s=1e-10)
FIT = Fit(num_ranks=8, num_local=1, link=LINK, native_sizes=(1000, 10**6), native_s=(8e-3, 40e-3))
SIZES = tuple(4**power * 1000 for power in range(9))


def test_the_options_are_the_algorithms() -> None:
    names = {algorithm.name for algorithm in ALGORITHMS} | {NATIVE, "auto"}
    assert {option.value for option in AllReduce} == names


@pytest.mark.parametrize(("alpha", "beta"), [(1e-3, 1e-8), (2e-5, 3e-10), (0.0, 1e-9), (1e-4, 0)])
def test_a_line_is_found_again(alpha: float, beta: float) -> None:
    sizes = [1000, 16_000, 128_000, 10**6]
    found = fit_line(sizes, [alpha + size * beta for size in sizes])
    assert found == pytest.approx((alpha, beta), rel=1e-6, abs=1e-12)


def test_neither_the_fixed_time_nor_that_of_a_byte_is_negative() -> None:
    assert fit_line([100, 200], [1.0, 3.0])[0] == 0.0
    assert fit_line([100, 200], [3.0, 1.0])[1] == 0.0


def test_exchanges_and_additions_have_figures_of_their_own() -> None:
    sizes = (1000, 100_000, 10**6)
    link = fit_link(
        MessageTimes(
            sizes=sizes,
            one_way_s=[1e-3 + 1e-9 * size for size in sizes],
            exchange_s=[2e-3 + 3e-9 * size for size in sizes],
            add_s_per_byte=1e-9,
        )
    )
    assert link.alpha_s == pytest.approx(1e-3)
    assert link.exchange_alpha_s == pytest.approx(2e-3)
    assert link.exchange_beta_s == pytest.approx(3e-9)
    assert link.gamma_s == 1e-9


def test_few_steps_are_chosen_for_small_tensors_and_few_bytes_for_large_ones() -> None:
    choice = Choice(FIT, has_native=False)
    assert choice(1000).name == "parameter_server"  # two steps, of seven small messages at once
    assert choice(30_000).name == "recursive_doubling"
    assert choice(10**8).name in {"halving_doubling", "binary_blocks"}  # one, for 8 ranks
    names = [name for name, _ in crossovers([choice(size).name for size in SIZES], SIZES)]
    assert len(names) == len(set(names))


def test_the_choice_is_the_fastest_prediction_of_all() -> None:
    choice = Choice(FIT)
    for size in SIZES:
        chosen = choice(size)
        times = [choice.of(algorithm, size).predicted_s for algorithm in ALGORITHMS]
        assert chosen.predicted_s == min(*times, native_s(FIT, size))
        if chosen.schedule is not None:
            assert schedule_s(chosen.schedule, size, LINK) == chosen.predicted_s


def test_torch_is_chosen_where_it_was_measured_to_be_faster() -> None:
    quick = replace(FIT, native_s=(1e-6, 1e-5))
    assert Choice(quick)(64_000).name == NATIVE
    assert Choice(quick)(64_000).schedule is None


def test_times_of_torch_are_read_between_and_beyond_the_measured_sizes() -> None:
    assert native_s(FIT, 1000) == pytest.approx(8e-3)
    assert native_s(FIT, 31_623) == pytest.approx((8e-3 * 40e-3) ** 0.5, rel=1e-3)
    assert native_s(FIT, 10**7) == pytest.approx(0.4)
    assert native_s(FIT, 0) == pytest.approx(8e-3)


def test_a_long_tensor_goes_through_a_tree_in_segments() -> None:
    choice = Choice(FIT)
    tree = next(one for one in ALGORITHMS if one.name == "binary_tree")
    assert choice.of(tree, 1000).num_segments == 1
    assert choice.of(tree, 10**8).num_segments > 4


def test_equal_schedules_are_listed_once() -> None:
    names = [one.name for one in distinct(Shape(num_ranks=4))]
    assert "halving_doubling" in names
    assert "binary_blocks" not in names
    assert "hierarchical" not in names
    assert "binary_blocks" in [one.name for one in distinct(Shape(num_ranks=6))]
    assert "hierarchical" in [one.name for one in distinct(Shape(num_ranks=4, num_local=2))]


def test_pieces_are_longer_where_a_message_costs_more() -> None:
    executor = Executor(Hub(1).rank(0))
    lengths = []
    for alpha_s in (1e-6, 1e-4, 1e-3, 1.0):
        executor.use_pieces_for(Link.plain(alpha_s=alpha_s, beta_s=1e-9))
        lengths.append(executor.piece_bytes)
    assert lengths == [65_536, 2_097_152, 16_777_216, 16_777_216]
