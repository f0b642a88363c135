"""Replacements for a module's forward: folded, compiled. The model itself does not change.

Each is an object assigned to a module's `forward`. It is not a module and holds no tensors of the
model, so the names and values in `state_dict` do not change: checkpoints, predict and export work
the same. Compiled code is in torch's folder: `TORCHINDUCTOR_CACHE_DIR`, if set.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from stepladder.errors import ResourceError, UsageError
from stepladder.models.folding import fold_batchnorm
from stepladder.models.fusing import fuse_activations

Forward = Callable[..., Any]
_CONVOLUTION_BATCH = 16
"""Number of examples from which torch uses another algorithm for convolutions on the CPU."""


class Replacement(ABC):
    """A replacement of a module's `forward`; a copy of the module gets its own."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the module's own forward."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle its arguments, without what it has built, such as compiled code."""
        return type(self), (self.module,)


class FrozenForward(Replacement):
    """The forward of a frozen trunk: without a graph, and optionally folded and compiled.

    The trunk is folded and compiled at the first call in evaluation mode, with the weights it then
    has; it is folded again if the weights have changed. In training mode the original forward is
    used.

    It runs under `no_grad`, never in inference mode: code compiled for training steps is then used
    for validation too, and the head can be trained on the features. A batch too small for the
    compiled code is padded with copies of its last example, whose features are dropped: in
    evaluation mode the examples are independent of each other.
    """

    def __init__(
        self, module: nn.Module, is_folded: bool = False, is_compiled: bool = False
    ) -> None:
        super().__init__(module)
        self.is_folded = is_folded
        self.is_compiled = is_compiled
        self._lock = threading.Lock()
        self._forward: Forward | None = None
        self._made_at = -1
        self._min_examples = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the features."""
        if self.module.training:
            return own_forward(self.module)(*args, **kwargs)
        with _no_grad_out_of_inference(args, kwargs) as (inputs, named):
            forward = self._current(inputs, named)
            missing = self._min_examples - _num_examples(inputs, named)
            if missing <= 0:
                return forward(*inputs, **named)
            inputs, named = _each_tensor(lambda t: _fill_up(t, missing), (inputs, named))
            return _each_tensor(lambda t: t[:-missing], forward(*inputs, **named))

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle its arguments."""
        return type(self), (self.module, self.is_folded, self.is_compiled)

    def _current(self, args: Any, kwargs: Any) -> Forward:
        version = _version(self.module) if self.is_folded else 0
        with self._lock:
            if self._forward is None or self._made_at != version:
                target = self.module
                if self.is_folded:
                    with as_built(self.module):
                        target = fold_batchnorm(self.module, *args, **kwargs)
                forward = own_forward(target)
                if self.is_folded and not self.is_compiled:  # the compiler fuses them itself
                    forward = fuse_activations(target, *args, **kwargs) or forward
                if self.is_compiled:
                    forward = compile_forward(forward)
                    self._min_examples = _min_examples(_num_examples(args, kwargs))
                self._forward = forward
                self._made_at = version
            return self._forward


class CompiledForward(Replacement):
    """The compiled forward of a trainable module, with code for training and for validation.

    In inference mode it runs under `no_grad` instead, so that it does not matter where a batch was
    created.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._forward = compile_forward(own_forward(module))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the module's own forward."""
        if not torch.is_inference_mode_enabled():
            return self._forward(*args, **kwargs)
        with _no_grad_out_of_inference(args, kwargs) as (inputs, named):
            return self._forward(*inputs, **named)


def own_forward(module: nn.Module) -> Forward:
    """Return the forward of a module's class, even if it was replaced."""
    return partial(type(module).forward, module)


def set_forward(module: nn.Module, forward: Replacement | None) -> None:
    """Replace a module's forward by an object; None: restore the module's own.

    Raises:
        UsageError: if it was already replaced by third-party code.
    """
    there = vars(module).get("forward")
    if forward is None:
        if isinstance(there, Replacement):
            del vars(module)["forward"]
        return
    if there is not None and not isinstance(there, Replacement):
        raise UsageError(
            f"other code has replaced the method forward of a {type(module).__name__} in the model",
            why="The options model.fold_batchnorm, device.compile and "
            "device.gradient_checkpointing "
            "need the original method.",
            fix="Leave out these options, or define forward in a subclass instead.",
        )
    vars(module)["forward"] = forward


@contextmanager
def as_built(model: nn.Module) -> Iterator[None]:
    """Use the original forwards of a model and all of its modules within the block."""
    replaced = {
        module: forward
        for module in model.modules()
        if isinstance(forward := vars(module).get("forward"), Replacement)
    }
    for module in replaced:
        set_forward(module, None)
    try:
        yield
    finally:
        for module, forward in replaced.items():
            set_forward(module, forward)


def compile_forward(forward: Forward) -> Forward:
    """Compile a forward for any batch size.

    The first dimension of every tensor is marked as dynamic: the batches of training and validation
    and the smaller last ones then use the same code. Otherwise each new size would be compiled
    during the run, which takes as long as the first. A batch of one example is still a special
    case, and so are fewer than 16 for a convolution on the CPU.

    Raises:
        ResourceError: when called, if it cannot be compiled.
    """
    compiled = torch.compile(forward)

    def run(*args: Any, **kwargs: Any) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and leaf.dim():
                torch._dynamo.maybe_mark_dynamic(leaf, 0)
        try:
            return compiled(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            cause = getattr(error, "inner_exception", error)  # the error of the backend
            first = next(iter(str(cause).strip().splitlines()), "")
            raise ResourceError(
                f"torch.compile failed ({type(cause).__name__}: {first})",
                where="device.compile",
                fix="Leave out the option device.compile; with --debug, the whole message is "
                "printed.",
            ) from error

    return run


def _version(module: nn.Module) -> int:
    """Count the in-place changes of a module's tensors."""
    return sum(t._version for t in [*module.parameters(), *module.buffers()])


def _each_tensor(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    return tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, values)


@contextmanager
def _no_grad_out_of_inference(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Leave inference mode for `no_grad`; yield the arguments as normal tensors."""
    with torch.inference_mode(False), torch.no_grad():
        yield _each_tensor(_out_of_inference, (args, kwargs))


def _out_of_inference(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.is_inference() else tensor


def _num_examples(args: Any, kwargs: Any) -> int:
    """Count the rows of the first tensor."""
    leaves = tree_leaves((args, kwargs))
    return next((len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 0)


def _min_examples(num_compiled: int) -> int:
    """Return the smallest batch that can use code compiled for a number of examples."""
    return _CONVOLUTION_BATCH if num_compiled >= _CONVOLUTION_BATCH else min(num_compiled, 2)


def _fill_up(tensor: Tensor, missing: int) -> Tensor:
    """Repeat the last row, in the same memory layout."""
    is_last = not tensor.is_contiguous() and tensor.dim() == 4
    rows = torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])])
    return rows.contiguous(
        memory_format=torch.channels_last if is_last else torch.contiguous_format
    )
