"""Random numbers: the same for the same (seed, step, rank), and restored afterwards."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.randomness import (
    capture_random_state,
    has_random_layers,
    restore_random_state,
    seed_everything,
    seed_step,
    step_seed,
    use_deterministic,
)

CPU = torch.device("cpu")


def draw() -> tuple[object, ...]:
    """Draw from every generator, with an odd number of Gaussians."""
    return (
        torch.rand(3).tolist(),
        torch.randn(3).tolist(),
        random.random(),
        random.gauss(0, 1),
        np.random.rand(2).tolist(),
        np.random.standard_normal(3).tolist(),
    )


def test_a_seed_gives_the_same_numbers_again() -> None:
    seed_everything(7)
    first = draw()
    assert draw() != first
    seed_everything(7)
    assert draw() == first
    seed_everything(2**40 + 7)
    assert draw() != first


def test_step_seed_has_the_values_it_has_always_had() -> None:
    """Golden: a resumed run depends on them, so they must never change."""
    assert [
        step_seed(0, 0, 0),
        step_seed(0, 1, 0),
        step_seed(0, 0, 1),
        step_seed(42, 10**9, 7),
    ] == [
        1279368494785126216,
        2482289063980384216,
        1700482428262628912,
        156556063244648845,
    ]


def splitmix64(state: int) -> int:
    """Return the first output of SplitMix64, with NumPy's wrapping integers."""
    with np.errstate(over="ignore"):
        z = np.uint64(state) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int(z ^ (z >> np.uint64(31)))


def test_step_seed_is_splitmix64_over_the_three_parts() -> None:
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # the published first output for seed 0
    for seed, step, rank in ((0, 0, 0), (3, 5, 1), (2**63, 10**12, 1023)):
        wanted = splitmix64(splitmix64(splitmix64(seed) ^ step) ^ rank) >> 1
        assert step_seed(seed, step, rank) == wanted


def test_step_seeds_differ_in_every_part() -> None:
    seeds = {step_seed(a, b, c) for a in range(20) for b in range(50) for c in range(20)}
    assert len(seeds) == 20 * 50 * 20
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_dropout_depends_on_the_step_alone_and_not_on_what_was_drawn_before() -> None:
    dropout, ones = nn.Dropout(0.5), torch.ones(64)
    seed_step(1, 10, 0, CPU)
    first = dropout(ones)
    torch.rand(5)
    seed_step(1, 11, 0, CPU)
    assert not dropout(ones).equal(first)
    seed_step(1, 10, 0, CPU)
    assert dropout(ones).equal(first)
    torch.manual_seed(step_seed(1, 10, 0))
    assert dropout(ones).equal(first)


class FunctionalDropout(nn.Module):
    """Like timm's efficientnet, which stores its rate."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop_rate = rate


@pytest.mark.parametrize(
    ("layer", "wanted"),
    [
        (nn.Linear(2, 2), False),
        (nn.BatchNorm2d(2), False),
        (nn.Dropout(0.0), False),
        (nn.Dropout(0.1), True),
        (nn.Dropout2d(0.1), True),
        (nn.AlphaDropout(0.1), True),
        (nn.RReLU(), True),
        (nn.MultiheadAttention(4, 2, dropout=0.1), True),
        (nn.MultiheadAttention(4, 2), False),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.3), True),
        (FunctionalDropout(0.2), True),
        (FunctionalDropout(0.0), False),
    ],
    ids=lambda value: str(value).split("(")[0],
)
def test_random_layers_are_found_in_train_mode_alone(layer: nn.Module, wanted: bool) -> None:
    model = nn.Sequential(nn.Sequential(layer), nn.ReLU())
    assert has_random_layers(model.train()) is wanted
    assert not has_random_layers(model.eval())


def test_frozen_dropout_before_a_head_without_any_is_not_random() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)).train()
    model[0].eval()
    assert not has_random_layers(model)


def test_the_state_of_every_generator_comes_back_through_a_checkpoint(tmp_path: object) -> None:
    seed_everything(3)
    draw()
    tensors, values = capture_random_state()
    checkpoints = Checkpoints(tmp_path)  # type: ignore[arg-type]
    checkpoints.save("step-000000001", {"random": tensors}, {"random": values}, {})
    wanted = draw()
    seed_everything(4)
    loaded = checkpoints.newest()
    assert loaded is not None
    restore_random_state(loaded.tensors["random"], loaded.state["random"])
    assert draw() == wanted


def test_operations_without_a_deterministic_kernel_are_named_once() -> None:
    with use_deterministic() as operations:
        assert torch.are_deterministic_algorithms_enabled()
        for _ in range(3):
            torch.zeros(4).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert operations == ["put_"]
    assert not torch.are_deterministic_algorithms_enabled()


def test_other_warnings_are_shown_as_before() -> None:
    with pytest.warns(UserWarning, match="something else"), use_deterministic() as operations:
        warnings.warn("something else", stacklevel=1)
    assert operations == []


def test_deterministic_settings_are_put_back_after_an_error() -> None:
    before = torch.backends.cudnn.benchmark
    with pytest.raises(KeyError), use_deterministic():
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark == before


def test_switched_off_it_changes_nothing() -> None:
    with use_deterministic(False) as operations:
        assert not torch.are_deterministic_algorithms_enabled()
    assert operations == []
