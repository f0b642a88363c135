"""Genes: how they are declared, what they refuse, and how they move."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepladder.config.choices import ClassWeights
from stepladder.config.load import load_job
from stepladder.config.recipe import BatchConfig, HeadConfig, Recipe
from stepladder.config.show import dump_job
from stepladder.errors import UsageError
from stepladder.populations.genes import (
    MOVABLE,
    Gene,
    Scale,
    applied,
    genes_of,
    own_values,
    require_effect,
)

DECLARED = (
    "batch.lr 1e-4..1e-1 log, head.dropout 0..0.6; batch.global_batch_size 8..64\n"
    "loss.class_weights none|balanced, augment.flip true|false"
)


def test_a_declaration() -> None:
    found = {gene.key: gene for gene in genes_of(DECLARED, Recipe())}
    assert found["batch.lr"] == Gene(key="batch.lr", low=1e-4, high=0.1, scale=Scale.LOG)
    assert found["head.dropout"] == Gene(key="head.dropout", low=0, high=0.6)
    assert found["batch.global_batch_size"].is_whole
    assert found["loss.class_weights"].choices == ("none", "balanced")


def test_genes_of_a_file_are_one_per_line(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "population:\n  genes:\n    batch.lr: 1e-4..1e-1 log\n    head.dropout: 0..0.6\n"
    )
    job = load_job(path)
    assert job.population.genes == "batch.lr 1e-4..1e-1 log, head.dropout 0..0.6"
    path.write_text(dump_job(job))
    assert load_job(path) == job


def test_a_gene_of_a_file_needs_one_value(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("population:\n  genes:\n    batch.lr: [1, 2]\n")
    with pytest.raises(UsageError, match=r"batch\.lr of population\.genes"):
        load_job(path)


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("", "no gene", "batch.lr 1e-4..1e-1 log"),
        ("batch.lr", "has no range", "batch.lr 0.1..0.5"),
        ("batch.lr 0.1", "not a range", "batch.lr 0.1..0.5"),
        ("batch.lr 1..0.1", "has no values", "smaller number first"),
        ("batch.lr 0..1 log", "begins at 0", "leave out log"),
        ("batch.lrr 0..1", "no such option", "batch.lr"),
        ("model.name a|b", "cannot change", "batch.lr"),
        ("head.hidden 0..64", "cannot change", "head.dropout"),
        ("head.dropout 0..1", "not in [0, 1)", "in [0, 1)"),
        ("batch.global_batch_size 1.5..8", "has fractions", "2..8"),
        ("loss.class_weights none|heavy", "heavy is not", "none|balanced"),
        ("loss.class_weights none", "has no choices", "none|balanced"),
        ("loss.class_weights none|none", "has no choices", "none|balanced"),
        ("batch.global_batch_size 1..1e30", "too large a number", "at most"),
        ("batch.lr 0.1..1, batch.lr 0.1..1", "twice", "Remove"),
        ("batch.global_batch_size 16|32|many", "'many' is not a whole number", "16|32|64"),
        ("batch.global_batch_size 16|32.5", "'32.5' is not a whole number", "16|32|64"),
        ("head.dropout 0.1|", "'' is not a number", "0.1|0.2|0.4"),
        ("head.dropout 0.1|0.1", "one value only", "0.1|0.2|0.4"),
        ("head.dropout 0.1|1", "not in [0, 1)", "in [0, 1)"),
        ("augment.randaugment_ops 2", "not a range", "1..3"),
    ],
)
def test_what_is_refused(text: str, what: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        genes_of(text, Recipe())
    assert what in caught.value.what
    assert fix in str(caught.value.fix)
    assert caught.value.where == "population.genes"


@pytest.mark.parametrize("key", MOVABLE)
def test_each_option_that_can_move_is_one_of_a_recipe(key: str) -> None:
    own = own_values(Recipe(), [Gene(key=key, low=-1e9, high=1e9, choices=ENDS.get(key, ()))])
    assert len(own) == 1


ENDS = {
    "loss.class_weights": ("none", "balanced"),
    "augment.flip": ("true", "false"),
}


def test_a_recipe_with_genes() -> None:
    genes = genes_of(DECLARED, Recipe())
    recipe = applied(Recipe(), genes, (0.05, 0.5, 32, "balanced", "true"))
    assert recipe.batch == BatchConfig(lr=0.05, global_batch_size=32)
    assert recipe.head == HeadConfig(dropout=0.5)
    assert recipe.loss.class_weights is ClassWeights.BALANCED
    assert recipe.augment.flip
    assert own_values(recipe, genes) == (0.05, 0.5, 32, "balanced", "true")
    outside = own_values(Recipe(batch=BatchConfig(lr=5.0)), genes)
    assert outside == (None, 0.0, 16, "none", "false"), "5 is outside of its range"


def test_numbers_with_some_values_only_move_to_the_next() -> None:
    (gene,) = genes_of("batch.global_batch_size 64 | 16|32", Recipe())
    assert gene.levels == (16, 32, 64)
    rng = np.random.default_rng(0)
    assert {gene.draw(rng) for _ in range(50)} == {16, 32, 64}
    for value, near in ((16, {16, 32}), (32, {16, 64}), (64, {32, 64})):
        moved = [gene.perturbed(value, rng, factor=1.2, redraw_frac=0.0) for _ in range(50)]
        assert set(moved) == near
        assert all(isinstance(one, int) for one in moved)
    assert own_values(Recipe(batch=BatchConfig(global_batch_size=32)), [gene]) == (32,)
    assert own_values(Recipe(batch=BatchConfig(global_batch_size=48)), [gene]) == (None,)


numbers = st.builds(
    lambda low, width, scale, whole: Gene(
        key="batch.lr",
        low=float(round(low)) if whole else low,
        high=float(round(low) + round(width) + 1) if whole else low + width,
        scale=scale,
        is_whole=whole,
    ),
    st.floats(1, 50),
    st.floats(0.5, 100),
    st.sampled_from(Scale),
    st.booleans(),
)


@given(gene=numbers, seed=st.integers(0, 1000), factor=st.floats(1.01, 3))
def test_values_stay_in_their_range_and_move(gene: Gene, seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    value = gene.draw(rng)
    moved = gene.perturbed(value, rng, factor=factor, redraw_frac=0.0)
    for one in (value, moved):
        assert gene.low <= one <= gene.high
        assert not gene.is_whole or isinstance(one, int)
    assert moved != value or value in (gene.low, gene.high)


@pytest.mark.parametrize(
    ("text", "recipe", "reason"),
    [
        ("optimizer.damping 1e-3..1 log", Recipe(), "NAdam does not use it"),
        ("augment.randaugment_magnitude 0..9", Recipe(), "RandAugment is off"),
    ],
)
def test_genes_without_effect_are_refused(text: str, recipe: Recipe, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        require_effect(genes_of(text, recipe), recipe)


def test_genes_with_effect() -> None:
    some = "optimizer.beta1 0.5..0.9, optimizer.weight_decay 0..0.1, batch.lr 1e-3..1"
    require_effect(genes_of(some, Recipe()), Recipe())
    both = "augment.randaugment_magnitude 0..9, augment.randaugment_ops 1..3"
    require_effect(genes_of(both, Recipe()), Recipe())


def test_zero_can_be_left_on_a_range_without_logarithm() -> None:
    gene = Gene(key="head.dropout", low=0.0, high=0.5)
    moved = {
        gene.perturbed(0.0, np.random.default_rng(seed), factor=1.2, redraw_frac=0.0)
        for seed in range(20)
    }
    assert sorted(moved) == pytest.approx([0.0, 0.1])
