"""Neither averaged gradients, a backward pass nor deterministic kernels import the compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
import torch
import torch.distributed as dist
from torch.nn import functional as F
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.optimizers import build_optimizer
from stepladder.parallel.gradients import GradientAverage
from stepladder.training.randomness import use_deterministic
from stepladder.training.update import Update

dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = torch.nn.Linear(3, 2)
inputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
average = GradientAverage(
    model,
    lambda batch: F.cross_entropy(model(batch), targets, reduction="none"),
    is_static=True,
    has_unused=False,
)
update = Update(build_optimizer(OptimizerConfig(), model, lr=0.1), device=torch.device("cpu"))
update.backward(average(inputs), weight=0.25)
averaged = model.weight.grad.clone()
with use_deterministic():
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
assert not torch.are_deterministic_algorithms_enabled()
assert not {"torch._dynamo", "sympy"} & set(sys.modules), "imported"

model.weight.grad = None
wanted = F.cross_entropy(model(inputs), targets, reduction="none")
wanted.backward(torch.full_like(wanted, 0.25))
assert torch.equal(model.weight.grad, averaged)

with use_deterministic():
    import torch._inductor.config
    assert torch._inductor.config.deterministic
assert not torch._inductor.config.deterministic
import torch._dynamo  # the compiler is there for who wants it
assert torch._dynamo.utils.get_optimize_ddp_mode() == "ddp_optimizer"
compiled = torch.nn.parallel.DistributedDataParallel(model)
compiled(inputs).sum().backward()
dist.destroy_process_group()
print("fine")
"""


@pytest.mark.thorough
def test_gradients_import_no_compiler(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "meet")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "fine", done.stderr
