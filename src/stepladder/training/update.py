"""Apply gradients to weights: loss scaling, clipping, and a guard against non-finite values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stepladder.optim.master import MasterWeights
from stepladder.optim.optimizers import set_lr, step_function
from stepladder.parallel.divided.contract import DividedModel


class Update:
    """Applies gradients to trainable weights.

    A step with a non-finite loss or gradient changes no weight, and neither does any later step:
    the first such step is stored in a flag on the device, which the loop reads every `log_every`
    steps and before every commit. On the CPU the flag is free to read, so the step is skipped; on
    other devices the weights are restored by a masked copy, so that no step waits for the host.

    Args:
        optimizer: its groups hold the trainable weights.
        scaler: the loss scaler of fp16, or None. It handles gradient overflow, so only the loss is
            checked.
        clip_norm: maximum norm of the gradient, or None.
        master: the fp32 master copies of half weights, or None.
        gradient_dtype: round gradients to it first, as several devices do that send them so; None:
            leave them.
        is_masked: restore weights by a masked copy instead of reading the flag; None: on every
            device but the CPU.
        divided: the model, if each rank has a part of it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        device: torch.device,
        scaler: torch.amp.GradScaler | None = None,
        clip_norm: float | None = None,
        master: MasterWeights | None = None,
        gradient_dtype: torch.dtype | None = None,
        is_masked: bool | None = None,
        divided: DividedModel | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.scaler = scaler
        self._take_step = step_function(optimizer)
        self._divided = divided
        self._clip_norm = clip_norm
        self._master = master
        self._gradient_dtype = gradient_dtype
        self._params: list[Tensor] = [
            param for group in optimizer.param_groups for param in group["params"]
        ]
        self._is_masked = device.type != "cpu" if is_masked is None else is_masked
        self._backup = (
            [torch.empty_like(param) for param in self._params] if self._is_masked else []
        )
        self._first_bad = torch.full((), -1, dtype=torch.int64, device=device)
        self._is_bad = False
        self._weights: dict[tuple[int, float], Tensor] = {}
        self._grad_norm: Tensor | None = None
        self._lr = math.nan

    def backward(self, losses: Tensor, *, weight: float) -> None:
        """Add the gradients of weight x losses.sum() to those of the step.

        The product's derivative is the weight itself, so the gradients are the bits that
        `losses.backward(weights)` would give. But that imports torch's symbolic shapes, and with
        them sympy: 0.4 to 0.8 s of each process.

        Shapes: losses (n,).
        """
        if losses.dtype is not torch.float32:
            losses = losses.float()
        key = (losses.numel(), weight)
        if key not in self._weights:
            self._weights = {key: torch.full_like(losses, weight, requires_grad=False)}
        gradient = self._weights[key]
        if self.scaler is not None:
            gradient = self.scaler.scale(gradient)
        torch.dot(losses, gradient).backward()  # type: ignore[no-untyped-call]

    def __call__(
        self, step_loss: Tensor, *, step: int, lr: float, wants_norm: bool = False
    ) -> None:
        """Take the step and zero the gradients.

        Args:
            step_loss: the step's loss, a detached scalar; only checked to be finite.
            step: its index, stored if it is the first non-finite one.
            lr: learning rate.
            wants_norm: measure the gradient's norm, a pass over all gradients; always measured if
                gradients are clipped.
        """
        if lr != self._lr:
            set_lr(self.optimizer, lr)
            self._lr = lr
        if self._gradient_dtype is not None:
            self._round_gradients(self._gradient_dtype)
        if self._master is not None:
            self._master.take_grads_()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        probe = self._probe(wants_norm or self._clip_norm is not None)
        judged = step_loss if self.scaler is not None else step_loss + probe
        if self._clip_norm is not None and self._grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(
                self._params,
                self._clip_norm,
                self._grad_norm,
                foreach=None if self._divided is None else False,  # of both kinds of tensors
            )
        if self._is_masked:
            self._step_masked(judged, step)
        else:
            self._step_checked(judged, step)
        if self._master is not None:
            self._master.give_weights_()
        for param in self._params:  # as zero_grad does, without its hooks
            param.grad = None

    def _round_gradients(self, dtype: torch.dtype) -> None:
        for param in self._params:
            if param.grad is not None:
                param.grad.copy_(param.grad.to(dtype))

    def _probe(self, wants_norm: bool) -> Tensor | float:
        """Return a number that is finite if the gradient is.

        If the norm is not measured, the sum of the first weight's gradient: a non-finite value in
        any later layer is propagated back to it.
        """
        if wants_norm:
            grads = [param.grad for param in self._params if param.grad is not None]
            norm = torch.nn.utils.get_total_norm if self._divided is None else self._divided.norm
            self._grad_norm = norm(grads)
            return self._grad_norm
        self._grad_norm = None
        if self._divided is not None:
            return self._divided.probe(self._params)
        first = self._params[0].grad
        return 0.0 if first is None else first.sum(dtype=torch.float32)

    def _step_checked(self, judged: Tensor, step: int) -> None:
        if not self._is_bad and not math.isfinite(judged.item()):
            self._is_bad = True
            self._first_bad.fill_(step)
        if not self._is_bad:
            self._step()
        elif self.scaler is not None:
            self.scaler.update()

    def _step_masked(self, judged: Tensor, step: int) -> None:
        is_new = ~torch.isfinite(judged) & (self._first_bad < 0)
        self._first_bad = torch.where(is_new, step, self._first_bad)
        with torch.no_grad():
            torch._foreach_copy_(self._backup, self._params)
            self._step()
            is_bad = self._first_bad >= 0
            for param, before in zip(self._params, self._backup, strict=True):
                param.copy_(torch.where(is_bad, before, param))

    def _step(self) -> None:
        if self.scaler is None:
            self._take_step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def read_first_bad(self) -> int | None:
        """Return the first non-finite step, or None. Waits for the device."""
        step = int(self._first_bad)
        return step if step >= 0 else None

    def read_grad_norm(self) -> float | None:
        """Return the norm of the last step's gradient before clipping; None if it was not measured.

        Waits for the device.
        """
        return None if self._grad_norm is None else float(self._grad_norm)

    def read_scale(self) -> float | None:
        """Return the loss scale, or None without a scaler. Waits for the device."""
        return None if self.scaler is None else float(self.scaler.get_scale())

    def state(self) -> dict[str, Any]:
        """Return the scaler's state as JSON values; empty without a scaler."""
        return {} if self.scaler is None else dict(self.scaler.state_dict())

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a saved scaler state."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(dict(state))
