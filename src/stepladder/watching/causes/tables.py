"""Embedding tables of which a step uses few rows, but updates all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.seen.costs import TableSeen

_MIN_SHARE: Final = 0.03


def table_causes(evidence: Evidence) -> list[Cause]:
    """Name the largest of the tables whose dense gradients take time, and that of all of them.

    Nothing is named if gradients are clipped, which torch cannot do with sparse ones.
    """
    costs = evidence.seen.costs
    if not costs.tables or not costs.num_floats or evidence.seen.clippings:
        return []
    tables = list(costs.tables.values())
    one = max(tables, key=lambda table: table.shape[0] * table.shape[1])
    share = sum(dense_share(table, costs.num_floats, evidence.shares) for table in tables)
    if share < _MIN_SHARE:
        return []
    rest = f", and on {len(tables) - 1} more such tables" if len(tables) > 1 else ""
    text = (
        f"up to {percent(share)} of the time is spent on the gradient of all {one.shape[0]:,} rows "
        f"of the embedding `{one.name}`, of which a step uses at most {one.num_used:,} "
        f"({one.where}){rest}: {_change(one)}"
    )
    return [Cause(name="sparse_gradients", share=share, text=text)]


def dense_share(one: TableSeen, num_floats: int, shares: Mapping[str, float]) -> float:
    """Return the share of the time that rows of a table take of which a step uses none, a bound.

    The table's part of the optimizer's step is that of its values among all weights. Building the
    gradient writes as many values, and is taken to need as long, at most the time of backward.

    Args:
        num_floats: values of all weights.
        shares: of the time, by phase.
    """
    part = min(1.0, one.shape[0] * one.shape[1] / max(1, num_floats))
    step_share = part * shares.get("optimizer", 0.0)
    build_share = min(step_share, shares.get("backward", 0.0))
    return (step_share + build_share) * (1 - one.num_used / one.shape[0])


def _change(one: TableSeen) -> str:
    """Return the change, which keeps the optimizer if that takes sparse gradients."""
    is_kept = (one.optimizer == "SGD" and not one.has_momentum) or (
        one.optimizer == "Adagrad" and one.on_cpu
    )
    if not is_kept:
        return (
            "pass sparse=True to it, train it with torch.optim.SparseAdam, which updates only used "
            "rows and has no weight decay, and the other weights as before; compare the accuracy"
        )
    without = [
        *(["fused=True"] if one.is_fused else []),
        *(["weight decay for it"] if one.has_decay else []),
    ]
    leaves = f", without {' and '.join(without)}" if without else ""
    return f"pass sparse=True to it, which {one.optimizer} can use{leaves}"
