"""Peak memory of a step without computing it: shapes alone are followed through the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from stepladder.measuring.model.memory import live_bytes

_NUM_STEPS: Final = 2  # the first one makes the optimizer's state, after its activations are freed


class _Step(nn.Module):
    """A step as the forward pass of a module, so that its weights can be replaced."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any, optimizer: torch.optim.Optimizer) -> None:
        """Take steps on a batch; what is checkpointed is computed again here, too."""
        for _ in range(_NUM_STEPS):
            optimizer.zero_grad(set_to_none=True)
            self._loss(self.model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def traced_peak(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    batch: Any,
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
) -> int:
    """Return the peak bytes of a step, with weights and the optimizer's state.

    Nothing is computed, and neither model nor batch changes: operations see tensors that have a
    shape and a device, but no numbers. Temporary memory of kernels is not counted.

    Args:
        loss: of a model and a batch, one number.
        batch: a tensor, or tuples, lists and dicts of them.
        optimizer: makes one for the trained weights.

    Raises:
        RuntimeError: of torch, if the model's shapes depend on its numbers.
    """
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    weights = sum(value.nbytes for value in named.values())
    with FakeTensorMode() as mode:
        fakes = {
            f"model.{name}": mode.from_tensor(value).detach().requires_grad_(value.requires_grad)
            for name, value in named.items()
        }
        inputs = tree_map_only(Tensor, mode.from_tensor, batch)
        trained = [fake for fake in fakes.values() if fake.requires_grad]
        with torch.enable_grad(), live_bytes() as live:
            functional_call(_Step(model, loss), fakes, (inputs, optimizer(trained)))
    peak: int = weights + live.peak
    return peak
