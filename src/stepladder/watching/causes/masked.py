"""Matrices of all pairs, of which hardly any pair counts."""

from __future__ import annotations

from typing import Final

from stepladder.watching.causes.contract import Cause, Evidence, percent

_MIN_SHARE: Final = 0.03


def masked_causes(evidence: Evidence) -> list[Cause]:
    """Name scores that are masked almost everywhere, and almost empty constant matrices."""
    one = evidence.seen.costs.masked
    if one is None:
        return []
    share = one.part * one.empty * evidence.compute
    if share < _MIN_SHARE:
        return []
    rows, columns = one.shape
    part = f"{100 * one.empty:.1f} %" if one.empty < 0.999 else "more than 99.9 %"
    if one.kind == "scores":
        text = (
            f"{part} of the {rows:,} × {columns:,} scores of a softmax are masked, and up to "
            f"{percent(share)} of the time is spent on dense matrices of this size: compute the "
            "other pairs only, such as the edges of a graph, with index_select, "
            "scatter_reduce and index_add, or with torch_geometric"
        )
    else:
        text = (
            f"{part} of the values of a constant {rows:,} × {columns:,} matrix are zero, and up to "
            f"{percent(share)} of the time is spent on its products: make it sparse once, with "
            "matrix.to_sparse_csr()"
        )
    return [Cause(name="sparse_pairs", share=share, text=text, is_loose=True)]
