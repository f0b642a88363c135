"""Whether the operations of a step are so small that calling them takes the time."""

from __future__ import annotations

import time
from typing import Final

import torch

from stepladder.watching.causes.contract import Evidence

_QUIET_S: Final = 9e-6  # per node of a graph of tiny operations, where the limits were chosen
_BUSIEST: Final = 20.0  # beyond this many times a limit, no machine is asked
_NUM_CALLS: Final = 100
_MEASURED_S: Final = 0.03  # long enough to be interrupted as often as the script was


def is_overhead(evidence: Evidence, limit_s: float) -> bool:
    """Return whether a node of the graph took less than a limit, forward and backward.

    The limit is that of a quiet, fast machine. On a slower or busier one it is raised by what an
    operation on a few numbers takes there now.
    """
    node_s = _node_s(evidence)
    if node_s < limit_s:
        return True
    return node_s < _BUSIEST * limit_s and node_s < limit_s * _tiny_node_s() / _QUIET_S


def _node_s(evidence: Evidence) -> float:
    """Return what a node of the graph takes, forward and backward; infinite without a graph."""
    num = evidence.seen.costs.num_nodes
    step_s = evidence.whole_s / evidence.num_steps if evidence.num_steps else 0.0
    return evidence.compute * step_s / num if num else float("inf")


def _tiny_node_s() -> float:
    """Measure a node of a graph of tiny operations, in the mean of some 30 milliseconds."""
    num, start_s = 0, time.perf_counter()
    with torch.inference_mode(False), torch.enable_grad():
        while (elapsed_s := time.perf_counter() - start_s) < _MEASURED_S or not num:
            first = torch.zeros(8, device="cpu", dtype=torch.float32, requires_grad=True)
            value = first
            for _ in range(_NUM_CALLS):
                value = torch.tanh(value * 0.5)
            torch.autograd.grad(value.sum(), first)
            num += 2 * _NUM_CALLS
    return elapsed_s / num
