"""Record what a task passes to torch's loss functions, without changing anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

LOSSES = {
    F.cross_entropy: "cross_entropy",
    F.nll_loss: "nll_loss",
    F.binary_cross_entropy: "binary_cross_entropy",
    F.binary_cross_entropy_with_logits: "binary_cross_entropy_with_logits",
    F.mse_loss: "mse_loss",
    F.l1_loss: "l1_loss",
    F.smooth_l1_loss: "smooth_l1_loss",
    F.huber_loss: "huber_loss",
    F.kl_div: "kl_div",
    F.softmax: "softmax",
    F.log_softmax: "log_softmax",
    torch.softmax: "softmax",
    torch.log_softmax: "log_softmax",
    Tensor.softmax: "softmax",
    Tensor.log_softmax: "log_softmax",
    torch.sigmoid: "sigmoid",
    Tensor.sigmoid: "sigmoid",
}
_NOT_LOSSES = frozenset({"softmax", "log_softmax", "sigmoid"})


@dataclass(frozen=True, kw_only=True)
class LossCall:
    """One call.

    Attributes:
        name: of the function, such as cross_entropy.
        scores: its first argument, detached.
        targets: its second, detached; None: it has none, like softmax.
        options: keyword arguments, such as reduction, and `dim` of softmax.
    """

    name: str
    scores: Tensor
    targets: Tensor | None
    options: dict[str, Any]

    @property
    def is_loss(self) -> bool:
        """Whether it is a loss, not a function that turns scores into probabilities."""
        return self.name not in _NOT_LOSSES


class EachCall(TorchFunctionMode):
    """Pass each call of a torch function to `show` before it is made."""

    def __init__(self, show: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]) -> None:
        super().__init__()
        self._show = show

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self._show(func, args, kwargs)
        return func(*args, **kwargs)


@contextmanager
def loss_calls() -> Iterator[list[LossCall]]:
    """Record the calls of loss functions, softmax and sigmoid in the block, in order."""
    calls: list[LossCall] = []

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = LOSSES.get(func)
        if name is not None:
            calls.append(_call(name, args, kwargs))

    with EachCall(note):
        yield calls


def _call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LossCall:
    rest = dict(kwargs)
    scores = args[0] if args else rest.pop("input")
    is_shares = name in _NOT_LOSSES
    second = args[1] if len(args) > 1 else rest.get("target")
    if is_shares and len(args) > 1:
        rest["dim"] = args[1]
    targets = second if isinstance(second, Tensor) and not is_shares else None
    return LossCall(
        name=name,
        scores=scores.detach(),
        targets=None if targets is None else targets.detach(),
        options={key: value for key, value in rest.items() if key not in ("input", "target")},
    )
