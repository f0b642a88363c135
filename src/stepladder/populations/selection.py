"""Selection: which members take the weights of which, and with which settings they train on.

Source: Jaderberg et al. 2017, "Population Based Training of Neural Networks", arXiv:1711.09846.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepladder.config.choices import Perturbed, Selection
from stepladder.config.options import PopulationConfig
from stepladder.populations.genes import Gene, Value, Values


@dataclass(frozen=True, kw_only=True)
class Heir:
    """What a member trains on with after a selection.

    Attributes:
        parent: the member whose weights and optimizer state it has: itself, if it keeps its own.
        values: of its genes.
    """

    parent: int
    values: Values


def first_values(
    genes: Sequence[Gene], num: int, *, seed: int, own: Sequence[Value | None] = ()
) -> tuple[Values, ...]:
    """Draw the genes of all members; the first one has those of the recipe.

    Args:
        own: the values of the recipe; None: it has none within the range, and one is drawn.
    """
    drawn = [tuple(gene.draw(rng) for gene in genes) for rng in _rngs(seed, 0, num)]
    first = [one if one is not None else drawn[0][idx] for idx, one in enumerate(own)]
    return (tuple(first) or drawn[0], *drawn[1:])


def ranked(losses: Sequence[float]) -> list[int]:
    """Return the members from the best to the worst; those that diverged are the last.

    The best comes first: a sort by loss ascends, one by accuracy has to descend. Taken literally,
    an ascending sort by accuracy would keep the worst.
    """
    return sorted(
        range(len(losses)), key=lambda idx: losses[idx] if math.isfinite(losses[idx]) else math.inf
    )


def select(
    losses: Sequence[float],
    values: Sequence[Values],
    genes: Sequence[Gene],
    config: PopulationConfig,
    *,
    seed: int,
    generation: int,
) -> tuple[Heir, ...]:
    """Return what each member trains on with.

    - truncation: each of the worst takes the weights of a random one of the best.
    - top_k: each member that is not among the best does.
    - copies: who took weights also takes the settings, perturbed.
    - winners: who took weights keeps its own settings, and those of the best are perturbed.

    A member that diverged is always replaced, and its settings too. The same arguments give the
    same result.

    Args:
        losses: of all members, lower is better; not finite for a member that diverged. At least
            one is finite.
        values: the genes with which they were trained.
        generation: number of selections before this one.
    """
    num = len(losses)
    order = ranked(losses)
    num_top = max(1, min(round(config.top_frac * num), num // 2))
    top = [idx for idx in order[:num_top] if math.isfinite(losses[idx])]
    num_replaced = num_top if config.selection is Selection.TRUNCATION else num - num_top
    replaced = {idx for idx in order[num - num_replaced :] if idx not in top}
    replaced |= {idx for idx in range(num) if not math.isfinite(losses[idx])}
    heirs = []
    for idx, rng in enumerate(_rngs(seed, generation + 1, num)):
        parent = top[int(rng.integers(len(top)))] if idx in replaced else idx
        if config.perturbed is Perturbed.COPIES or not math.isfinite(losses[idx]):
            own, is_moved = values[parent], idx in replaced
        else:
            own, is_moved = values[idx], idx in top
        heirs.append(
            Heir(parent=parent, values=_moved(own, genes, config, rng) if is_moved else own)
        )
    return tuple(heirs)


def _moved(
    values: Values, genes: Sequence[Gene], config: PopulationConfig, rng: np.random.Generator
) -> Values:
    return tuple(
        gene.perturbed(value, rng, factor=config.factor, redraw_frac=config.redraw_frac)
        for gene, value in zip(genes, values, strict=True)
    )


def _rngs(seed: int, generation: int, num: int) -> list[np.random.Generator]:
    """Return a generator for each member, the same whenever it is asked for."""
    return [np.random.default_rng([seed, generation, idx]) for idx in range(num)]
