"""Laws for every optimizer of the table."""

from __future__ import annotations

import ast
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import stepladder
from stepladder.config.checks import BadValueError, ranges_of
from stepladder.config.choices import LrRule, OptimizerName
from stepladder.config.recipe import BatchConfig, OptimizerConfig
from stepladder.optim.contract import OptimizerSpec
from stepladder.optim.optimizers import build_optimizer, step_function
from stepladder.optim.scalars import HOST_SCALARS
from stepladder.optim.schedule import base_lr
from stepladder.optim.state import flatten_state, restore_state
from stepladder.optim.table import OPTIMIZERS
from stepladder.records import to_json

LR = 0.01
ROOT = Path(stepladder.__file__).parent
PAGE = ROOT.parents[1] / "docs" / "adding-an-optimizer.md"
COMMON = {"name", "weight_decay", "clip_norm", "fused"}
"""Options of every optimizer."""
every_optimizer = pytest.mark.parametrize("spec", OPTIMIZERS, ids=lambda spec: spec.name)


def config_of(spec: OptimizerSpec, **options: Any) -> OptimizerConfig:
    return OptimizerConfig(name=spec.name, **options)


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2, dtype=torch.float32))


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_steps):
        x = torch.randn(5, 3, 4, 4, generator=generator)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Weights:
    """Weights without a model: what an optimizer is built over for stacked heads."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = {name: nn.Parameter(weight.clone()) for name, weight in weights.items()}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.weights.items()


def after_steps(
    config: OptimizerConfig, start: Tensor, grads: list[Tensor], *, lr: float = LR
) -> Tensor:
    """Return a weight after one step per gradient."""
    weights = Weights({"weight": start})
    optimizer = build_optimizer(config, weights, lr=lr)
    for grad in grads:
        weights.weights["weight"].grad = grad.clone()
        optimizer.step()
    return weights.weights["weight"].detach()


def random_tensors(num: int, *shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(num)]


# the table


def test_the_table_has_every_choice_of_the_config_in_its_order() -> None:
    assert tuple(spec.name for spec in OPTIMIZERS) == tuple(OptimizerName)


@every_optimizer
def test_it_is_declared_in_the_file_of_its_name(spec: OptimizerSpec) -> None:
    assert spec in vars(import_module(f"stepladder.optim.{spec.name}")).values()


def test_every_option_is_of_all_optimizers_or_declared_by_one() -> None:
    declared = {option for spec in OPTIMIZERS for option in spec.options}
    assert declared == {field.name for field in fields(OptimizerConfig)} - COMMON


def test_nothing_outside_the_package_asks_which_optimizer_it_is() -> None:
    """Only a recipe may name one; watching and compat deal with optimizers of other scripts."""
    wrong = []
    for file in sorted(ROOT.rglob("*.py")):
        if file.relative_to(ROOT).parts[0] not in ("optim", "config", "watching", "compat"):
            wrong += [f"{file.relative_to(ROOT)}: {what}" for what in asked_for(file)]
    assert not wrong, "\n".join(wrong)


def asked_for(file: Path) -> list[str]:
    """List the optimizers that a file names outside of a recipe."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules = {f"stepladder.optim.{spec.name}" for spec in OPTIMIZERS}
    in_recipes = {
        keyword.value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "OptimizerConfig"
        for keyword in call.keywords
        if keyword.arg == "name"
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            found.append(ast.unparse(node))
        if isinstance(node, ast.Attribute) and node not in in_recipes:
            owner, name = ast.unparse(node.value), node.attr
            is_class = owner == "torch.optim" and name not in ("Optimizer", "lr_scheduler")
            if owner == "OptimizerName" or is_class:
                found.append(ast.unparse(node))
        if isinstance(node, ast.Compare):
            constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            found += [repr(name) for name in constants if name in tuple(OptimizerName)]
    return found


def test_the_worked_examples_are_files_of_optimizers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    of_torch, own = (part.partition("```")[0] for part in text.split("```python\n")[1:])
    assert of_torch == (ROOT / "optim" / "sgd.py").read_text(encoding="utf-8")
    assert own == (ROOT / "optim" / "lion.py").read_text(encoding="utf-8")


# options


@every_optimizer
def test_it_reads_the_options_that_it_declares_and_no_other(spec: OptimizerSpec) -> None:
    start, *grads = random_tensors(7, 8, 5)
    grads = [0.1**idx * grad for idx, grad in enumerate(grads)]  # the last of equal keys wins

    def trained(config: OptimizerConfig) -> list[Tensor]:
        model = small_model()  # for rules that see its layers
        take_steps(model, build_optimizer(config, model, lr=LR), 12)
        return [after_steps(config, start, grads), *model.parameters()]

    default = trained(config_of(spec))
    read = set()
    for option in ranges_of(OptimizerConfig).keys() - COMMON:
        usual = getattr(OptimizerConfig(), option)
        other = trained(config_of(spec, **{option: usual + 1 if isinstance(usual, int) else 0.25}))
        if not all(torch.equal(one, two) for one, two in zip(other, default, strict=True)):
            read.add(option)
    assert read == set(spec.options)


@every_optimizer
def test_an_option_outside_its_range_is_refused_with_its_name_and_range(
    spec: OptimizerSpec,
) -> None:
    for option, within in spec.ranges.items():
        outside = [math.nan, within.low - 1, within.high + 1]
        outside += [] if within.takes_low else [within.low]
        outside += [] if within.takes_high else [within.high]
        for value in outside:
            if math.isinf(value):
                continue  # no upper bound
            with pytest.raises(BadValueError) as caught:
                config_of(spec, **{option: value})
            assert caught.value.key == f"optimizer.{option}"
            assert str(caught.value.what) == f"optimizer.{option}: {value} is not {within}"


@every_optimizer
def test_a_learning_rate_that_is_usual_is_within_what_it_learns_at(spec: OptimizerSpec) -> None:
    assert 0 < spec.usual_lr <= spec.most_lr


# steps


@every_optimizer
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_first_step_is_the_closed_form(spec: OptimizerSpec, decay: float) -> None:
    config = config_of(spec, weight_decay=decay, eps=1e-3)
    model = nn.Linear(3, 2).double()
    optimizer = build_optimizer(config, model, lr=LR)
    for weight in model.parameters():
        weight.grad = torch.randn_like(weight)
    wanted = {
        name: spec.first_step(weight.data, weight.grad, config=config, lr=LR, decay=own)
        for (name, weight), own in zip(model.named_parameters(), (decay, 0.0), strict=True)
        if weight.grad is not None
    }
    before = {name: weight.data.clone() for name, weight in model.named_parameters()}
    optimizer.step()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.data, wanted[name], rtol=1e-6, atol=1e-9)
        assert not torch.equal(weight.data, before[name])


@every_optimizer
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_first_steps_on_a_quadratic_lower_it(spec: OptimizerSpec, decay: float) -> None:
    bowl = Weights({"x": torch.tensor([[1.0, -2.0, 3.0]])})
    optimizer = build_optimizer(config_of(spec, weight_decay=decay), bowl, lr=LR)
    losses = []
    for _ in range(6):
        loss = bowl.weights["x"].square().sum()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert all(later < earlier for earlier, later in pairwise(losses))


@every_optimizer
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_zero_gradient_moves_only_what_decays(spec: OptimizerSpec, decay: float) -> None:
    model = small_model()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = build_optimizer(config_of(spec, weight_decay=decay), model, lr=LR)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for key, weight in model.named_parameters():
        if decay and weight.dim() >= 2:
            assert weight.norm() < before[key].norm()
        else:
            assert torch.equal(weight, before[key])


@every_optimizer
def test_its_step_follows_the_size_of_the_gradient_unless_it_is_scale_free(
    spec: OptimizerSpec,
) -> None:
    start, *grads = random_tensors(4, 3, 2)
    steps = [
        after_steps(config_of(spec), start, [scale * grad for grad in grads]) - start
        for scale in (1.0, 1000.0)
    ]
    assert torch.allclose(steps[1], steps[0], rtol=1e-4) is spec.is_scale_free


@every_optimizer
def test_stacked_weights_are_stepped_as_each_alone_if_it_is_elementwise(
    spec: OptimizerSpec,
) -> None:
    heads = random_tensors(2, 3, 2)
    grads = [[scale * grad for grad in random_tensors(3, 3, 2)] for scale in (1.0, 50.0)]
    alone = [after_steps(config_of(spec), *pair) for pair in zip(heads, grads, strict=True)]
    both = [torch.stack(pair) for pair in zip(*grads, strict=True)]
    stacked = after_steps(config_of(spec), torch.stack(heads), both)
    is_alike = torch.allclose(stacked, torch.stack(alone), rtol=1e-9, atol=1e-12)
    assert is_alike is (spec.is_elementwise or spec.sees_layers)  # it sees none here


@every_optimizer
@pytest.mark.parametrize("fused", [False, True])
def test_the_function_that_takes_its_steps_does_what_step_does(
    spec: OptimizerSpec, fused: bool
) -> None:
    config = config_of(spec, fused=fused and spec.can_fuse("cpu"))
    models = small_model(), small_model()
    optimizers = [build_optimizer(config, model, lr=LR) for model in models]
    for _ in range(3):
        for weight, other in zip(*(model.parameters() for model in models), strict=True):
            weight.grad = torch.randn_like(weight)
            other.grad = weight.grad.clone()
        optimizers[0].step()
        step_function(optimizers[1])()
    for weight, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(weight, other)


class Kernels(TorchDispatchMode):
    """Counts in-place operations: an update's kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += 1
        return func(*args, **(kwargs or {}))


@every_optimizer
def test_a_fused_step_takes_as_many_kernels_however_many_weights_there_are(
    spec: OptimizerSpec,
) -> None:
    def kernels(num_weights: int, *, fused: bool) -> int:
        weights = Weights({str(idx): torch.ones(2, 2) for idx in range(num_weights)})
        optimizer = build_optimizer(config_of(spec, fused=fused), weights, lr=LR)
        for _ in range(2):  # the first step creates the state
            for weight in weights.weights.values():
                weight.grad = torch.ones_like(weight)
            with Kernels() as counted:
                optimizer.step()
        return counted.num

    assert kernels(8, fused=False) > kernels(2, fused=False)
    if spec.can_fuse("cpu"):
        assert kernels(8, fused=True) == kernels(2, fused=True)


# groups


@every_optimizer
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_every_weight_that_learns_is_in_one_group_and_only_matrices_decay(
    spec: OptimizerSpec, decay: float
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    groups = build_optimizer(config_of(spec, weight_decay=decay), model, lr=LR).param_groups
    names = Counter(name for group in groups for name in group["param_names"])
    assert names == {"1.weight": 1, "1.bias": 1, "2.weight": 1, "2.bias": 1}
    decays = {name: group["weight_decay"] for group in groups for name in group["param_names"]}
    assert decays == {**dict.fromkeys(names, 0.0), "2.weight": decay}


@every_optimizer
def test_frozen_weights_are_left_out(spec: OptimizerSpec) -> None:
    model = small_model()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = build_optimizer(config_of(spec, weight_decay=0.1), model, lr=LR)
    take_steps(model, optimizer, 2)
    tensors, _ = flatten_state(optimizer, model)
    assert torch.equal(before, model[0].weight)
    assert not any(key.startswith("0.") for key in tensors)


# state


@every_optimizer
@pytest.mark.parametrize("fused", [False, True])
def test_saved_state_resumes_bit_for_bit(spec: OptimizerSpec, fused: bool) -> None:
    config = config_of(spec, weight_decay=0.01, fused=fused and spec.can_fuse("cpu"))
    straight = small_model()
    optimizer = build_optimizer(config, straight, lr=LR)
    take_steps(straight, optimizer, 3)
    weights = {key: value.clone() for key, value in straight.state_dict().items()}
    tensors, facts = flatten_state(optimizer, straight)
    tensors = {key: value.clone() for key, value in tensors.items()}
    facts = json.loads(json.dumps(to_json(facts), allow_nan=False))
    take_steps(straight, optimizer, 3)

    resumed = small_model(seed=9)
    resumed.load_state_dict(weights)
    fresh = build_optimizer(replace(config, momentum=0.5), resumed, lr=123.0)
    restore_state(fresh, resumed, tensors, facts)
    take_steps(resumed, fresh, 3)
    state, wanted = flatten_state(fresh, resumed), flatten_state(optimizer, straight)
    assert state[1] == wanted[1]
    assert state[0].keys() == wanted[0].keys()
    assert all(torch.equal(state[0][key], wanted[0][key]) for key in wanted[0])
    for key, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key])


@every_optimizer
def test_restored_state_shares_no_memory_with_the_checkpoint(spec: OptimizerSpec) -> None:
    model = small_model()
    optimizer = build_optimizer(config_of(spec), model, lr=LR)
    take_steps(model, optimizer, 1)
    tensors, facts = flatten_state(optimizer, model)
    kept = {key: value.clone() for key, value in tensors.items()}
    other = small_model()
    fresh = build_optimizer(config_of(spec), other, lr=LR)
    restore_state(fresh, other, kept, facts)
    before = {key: value.clone() for key, value in kept.items()}
    take_steps(other, fresh, 2)
    assert all(torch.equal(before[key], kept[key]) for key in kept)


@every_optimizer
def test_it_keeps_no_more_than_it_declares(spec: OptimizerSpec) -> None:
    model = small_model()
    optimizer = build_optimizer(config_of(spec), model, lr=LR)
    take_steps(model, optimizer, 2)
    for weight in model.parameters():
        tensors = [
            value
            for key, value in optimizer.state[weight].items()
            if key not in HOST_SCALARS and isinstance(value, Tensor)
        ]
        assert 0 < sum(tensor.numel() for tensor in tensors) <= spec.state_numbers(weight)


# the batch


@every_optimizer
@pytest.mark.parametrize("noise_scale", [None, 10.0, 1000.0])
def test_the_learning_rate_never_falls_where_the_batch_grows(
    spec: OptimizerSpec, noise_scale: float | None
) -> None:
    rule = spec.batch_rule
    earlier = [1.0]
    for growth in (1.0, 2.0, 4.0, 8.0, 64.0):
        epochs = 1.0 if noise_scale is None else (1 + growth / noise_scale) / (1 + 1 / noise_scale)
        factors = rule.lr_growths(growth, more_epochs=epochs)
        assert factors[0] >= earlier[0] and max(factors) >= max(earlier)  # noqa: PT018
        assert min(factors) >= 1.0
        assert not rule.follows_noise_scale or max(factors) <= growth / epochs
        earlier = factors
    assert set(rule.lr_growths(1.0, more_epochs=1.0)) == {1.0}


@every_optimizer
def test_warm_up_is_for_a_rate_that_grew(spec: OptimizerSpec) -> None:
    assert not spec.batch_rule.needs_warmup(1.0)


@pytest.mark.parametrize(("rule", "wanted"), list(zip(LrRule, (1.0, 4.0, 2.0, 1.0), strict=True)))
def test_a_rule_for_the_batch_scales_the_learning_rate(rule: LrRule, wanted: float) -> None:
    batch = BatchConfig(global_batch_size=64, base_batch_size=16, lr=1.0, lr_rule=rule)
    assert base_lr(batch) == wanted
