"""Large embeddings of a script's models, and why their gradient cannot be sparse."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from torch import nn

from stepladder.records.script import LargeTable
from stepladder.watching.causes.tables import dense_share
from stepladder.watching.seen.costs import TableSeen
from stepladder.watching.seen.seen import Seen

_MIN_VALUES: Final = 1_000_000
_NO_MODULE: Final = "the table is no nn.Embedding of a model that has a name at its optimizer"


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """An embedding in a model that an optimizer trains.

    Attributes:
        model: the script's name of the model.
        module: the embedding's name in it; empty: it is the model.
        why_not: why its gradient cannot be sparse; None: it can.
    """

    model: str
    module: str
    why_not: str | None


def embeddings_of(name: str, model: nn.Module) -> dict[int, Embedding]:
    """Return the large embeddings of a model, by the identity of their weights.

    Args:
        name: what the script calls the model.
    """
    return {
        id(module.weight): Embedding(model=name, module=path, why_not=_why_not_sparse(module))
        for path, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        and module.weight.numel() >= _MIN_VALUES
    }


def _why_not_sparse(module: nn.Embedding | nn.EmbeddingBag) -> str | None:
    if module.scale_grad_by_freq:
        return "with scale_grad_by_freq, torch has no sparse gradient"
    if isinstance(module, nn.EmbeddingBag) and module.mode == "max":
        return 'with mode="max", torch has no sparse gradient'
    return None


def make_sparse(name: str, model: nn.Module, tables: Collection[str]) -> None:
    """Let embeddings of a model have sparse gradients.

    Args:
        name: what the script calls the model.
        tables: names of embeddings in the script, such as `net.table`.
    """
    for path, module in model.named_modules():
        if (f"{name}.{path}" if path else name) in tables:
            module.sparse = True


def tables_of(
    embeddings: Mapping[int, Embedding], seen: Seen, shares: Mapping[str, float]
) -> tuple[LargeTable, ...]:
    """Return the large tables of which a step uses few rows.

    Args:
        embeddings: by the identity of their weights.
        shares: of the time, by phase.
    """
    found = []
    for table in seen.costs.tables.values():
        one = embeddings.get(table.identity)
        why_not = one.why_not if one is not None else _NO_MODULE
        why_not = why_not or _why_not_taken(table)
        if why_not is None and seen.clippings:
            why_not = "gradients are clipped, which torch cannot do with sparse ones"
        found.append(
            LargeTable(
                model=one.model if one is not None else "",
                module=one.module if one is not None else table.name,
                num_rows=table.shape[0],
                num_used=table.num_used,
                share=dense_share(table, seen.costs.num_floats, shares),
                why_not=why_not,
            )
        )
    return tuple(found)


def _why_not_taken(table: TableSeen) -> str | None:
    """Return why the optimizer of a table cannot take a sparse gradient as it is."""
    kind = table.optimizer
    if kind not in ("SGD", "Adagrad"):
        return f"{kind} takes no sparse gradient"
    if kind == "Adagrad" and not table.on_cpu:
        return "Adagrad takes sparse gradients only on a CPU"
    if table.has_momentum:
        return "momentum moves all rows in each step"
    if table.has_decay:
        return "weight decay moves all rows in each step"
    return f"fused {kind} takes no sparse gradient" if table.is_fused else None
