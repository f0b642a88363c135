"""Operations that are too small, on machines of several speeds."""

from __future__ import annotations

import pytest
import torch

from stepladder.watching.causes import overhead
from stepladder.watching.causes.contract import Evidence
from stepladder.watching.seen.seen import Seen


def evidence(node_s: float, num_nodes: int = 500) -> Evidence:
    seen = Seen()
    seen.costs.num_nodes = num_nodes
    return Evidence(
        seen=seen,
        shares={"forward": 0.5, "backward": 0.5},
        whole_s=10 * num_nodes * node_s,
        num_steps=10,
        facts={},
    )


@pytest.mark.parametrize(
    ("node_s", "times_slower", "expected"),
    [
        (50e-6, 1, True),
        (70e-6, 1, False),
        (70e-6, 2, True),
        (200e-6, 2, False),
        (2e-3, 100, False),  # heavy, however busy the machine was when it was asked
    ],
)
def test_the_limit_is_that_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, node_s: float, times_slower: float, expected: bool
) -> None:
    monkeypatch.setattr(overhead, "_tiny_node_s", lambda: times_slower * overhead._QUIET_S)
    assert overhead.is_overhead(evidence(node_s), 60e-6) is expected


def test_a_node_of_a_graph_is_measured_in_inference_mode() -> None:
    with torch.inference_mode():
        assert 0 < overhead._tiny_node_s() < 0.1


def test_without_a_graph_nothing_is_overhead() -> None:
    assert not overhead.is_overhead(evidence(1e-6, num_nodes=0), 60e-6)
