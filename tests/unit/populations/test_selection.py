"""Selection: who takes from whom, in both readings, by hand-computed cases and as laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.config.choices import Perturbed, Selection
from stepladder.config.options import PopulationConfig
from stepladder.populations.genes import Gene, Scale
from stepladder.populations.selection import first_values, ranked, select

GENES = (
    Gene(key="batch.lr", low=1e-4, high=1.0, scale=Scale.LOG),
    Gene(key="loss.class_weights", choices=("none", "balanced")),
)
LOSSES = (0.5, 0.1, 0.9, 0.3, 0.7, 0.2)
VALUES = tuple((0.01 * (idx + 1), "none") for idx in range(6))


def heirs(losses=LOSSES, values=VALUES, *, generation=3, **options):
    config = PopulationConfig(members=len(losses), **{"top_frac": 1 / 3, **options})
    return select(losses, values, GENES, config, seed=7, generation=generation)


def test_the_best_comes_first_and_what_diverged_comes_last() -> None:
    assert ranked([0.5, math.nan, 0.1, math.inf, 0.3])[:3] == [2, 4, 0]


def test_truncation_replaces_the_worst_by_the_best() -> None:
    found = heirs()
    changed = [idx for idx, heir in enumerate(found) if heir.parent != idx]
    assert changed == [2, 4], "the two worst"
    assert {found[idx].parent for idx in changed} <= {1, 5}, "the two best"
    kept = [idx for idx in range(6) if idx not in changed]
    assert all(found[idx].values == VALUES[idx] for idx in kept)


def test_copies_have_the_settings_of_their_parent_perturbed() -> None:
    found = heirs(redraw_frac=0.0)
    for idx in (2, 4):
        ratio = found[idx].values[0] / VALUES[found[idx].parent][0]
        assert ratio == pytest.approx(1.2) or ratio == pytest.approx(1 / 1.2)


def test_top_k_as_it_is_often_written_moves_the_winners() -> None:
    found = heirs(selection=Selection.TOP_K, perturbed=Perturbed.WINNERS, redraw_frac=0.0)
    for idx, heir in enumerate(found):
        if idx in (1, 5):
            assert heir.parent == idx
            ratio = heir.values[0] / VALUES[idx][0]
            assert ratio == pytest.approx(1.2) or ratio == pytest.approx(1 / 1.2)
        else:
            assert heir.parent in (1, 5)
            assert heir.values == VALUES[idx], "the copies keep their own settings"


def test_a_member_that_diverged_also_loses_its_settings() -> None:
    losses = (0.5, 0.1, math.nan, 0.3, 0.7, 0.2)
    for perturbed in Perturbed:
        found = heirs(losses, perturbed=perturbed, redraw_frac=0.0)[2]
        assert found.parent in (1, 5)
        ratio = found.values[0] / VALUES[found.parent][0]
        assert ratio == pytest.approx(1.2) or ratio == pytest.approx(1 / 1.2)


losses = st.lists(st.floats(0, 10) | st.just(math.nan), min_size=2, max_size=40).filter(
    lambda found: any(math.isfinite(one) for one in found)
)


@given(
    losses=losses,
    selection=st.sampled_from(Selection),
    perturbed=st.sampled_from(Perturbed),
    top_frac=st.floats(0.01, 0.5),
    generation=st.integers(0, 5),
)
def test_laws(losses, selection, perturbed, top_frac, generation) -> None:
    values = first_values(GENES, len(losses), seed=1)
    options = {"selection": selection, "perturbed": perturbed, "top_frac": top_frac}
    found = heirs(losses, values, generation=generation, **options)
    assert found == heirs(losses, values, generation=generation, **options), "repeatable"
    finite = [one for one in losses if math.isfinite(one)]
    for idx, heir in enumerate(found):
        assert math.isfinite(losses[heir.parent]), "nobody takes from one that diverged"
        if math.isfinite(losses[idx]):
            assert losses[heir.parent] <= losses[idx], "nobody takes from a worse one"
        for gene, value in zip(GENES, heir.values, strict=True):
            if gene.choices:
                assert value in gene.choices
            else:
                assert gene.low <= value <= gene.high
    best = min(finite)
    assert any(losses[heir.parent] == best for heir in found), "the best is kept"


def test_each_generation_draws_other_values() -> None:
    drawn = {heirs(generation=generation, redraw_frac=1.0)[2].values for generation in range(8)}
    assert len(drawn) == 8


def test_the_first_member_has_the_settings_of_the_recipe() -> None:
    found = first_values(GENES, 4, seed=3, own=(0.5, "balanced"))
    assert found[0] == (0.5, "balanced")
    assert found[1:] == first_values(GENES, 4, seed=3)[1:]


def test_a_logarithmic_range_is_drawn_evenly_by_factors() -> None:
    rng = np.random.default_rng(0)
    drawn = np.log10([GENES[0].draw(rng) for _ in range(2000)])
    counts, _ = np.histogram(drawn, bins=4, range=(-4, 0))
    assert counts.min() > 400
