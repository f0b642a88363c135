"""Heads in one program: each learns what it would learn alone."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stepladder.config.choices import ClassWeights, OptimizerName, OrderMode, ScheduleKind
from stepladder.config.recipe import (
    BatchConfig,
    HeadConfig,
    LossConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
)
from stepladder.data.order.order import Order
from stepladder.errors import DataError, ResourceError
from stepladder.models.classifier import build_head
from stepladder.optim.optimizers import build_optimizer, set_lr
from stepladder.optim.schedule import lr_at
from stepladder.optim.table import OPTIMIZERS
from stepladder.populations import heads
from stepladder.populations.genes import Gene, applied
from stepladder.populations.heads import (
    HeadMembers,
    HeldOut,
    Level,
    drop_,
    gradients,
    why_no_heads,
)
from stepladder.populations.memory import head_bytes, require_members

NUM, WIDTH, CLASSES, BATCH = 50, 6, 3, 8
GENES = (
    Gene(key="batch.lr", low=1e-4, high=1.0),
    Gene(key="optimizer.weight_decay", low=0.0, high=1.0),
    Gene(key="loss.label_smoothing", low=0.0, high=0.9),
    Gene(key="loss.class_weights", choices=("none", "balanced")),
)
VALUES = ((0.1, 0.0, 0.0, "none"), (0.01, 0.1, 0.2, "balanced"), (0.03, 0.5, 0.0, "balanced"))
WEIGHTS = torch.tensor([0.5, 1.0, 2.0])
BASE = Recipe(batch=BatchConfig(global_batch_size=BATCH))


def data(num: int = NUM, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num, WIDTH, generator=rng)
    return inputs, torch.randint(CLASSES, (num,), generator=rng)


def order(seed: int = 0) -> Order:
    return Order(seed=seed, num_examples=NUM, mode=OrderMode.GLOBAL, fingerprint="blobs")


def members(recipe: Recipe = BASE, genes=GENES, levels=None, **more) -> HeadMembers:
    inputs, targets = data()
    val = HeldOut(features=data(30, 1)[0], targets=data(30, 1)[1])
    return HeadMembers(
        recipe,
        lambda values: applied(recipe, genes, values),
        **{
            "seeds": (3, 4, 5),
            "levels": levels or [Level(strength=0.0, features=inputs.unsqueeze(1))],
            "targets": targets,
            "order": order(),
            "val": val,
            "test": val,
            "class_weights": WEIGHTS,
            **more,
        },
    )


def alone(recipe: Recipe, *, seed: int, num_examples: int) -> nn.Module:
    """Train one head as any PyTorch program would."""
    inputs, targets = data()
    torch.manual_seed(seed)
    head = build_head(replace(recipe.head, dropout=0.0), num_features=WIDTH, num_classes=CLASSES)
    optimizer = build_optimizer(recipe.optimizer, head, lr=recipe.batch.lr)
    weight = WEIGHTS if recipe.loss.class_weights is ClassWeights.BALANCED else None
    step = epoch = offset = 0
    while num_examples > 0:
        num = min(BATCH, num_examples, NUM - offset)
        rows = torch.from_numpy(order(seed).samples(epoch, offset, offset + num))
        losses = F.cross_entropy(
            head(inputs[rows]),
            targets[rows],
            weight=weight,
            label_smoothing=recipe.loss.label_smoothing,
            reduction="none",
        )
        losses.mean().backward()
        if recipe.optimizer.clip_norm is not None:
            nn.utils.clip_grad_norm_(head.parameters(), recipe.optimizer.clip_norm)
        steps = -(-NUM // BATCH)
        rate = lr_at(step, base=recipe.batch.lr, schedule=recipe.schedule, steps_per_epoch=steps)
        set_lr(optimizer, rate)
        optimizer.step()
        optimizer.zero_grad()
        num_examples, offset, step = num_examples - num, offset + num, step + 1
        if offset == NUM:
            epoch, offset = epoch + 1, 0
    return head


def assert_alike(found: HeadMembers, recipe: Recipe, values=VALUES, genes=GENES, num=120) -> None:
    found.train(values, num)
    for idx, one in enumerate(values):
        expected = dict(
            alone(applied(recipe, genes, one), seed=3 + idx, num_examples=num).named_parameters()
        )
        found.keep(idx)
        for name, weight in found.kept_weights().items():
            torch.testing.assert_close(weight, expected[name].detach(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", [spec.name for spec in OPTIMIZERS if spec.is_elementwise])
def test_each_optimizer_takes_the_same_steps(name: OptimizerName) -> None:
    recipe = replace(BASE, optimizer=OptimizerConfig(name=name))
    rate = 0.01 if name is OptimizerName.LION else 1.0
    values = tuple((rate * lr, *others) for lr, *others in VALUES)
    assert_alike(members(recipe), recipe, values)


def test_clipping_and_schedules() -> None:
    recipe = replace(
        BASE,
        optimizer=OptimizerConfig(name=OptimizerName.SGD, clip_norm=0.05),
        schedule=ScheduleConfig(kind=ScheduleKind.COSINE, max_epochs=4, warmup_steps=5),
    )
    assert_alike(members(recipe), recipe)


def test_gradients_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    size, num = 4, 7
    inputs = torch.randn(size, num, WIDTH, dtype=torch.float64)
    targets = torch.randint(CLASSES, (size, num))
    weight = torch.randn(size, CLASSES, WIDTH, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(size, CLASSES, dtype=torch.float64, requires_grad=True)
    smoothing = torch.tensor([0.0, 0.1, 0.5, 0.9], dtype=torch.float64)
    for weights in (None, torch.rand(size, CLASSES, dtype=torch.float64) + 0.1):
        found = gradients(
            inputs,
            targets,
            weight.detach(),
            bias.detach(),
            smoothing=smoothing,
            class_weights=weights,
        )
        total = sum(
            F.cross_entropy(
                inputs[idx] @ weight[idx].T + bias[idx],
                targets[idx],
                weight=None if weights is None else weights[idx],
                label_smoothing=float(smoothing[idx]),
                reduction="none",
            ).mean()
            for idx in range(size)
        )
        expected = torch.autograd.grad(total, [weight, bias])
        torch.testing.assert_close(found["weight"], expected[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found["bias"], expected[1], rtol=1e-10, atol=1e-12)


def test_dropout_of_each_head() -> None:
    inputs = torch.ones(3, 200, 500)
    found = inputs.clone()
    scale = drop_(found, torch.tensor([0.0, 0.25, 0.8]), torch.Generator().manual_seed(0))
    assert torch.equal(found[0], inputs[0])
    assert scale[0] == 1
    for idx, rate in ((1, 0.25), (2, 0.8)):
        assert (found[idx] == 0).float().mean().item() == pytest.approx(rate, abs=0.01)
        mean = (found[idx] * scale[idx]).mean().item()
        assert mean == pytest.approx(1.0, abs=0.02), "unchanged"


def test_scaled_inputs_have_the_gradients_of_scaled_inputs() -> None:
    torch.manual_seed(0)
    shapes = ((3, 7, WIDTH), (3, CLASSES, WIDTH), (3, CLASSES))
    inputs, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    targets, scale = torch.randint(CLASSES, (3, 7)), torch.tensor([1.0, 2.0, 5.0]).double()
    none = torch.zeros(3, dtype=torch.float64)
    found = gradients(inputs, targets, weight, bias, smoothing=none, scale=scale)
    expected = gradients(inputs * scale.reshape(3, 1, 1), targets, weight, bias, smoothing=none)
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad)


def test_a_head_with_dropout_learns_another_one_without_is_unchanged() -> None:
    gene = (Gene(key="head.dropout", low=0.0, high=0.9),)
    recipe = replace(BASE, batch=replace(BASE.batch, lr=0.05))
    found, plain = members(recipe, gene), members(recipe, gene)
    found.train([(0.0,), (0.5,), (0.0,)], 100)
    plain.train([(0.0,)] * 3, 100)
    same = [torch.equal(found.weights["weight"][i], plain.weights["weight"][i]) for i in range(3)]
    assert same == [True, False, True]


def test_a_head_that_diverges_harms_no_other() -> None:
    recipe = replace(BASE, optimizer=OptimizerConfig(name=OptimizerName.SGD))
    found = members(recipe, GENES[:1])
    found.train([(0.1,), (1e38,), (0.1,)], 200)
    assert [score.is_finite for score in found.scores()] == [True, False, True]
    found.inherit([0, 2, 2])
    found.train([(0.1,)] * 3, 50)
    assert all(score.is_finite for score in found.scores())


def test_an_heir_goes_on_as_its_parent_would() -> None:
    found = members()
    found.train(VALUES, 60)
    found.inherit([2, 2, 2])
    orders = found._orders
    found._orders = [orders[2]] * 3
    found._rows = None
    found.train([VALUES[2]] * 3, 60)
    weights = found.weights["weight"]
    torch.testing.assert_close(weights[0], weights[2])
    torch.testing.assert_close(weights[1], weights[2])


def test_what_is_saved_goes_on_to_the_same_bits(tmp_path) -> None:
    whole, cut = members(), members()
    whole.train(VALUES, 60)
    whole.keep(1)
    cut.train(VALUES, 60)
    cut.keep(1)
    cut.save(tmp_path, "members")
    resumed = members()
    resumed.load(tmp_path, "members")
    whole.train(VALUES, 33)
    resumed.train(VALUES, 33)
    for name, weight in whole.weights.items():
        assert torch.equal(resumed.weights[name], weight)
    assert resumed.judge() == whole.judge()


def test_damaged_members_are_named(tmp_path) -> None:
    members().save(tmp_path, "members")
    (tmp_path / "members").write_bytes(b"x" * 100)
    with pytest.raises(DataError, match="cannot be read"):
        members().load(tmp_path, "members")


def test_scores_are_those_of_the_split() -> None:
    found = members()
    inputs, targets = data(30, 1)
    for idx, score in enumerate(found.scores()):
        logits = inputs @ found.weights["weight"][idx].T + found.weights["bias"][idx]
        assert score.loss == pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-5)
        hits = (logits.argmax(1) == targets).float().mean()
        assert score.accuracy == pytest.approx(hits.item())


def test_strengths_between_two_levels_take_examples_of_both() -> None:
    inputs, _ = data()
    levels = [
        Level(strength=s, features=torch.full((NUM, 2, WIDTH), float(s))) for s in (0, 3, 6, 9)
    ]
    gene = (Gene(key="augment.randaugment_magnitude", low=0.0, high=9.0),)
    found = members(genes=gene, levels=levels)
    recipes = [applied(BASE, gene, (value,)) for value in (0.0, 4.0, 9.0)]
    settings = found._settings(recipes)
    rows = torch.arange(NUM).expand(3, -1)
    rng = torch.Generator().manual_seed(0)
    taken = [found._features[found._places(rows, settings, rng)][..., 0] for _ in range(40)]
    mean = torch.stack(taken).mean(dim=(0, 2))
    assert mean[0].item() == 0.0
    assert mean[1].item() == pytest.approx(4.0, abs=0.15)
    assert set(torch.stack(taken)[:, 1].unique().tolist()) == {3.0, 6.0}
    assert mean[2].item() == 9.0
    assert inputs.shape[0] == NUM


def test_why_not() -> None:
    assert why_no_heads(BASE, ["batch.lr"]) is None
    assert "optimizer.beta1" in str(why_no_heads(BASE, ["optimizer.beta1"]))
    hidden = replace(BASE, head=HeadConfig(hidden=8))
    assert "hidden" in str(why_no_heads(hidden, ["batch.lr"]))
    assert "cached views" in str(why_no_heads(BASE, ["augment.randaugment_magnitude"]))


def test_more_heads_than_memory_holds() -> None:
    one = head_bytes(num_features=1280, num_classes=10, batch=64)
    sizes = {"member_bytes": one, "held_bytes": 10**6, "free_bytes": 10**9, "otherwise": "none"}
    require_members(64, **sizes)
    with pytest.raises(ResourceError) as caught:
        require_members(10**6, **sizes)
    fit = int(re.findall(r"at most (\d+) members", str(caught.value.fix))[0])
    require_members(fit, **sizes)
    with pytest.raises(ResourceError):
        require_members(fit + 1, **sizes)
    with pytest.raises(ResourceError) as caught:
        require_members(64, **{**sizes, "free_bytes": 10**6})
    assert caught.value.fix == "none"


def test_loss_options_reach_the_members() -> None:
    recipe = replace(BASE, loss=LossConfig(label_smoothing=0.3))
    assert members(recipe, GENES[:1])._settings([recipe]).smoothing.item() == pytest.approx(0.3)


def test_parts_of_a_population_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = members(), members()
    whole.train(VALUES, 100)
    monkeypatch.setattr(heads, "_PART_BYTES", 4 * BATCH * WIDTH * 2)  # two heads
    parts.train(VALUES, 100)
    for name, weight in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], weight)
