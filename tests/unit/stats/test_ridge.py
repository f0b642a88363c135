"""The ridge probe: its closed form compared with leaving out examples one by one."""

from __future__ import annotations

import numpy as np
import pytest

from stepladder.stats.ridge import kernel, leave_one_out, permutation_p, probe_accuracies


def test_leave_one_out_is_what_leaving_one_out_gives() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(15, 3)), random.normal(size=(15, 2))
    matrix = x @ x.T
    centred = matrix - matrix.mean(0) - matrix.mean(1, keepdims=True) + matrix.mean()
    strength = 0.7 * np.trace(centred) / 15
    found = leave_one_out(matrix, ridge=0.7)(y)
    for out in range(15):
        kept = np.arange(15) != out
        design = np.concatenate([x[kept], np.ones((14, 1))], axis=1)
        penalty = strength * np.diag([1.0, 1, 1, 0])
        weights = np.linalg.solve(design.T @ design + penalty, design.T @ y[kept])
        assert found[out] == pytest.approx(np.append(x[out], 1) @ weights)


def test_a_probe_reads_labels_that_are_there_and_no_others() -> None:
    random = np.random.default_rng(1)
    labels = np.arange(120) % 3
    x = random.normal(size=(120, 8)) + 2 * np.eye(8)[labels]
    accuracy, dealt = probe_accuracies(kernel(x), labels, num_draws=99, seed=0)
    assert accuracy > 0.75
    assert permutation_p(accuracy, dealt) == 0.01
    lost, dealt = probe_accuracies(kernel(x), random.permutation(labels), num_draws=99, seed=0)
    assert permutation_p(lost, dealt) > 0.05


def test_a_probe_reads_what_no_line_separates() -> None:
    x = np.random.default_rng(2).normal(size=(240, 2))
    accuracy, dealt = probe_accuracies(
        kernel(x), (x[:, 0] > 0) ^ (x[:, 1] > 0), num_draws=49, seed=0
    )
    assert accuracy > 0.85
    assert dealt.max() < 0.65


def test_permutation_p_is_never_zero() -> None:
    assert permutation_p(1.0, np.zeros(99)) == 0.01
    assert permutation_p(0.0, np.zeros(99)) == 1.0


def test_kernel_of_other_rows_goes_by_the_columns_alone() -> None:
    x = np.random.default_rng(3).normal(size=(20, 4))
    assert kernel(x[:5], x) == pytest.approx(kernel(x)[:5])
