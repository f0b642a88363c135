"""Many heads in one step: each learns what it would learn alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from stepladder.config.choices import OptimizerName, Precision, ScheduleKind
from stepladder.config.recipe import OptimizerConfig, Recipe, StoppingConfig
from stepladder.data.batch import Batch
from stepladder.ladder.trainings import training_cache
from stepladder.ladder.trainings.stacked import (
    differ_in_their_end,
    stack,
    stacked_scorer,
    unstack,
    why_not_stacked,
)
from stepladder.optim.table import OPTIMIZERS


@pytest.fixture(autouse=True)
def _few_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each head is also trained alone, for comparison."""
    monkeypatch.setattr(training_cache, "STACKED_ROUNDS", 2)


def assert_alike(lab, recipe: Recipe) -> None:
    trainings = lab._trainings
    parts = trainings.folds(recipe, job=lab.job.recipe)
    pairs = [(part, 50 + idx) for idx, part in enumerate(parts)]
    stacked = trainings.train_all(recipe, pairs)
    assert trainings.is_stacked(recipe), "it was done for all at once"
    alone = [trainings.train_anew(recipe, *pair) for pair in pairs]
    for one, other in zip(stacked, alone, strict=True):
        assert (one.seed, one.fold, one.epochs) == (other.seed, other.fold, other.epochs)
        assert one.num_validations == other.num_validations
        assert one.rows == other.rows
        np.testing.assert_allclose(one.losses, other.losses, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [spec.name for spec in OPTIMIZERS if spec.is_elementwise])
def test_each_optimizer_takes_the_same_steps(make_lab, recipe, name: OptimizerName) -> None:
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, name=name))
    assert_alike(make_lab(recipe, num_seeds=2), recipe)


def test_each_training_stops_by_itself(make_lab, recipe) -> None:
    early = replace(recipe, stopping=StoppingConfig(patience=1, min_improvement_frac=0.2))
    early = replace(early, schedule=replace(recipe.schedule, max_epochs=30))
    lab = make_lab(early, num_seeds=2)
    assert_alike(lab, early)
    epochs = [outcome.epochs for outcome in lab.outcomes(early).found]
    assert len(set(epochs)) > 1, "they end at different times"
    assert max(epochs) < 30


def test_a_limit_of_steps_ends_within_an_epoch(make_lab, recipe) -> None:
    short = replace(recipe, schedule=replace(recipe.schedule, max_steps=7, warmup_steps=3))
    assert_alike(make_lab(short, num_seeds=2), short)


def test_a_training_that_diverges_harms_no_other(make_lab, recipe) -> None:
    wild = replace(recipe, batch=replace(recipe.batch, lr=1e38))
    wild = replace(wild, optimizer=OptimizerConfig(name=OptimizerName.SGD))
    found = make_lab(wild, num_seeds=2).outcomes(wild).found
    assert found
    assert all(outcome.why_not == "diverged" for outcome in found)


def test_an_infinite_loss_ends_a_training_though_its_gradient_is_finite(
    make_lab, recipe, blobs
) -> None:
    class Cliff(blobs):
        """One training example has an infinite loss that does not depend on any weight."""

        worst: Tensor | None = None

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            losses = super().loss(model, batch)
            if self.worst is None:
                return losses
            is_worst = (batch.inputs == self.worst).all(dim=1)
            return torch.where(is_worst, torch.inf, losses)

    lab = make_lab(recipe, Cliff(), num_seeds=3)
    trainings = lab._trainings
    parts = trainings.folds(recipe, job=lab.job.recipe)
    Cliff.worst = trainings.instrument.features(recipe).train.read(np.arange(1)).inputs[0]
    pairs = [(part, 50 + idx) for idx, part in enumerate(parts)]
    stacked = trainings.train_all(recipe, pairs)
    assert trainings.is_stacked(recipe), "it was done for all at once"
    alone = [trainings.train_anew(recipe, *pair) for pair in pairs]
    is_learnt = [0 not in part.rows for part in parts]
    assert set(is_learnt) == {True, False}
    for found in (stacked, alone):
        assert [outcome.why_not == "diverged" for outcome in found] == is_learnt
    assert [one.epochs for one in stacked] == [one.epochs for one in alone]


@pytest.mark.parametrize(
    "changed",
    [
        replace(Recipe(), optimizer=OptimizerConfig(clip_norm=1.0)),
        replace(Recipe(), optimizer=OptimizerConfig(weight_decay=0.1)),
        replace(Recipe(), schedule=replace(Recipe().schedule, kind=ScheduleKind.COSINE)),
        replace(Recipe(), stopping=StoppingConfig(validate_every_steps=5)),
        replace(Recipe(), device=replace(Recipe().device, precision=Precision.FP16)),
        replace(Recipe(), data=replace(Recipe().data, fraction=0.5)),
    ],
)
def test_what_differs_from_head_to_head_is_refused_in_words(changed: Recipe) -> None:
    assert why_not_stacked(Recipe()) is None
    assert isinstance(why_not_stacked(changed), str)


def test_one_training_shows_both_ways_to_stop(make_lab, recipe) -> None:
    whole = replace(recipe, schedule=replace(recipe.schedule, max_epochs=12))
    whole = replace(whole, stopping=StoppingConfig(early=False, restore_best=False))
    early = replace(whole, stopping=StoppingConfig(patience=1, min_improvement_frac=0.2))
    both, alone = make_lab(whole, num_seeds=2), make_lab(whole, num_seeds=2)
    first = both.outcomes(whole, also=[early]).found
    assert all(
        both._trainings.is_known(early, part, both.seed + 1000 + idx)
        for idx, part in enumerate(both._parts(early))
    ), "learned on the way"
    for told, wanted in zip(
        (*first, *both.outcomes(early).found),
        (*alone.outcomes(whole).found, *alone.outcomes(early).found),
        strict=True,
    ):
        assert (told.epochs, told.num_validations) == (wanted.epochs, wanted.num_validations)
        np.testing.assert_allclose(told.losses, wanted.losses, rtol=1e-4, atol=1e-5)
    assert {outcome.epochs for outcome in both.outcomes(early).found} != {12.0}


@pytest.mark.thorough
def test_one_probe_shows_all_ways_to_stop(make_lab, recipe, monkeypatch) -> None:
    whole = replace(recipe, schedule=replace(recipe.schedule, max_epochs=12))
    whole = replace(whole, stopping=StoppingConfig(early=False, restore_best=False))
    ways = [
        replace(whole, stopping=StoppingConfig(patience=patience, restore_best=is_best))
        for patience, is_best in ((1, True), (1, False), (4, False))
    ]
    lab, alone = make_lab(whole, num_seeds=2), make_lab(whole, num_seeds=2)
    lab.probe(whole)
    learnt: list[int] = []
    trainings = lab._trainings
    learn = trainings._learn_stacked
    monkeypatch.setattr(
        trainings, "_learn_stacked", lambda *how: (learnt.append(len(how[0])), learn(*how))[1]
    )
    found = lab.probe_ends(whole, ways)
    assert learnt == [3], "three ways in one training, and known outcomes are not trained again"
    for outcomes, one in zip(found, [whole, *ways], strict=True):
        wanted = alone.probe(one)
        assert [told.epochs for told in outcomes] == [told.epochs for told in wanted]
        for told, other in zip(outcomes, wanted, strict=True):
            np.testing.assert_allclose(told.losses, other.losses, rtol=1e-4, atol=1e-5)
    best, last, _ = found[1:]
    assert [one.epochs for one in best] == [one.epochs for one in last]
    assert [one.losses for one in best] != [one.losses for one in last], "other weights"


def test_where_each_way_to_stop_takes_a_training_no_probe_is_made(make_lab, recipe) -> None:
    by_steps = replace(recipe, stopping=StoppingConfig(validate_every_steps=5))
    assert make_lab(by_steps, num_seeds=2).probe_ends(by_steps, [recipe]) == []


@pytest.mark.parametrize(
    "changed",
    [
        replace(Recipe(), optimizer=OptimizerConfig(momentum=0.5)),
        replace(Recipe(), stopping=StoppingConfig(validate_every_epochs=2)),
        Recipe(),
    ],
)
def test_other_changes_take_a_training_of_their_own(changed: Recipe) -> None:
    for stopping in (StoppingConfig(patience=9), StoppingConfig(allow_noise=False)):
        assert differ_in_their_end(Recipe(), replace(Recipe(), stopping=stopping))
    assert not differ_in_their_end(Recipe(), changed)


NUM_HEADS, NUM_ROWS, NUM_IN = 3, 4, 6


class Residual(nn.Module):
    """A head of unknown form."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_IN, NUM_IN)
        self.last = nn.Linear(NUM_IN, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.last(inputs + self.first(inputs).tanh())
        return scores


def hooked() -> nn.Module:
    head = nn.Linear(NUM_IN, 2)
    head.register_forward_hook(lambda _, __, scores: scores * 2)
    return head


def tied() -> nn.Module:
    layer = nn.Linear(NUM_IN, NUM_IN)
    return nn.Sequential(layer, nn.Tanh(), layer)


FORMS = {
    "linear": lambda: nn.Linear(NUM_IN, 2),
    "no bias": lambda: nn.Linear(NUM_IN, 2, bias=False),
    "hidden": lambda: nn.Sequential(
        nn.Dropout(0.0), nn.Sequential(nn.Linear(NUM_IN, 5), nn.ReLU()), nn.Linear(5, 2)
    ),
    "norm": lambda: nn.Sequential(nn.LayerNorm(NUM_IN), nn.Linear(NUM_IN, 2)),
    "residual": Residual,
    "hooked": hooked,
    "tied": tied,
}


@pytest.mark.parametrize("shape", [(NUM_ROWS, NUM_IN), (NUM_ROWS, 2, NUM_IN)])
@pytest.mark.parametrize("form", FORMS)
def test_scores_and_gradients_are_those_of_each_head(form: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    heads = [FORMS[form]().double() for _ in range(NUM_HEADS)]
    inputs = torch.randn(NUM_HEADS, *shape, dtype=torch.float64)
    each = [dict(head.named_parameters()) for head in heads]
    stacked = {name: stack([one[name] for one in each]).requires_grad_() for name in each[0]}
    scores = stacked_scorer(heads[0], frozenset(stacked))(stacked, inputs)
    scores.square().sum().backward()
    for idx, head in enumerate(heads):
        wanted = functional_call(heads[0], each[idx], (inputs[idx],))
        wanted.square().sum().backward()
        torch.testing.assert_close(scores[idx], wanted)
        for name, weight in head.named_parameters():
            grad = stacked[name].grad
            assert grad is not None
            torch.testing.assert_close(unstack(grad, idx), weight.grad)
            assert torch.equal(unstack(stacked[name], idx), weight)


def test_a_frozen_layer_is_that_of_the_head() -> None:
    head = nn.Sequential(nn.Linear(NUM_IN, NUM_IN), nn.Linear(NUM_IN, 2))
    names = frozenset(name for name, _ in head[1].named_parameters(prefix="1"))
    stacked = {name: stack([head.get_parameter(name)] * NUM_HEADS) for name in names}
    inputs = torch.randn(NUM_HEADS, NUM_ROWS, NUM_IN)
    torch.testing.assert_close(stacked_scorer(head, names)(stacked, inputs), head(inputs))


def test_dropout_drops_otherwise_in_each_head() -> None:
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(NUM_IN, 2, bias=False)).train()
    stacked = {"1.weight": stack([torch.ones(2, NUM_IN)] * NUM_HEADS)}
    inputs = torch.ones(NUM_HEADS, 64, NUM_IN)
    scores = stacked_scorer(head, frozenset(stacked))(stacked, inputs)
    assert not torch.equal(scores[0], scores[1])
