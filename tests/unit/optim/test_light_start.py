"""Making an optimizer, and a step of our own ones, does not import PyTorch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
import torch
from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import OwnOptimizer
from stepladder.optim.optimizers import build_optimizer

for name in OptimizerName:
    model = torch.nn.Linear(3, 2)
    optimizer = build_optimizer(OptimizerConfig(name=name), model, lr=0.1)
    model(torch.ones(4, 3)).sum().backward()
    before = model.weight.detach().clone()
    if isinstance(optimizer, OwnOptimizer):  # PyTorch's own import the compiler for a step
        optimizer.take_step()
        assert not torch.equal(before, model.weight)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    assert model.weight.grad is None
assert "torch._dynamo" not in sys.modules

import torch._dynamo  # the compiler is there for who wants it

optimizer.zero_grad()
optimizer.state_dict()
print("fine")
"""


@pytest.mark.thorough
def test_no_optimizer_imports_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "fine", done.stderr
