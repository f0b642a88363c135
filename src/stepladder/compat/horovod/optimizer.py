"""A torch optimizer that averages gradients over ranks before its step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.compat.horovod.collectives import (
    Average,
    Handle,
    ReduceOp,
    begin_reduction,
    chosen_op,
    require_all,
    synchronize,
)
from stepladder.compat.horovod.session import channel_at, current, new_channel
from stepladder.errors import UsageError

_BUCKET_BYTES: Final = 25 * 1024**2  # as in DistributedDataParallel


@dataclass(kw_only=True)
class _Bucket:
    """Parameters whose gradients are sent together.

    Attributes:
        num_ready: parameters whose gradient is complete.
        dtype: of the gradients, before compression.
    """

    params: list[Tensor]
    num_ready: int = 0
    handle: Handle | None = None
    dtype: torch.dtype = torch.float32


@dataclass(kw_only=True)
class Reducer:
    """Sends gradients in buckets while the backward pass runs.

    Buckets are sent in one order on all ranks, whatever the order in which gradients are computed:
    a bucket waits for those before it. A gradient that a rank did not compute counts as zero.

    Attributes:
        passes: backward passes before gradients are sent; their gradients add up.
        pre, post: factors before and after the reduction.
    """

    buckets: list[_Bucket]
    channel: int
    op: ReduceOp
    compression: Any
    passes: int
    pre: float
    post: float
    counts: dict[Tensor, int] = field(default_factory=dict)
    num_sent: int = 0

    def watch(self) -> None:
        """Send each bucket as soon as its gradients are complete."""
        for bucket in self.buckets:
            for param in bucket.params:
                param.register_post_accumulate_grad_hook(self._hook(bucket))  # type: ignore[no-untyped-call]

    def _hook(self, bucket: _Bucket) -> Callable[[Tensor], None]:
        def ready(param: Tensor) -> None:
            count = self.counts[param] = self.counts.get(param, 0) + 1
            if count > self.passes:
                raise UsageError(
                    f"gradients were computed {count} times before step(), but "
                    f"backward_passes_per_step is {self.passes}",
                    where="DistributedOptimizer",
                    fix=f"Use backward_passes_per_step={count}, or call step() more often.",
                )
            if count == self.passes:
                bucket.num_ready += 1
                self._send_complete()

        return ready

    def _send_complete(self) -> None:
        while self.num_sent < len(self.buckets):
            bucket = self.buckets[self.num_sent]
            if bucket.num_ready < len(bucket.params):
                return
            self._send(bucket)

    @torch.no_grad()
    def _send(self, bucket: _Bucket) -> None:
        flat = torch.cat([_flat(param) for param in bucket.params])
        small, bucket.dtype = self.compression.compress(flat)
        bucket.handle = begin_reduction(
            channel_at(self.channel), small, self.op, prescale=self.pre, postscale=self.post
        )
        self.num_sent += 1

    @torch.no_grad()
    def wait(self) -> None:
        """Send what is not sent, and wait until all gradients are averaged."""
        while self.num_sent < len(self.buckets):
            self._send(self.buckets[self.num_sent])
        for bucket in self.buckets:
            flat = self.compression.decompress(synchronize(bucket.handle), bucket.dtype)  # type: ignore[arg-type]
            parts = flat.split([param.numel() for param in bucket.params])
            for param, part in zip(bucket.params, parts, strict=True):
                _store(param, part.view(param.shape))
        self.forget()

    def forget(self) -> None:
        """Begin a new step."""
        self.num_sent = 0
        self.counts.clear()
        for bucket in self.buckets:
            bucket.num_ready, bucket.handle = 0, None


def _flat(param: Tensor) -> Tensor:
    if param.grad is None:
        return torch.zeros_like(param).reshape(-1)
    grad = param.grad.to_dense() if param.grad.is_sparse else param.grad
    return grad.detach().reshape(-1)


def _store(param: Tensor, value: Tensor) -> None:
    if param.grad is None:
        param.grad = value.clone()
    elif param.grad.is_sparse:
        param.grad = value.to_sparse()
    else:
        param.grad.copy_(value)


def _buckets(params: Sequence[Tensor]) -> list[_Bucket]:
    """Group parameters, the last first, as the backward pass computes those first."""
    buckets: list[_Bucket] = []
    num_bytes, kind = 0, None
    for param in reversed(params):
        if (param.dtype, param.device) != kind or num_bytes >= _BUCKET_BYTES:
            buckets.append(_Bucket(params=[]))
            num_bytes, kind = 0, (param.dtype, param.device)
        buckets[-1].params.append(param)
        num_bytes += param.nbytes
    return buckets


class _Distributed:
    """The methods that `DistributedOptimizer` adds to the class of an optimizer."""

    _reducer: Reducer | None
    _reduced: set[Tensor]
    _is_synchronized = False
    _is_skipped = False
    param_groups: list[dict[str, Any]]

    def synchronize(self) -> None:
        """Wait until gradients are averaged, such as before they are clipped."""
        if self._reducer is not None:
            self._require_known()
            self._reducer.wait()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Take steps in this block without averaging, as `synchronize` was called."""
        self._is_skipped = True
        try:
            yield
        finally:
            self._is_skipped = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average the gradients, and take a step."""
        if closure is not None and self._reducer is not None:
            return super().step(self._averaging(closure))  # type: ignore[misc]
        if not self._is_skipped and not self._is_synchronized:
            self.synchronize()
        self._is_synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def _averaging(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def averaged() -> Any:
            with torch.enable_grad():
                loss = closure()
            self.synchronize()
            self._is_synchronized = False
            return loss

        return averaged

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients."""
        if self._reducer is not None and self._reducer.num_sent:
            raise UsageError(
                "zero_grad() was called after backward(), while gradients are being averaged",
                where="DistributedOptimizer",
                fix="Call step() or synchronize() before zero_grad().",
            )
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set how many backward passes add up before a step."""
        if self._reducer is not None:
            self._reducer.passes = passes
            self._reducer.forget()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; gradients that are being averaged are dropped."""
        if self._reducer is not None:
            self._reducer.forget()
        super().load_state_dict(state_dict)  # type: ignore[misc]

    def _require_known(self) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                if param.requires_grad and param not in self._reduced:
                    raise UsageError(
                        f"a parameter of shape {tuple(param.shape)} is trained, but was added or "
                        "unfrozen after DistributedOptimizer, so that its gradient is not averaged",
                        where="DistributedOptimizer",
                        fix="Wrap the optimizer after all parameters are added and unfrozen.",
                    )


def distribute(
    optimizer: Any,
    *,
    named_parameters: Any,
    compression: Any,
    backward_passes_per_step: int,
    op: Any,
    gradient_predivide_factor: float,
    process_set: Any,
) -> Any:
    """Return a torch optimizer of the same class that averages gradients over all ranks.

    Gradients are sent in buckets while the backward pass runs. State and parameter groups are those
    of the given optimizer. The arguments are those of `DistributedOptimizer`.

    Raises:
        UsageError: see `DistributedOptimizer`.
    """
    if not hasattr(optimizer, "param_groups"):
        raise UsageError(
            f"{type(optimizer).__name__} is not an optimizer",
            where="DistributedOptimizer",
            fix="Pass one such as torch.optim.SGD(model.parameters(), lr=0.1), or "
            "keras.optimizers.SGD(0.1).",
        )
    require_all(process_set)
    op = chosen_op(None, op)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise UsageError(
            "gradient_predivide_factor needs op=hvd.Average",
            where="DistributedOptimizer",
            fix="Leave gradient_predivide_factor out, or pass op=hvd.Average.",
        )
    params = [param for group in optimizer.param_groups for param in group["params"]]
    _check_names(params, named_parameters)
    cls: Any = type(optimizer)
    wrapped_class: Any = type(cls.__name__, (_Distributed, cls), {"__module__": cls.__module__})
    wrapped = wrapped_class.__new__(wrapped_class)
    # a schedule that was built before has replaced `step` by that of the given optimizer
    wrapped.__dict__.update({k: v for k, v in vars(optimizer).items() if k != "step"})
    trained = [param for param in params if param.requires_grad]
    wrapped._reduced, wrapped._reducer = set(trained), None
    if current().size > 1:
        channel = new_channel()
        assert channel is not None
        wrapped._reducer = Reducer(
            buckets=_buckets(trained),
            channel=channel.key,
            op=op,
            compression=compression,
            passes=backward_passes_per_step,
            pre=1 / gradient_predivide_factor,
            post=gradient_predivide_factor,
        )
        wrapped._reducer.watch()
    return wrapped


def _check_names(params: Sequence[Tensor], named_parameters: Any) -> None:
    if named_parameters is None:
        return
    named = list(named_parameters)
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise UsageError(
            f"several parameters have the same name: {', '.join(twice)}",
            where="named_parameters",
            fix="Pass model.named_parameters() of one model that holds all parameters.",
        )
    known = {param for _, param in named}
    missing = sum(param not in known for param in params)
    if missing:
        raise UsageError(
            f"{missing} of {len(params)} parameters of the optimizer have no name",
            where="named_parameters",
            fix="Pass model.named_parameters() of the whole model.",
        )
