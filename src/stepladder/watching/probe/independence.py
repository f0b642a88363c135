"""Test on a copy, after the script's last step, whether examples of a batch affect each other."""

from __future__ import annotations

import contextlib
import copy
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stepladder.watching.hooks.hashes import per_example
from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import tensors_in
from stepladder.watching.probe.clearing import mapped, same_draws
from stepladder.watching.seen.labels import IndependenceSeen
from stepladder.watching.step_times import FORWARD
from stepladder.watching.watcher import Watcher

_SIZES: Final = (14, 10, 6)  # examples of a replayed batch: the first that is no other size
_MAX_INPUT_BYTES: Final = 4 << 20
_MAX_MODEL_BYTES: Final = 200 << 20
_MAX_FORWARD_S: Final = 1.0
_MAX_OUTPUT_DIMS: Final = 3
_MAX_LAYERS: Final = 2000
_SEQUENTIAL: Final = (nn.RNNBase, nn.MultiheadAttention)
_MAX_TRIED: Final = 20  # losses whose shapes are compared
_ROUNDING: Final = 1e-4  # of the spread of the outputs
_POSITIONS: Final = re.compile(
    r"(^|[._])(pe|pos|position\w*|pos_\w+|\w*_pos|\w*positional\w*)($|[._])"
)
_OTHER_ROWS: Final = "the model does not return one row per example"
_MIN_LENGTH: Final = 6  # of a sequence; fewer may be parts of one step in time, such as voices


@dataclass(frozen=True)
class _Kept:
    """A call of a model whose first dimension is the batch: some of its examples.

    Attributes:
        length: the first dimension is the batch if a layer that reads sequences receives it with
            this second one; None if it is in any case.
    """

    root: Root
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    num: int
    length: int | None


class Independence:
    """Keeps a few examples of one training step, and the model that was trained last."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._call: tuple[Root, nn.Module, tuple[Any, ...], dict[str, Any]] | None = None
        self._kept: _Kept | None = None
        self._num_tried = 0

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls of models and losses."""
        self._watcher = watcher
        watcher.on_call.append(self._called)
        watcher.on_loss.append(self._note)
        watcher.on_learnt.append(self._forget)

    def settle(self) -> None:
        """Forget the call that is not learned from."""
        self._call = None

    def _called(
        self, root: Root, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        is_known = self._kept is not None and self._kept.root is root
        if self._watcher.is_close and torch.is_grad_enabled() and not is_known:
            self._call = root, module, args, kwargs

    def _forget(self, _learnt: Any) -> None:
        self._call = None

    def _note(self, target: Tensor, scores: Tensor) -> None:
        """Keep some examples if the shapes of loss and loader show which dimension is the batch."""
        if self._call is None or not torch.is_grad_enabled() or self._num_tried >= _MAX_TRIED:
            return
        self._num_tried += 1
        root, module, args, kwargs = self._call
        rows = per_example(list(tensors_in((args, kwargs), 3)))
        size = sum(p.nbytes for p in (*module.parameters(), *module.buffers()))
        if not rows or size > _MAX_MODEL_BYTES or any(one.requires_grad for one in rows):
            return
        is_batch = self._is_batch_first(rows[0], target, scores, module)
        if not is_batch and not _may_be_sequences(rows[0], target, scores):
            return
        sizes = {int(size) for one in (*rows, scores) for size in one.shape[1:]}
        num = next((n for n in _SIZES if n <= len(rows[0]) and n not in sizes), None)
        if num is None or sum(one[:num].nbytes for one in rows) > _MAX_INPUT_BYTES:
            return

        def some(tensor: Tensor) -> Tensor:
            return tensor.detach()[:num].clone() if tensor.dim() else tensor.detach().clone()

        self._call = None
        args, kwargs = mapped(some, (args, kwargs))
        self._kept = _Kept(root, module, args, kwargs, num, None if is_batch else rows[0].shape[1])

    def _is_batch_first(
        self, first: Tensor, target: Tensor, scores: Tensor, module: nn.Module
    ) -> bool:
        """Return whether the first dimension of the input is surely that of the examples.

        It is if each example has one target, which differ; or if a loader has stacked the input.
        Without a loader, it may be the time of a single sequence if a layer reads sequences.
        """
        num, current = len(first), self._watcher.current
        is_paired = scores.dim() in (1, 2) and scores.shape[:1] == target.shape[:1] == (num,)
        if is_paired and (target.dim() == 1 or target.shape[1:] == scores.shape[1:]):
            is_batch = first.dim() > 2 or current is not None
            is_batch = is_batch or not any(isinstance(m, _SEQUENTIAL) for m in module.modules())
            return is_batch and bool((target != target[:1]).any())
        if current is None or current.is_whole:
            return False
        loader = self._watcher.seen.loaders[current.loader]
        is_stacked = loader.is_stacked and loader.batch_size == num and first.dim() > 1
        return is_stacked and first.shape[1] != num and target.numel() % num == 0

    def replay(self) -> None:
        """Call a copy: if half of the examples change, the outputs of the other half must not.

        Nothing is printed, and random states are restored.
        """
        kept, self._kept = self._kept, None
        phases = self._watcher.phases
        if kept is None or is_distributed():
            return
        if phases.num_steps and phases.whole_s(FORWARD) > _MAX_FORWARD_S * phases.num_steps:
            return
        seen = IndependenceSeen(built=kept.root.seen.built, where=kept.root.seen.called_at)
        self._watcher.seen.independence = seen
        try:
            with same_draws() as draw_again, silent(), torch.no_grad():
                _compare(kept, seen, draw_again)
        except Exception as error:  # whatever a script's model raises for another batch
            seen.why_not = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def is_distributed() -> bool:
    """Return whether this is one of several processes that train together."""
    library = torch.distributed
    return library.is_available() and library.is_initialized()


@contextmanager
def silent() -> Iterator[None]:
    """Print nothing, and raise no warnings."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _compare(kept: _Kept, seen: IndependenceSeen, draw_again: Any) -> None:
    original = getattr(kept.module, "_orig_mod", kept.module)
    if any(has_own_hooks(module) for module in original.modules()):
        seen.why_not = "the script has hooks on its model"
        return
    model = copy.deepcopy(original).eval()
    half = kept.num // 2
    received = _received_by_layers(model)

    def output_of(change: Any, *, is_repeated: bool = True) -> Tensor | None:
        if is_repeated:
            draw_again()
        args, kwargs = mapped(change, (kept.args, kept.kwargs))
        found = model(*args, **kwargs)
        record = callable(getattr(found, "values", None)) and not isinstance(found, Tensor)
        return next(tensors_in(list(found.values()) if record else found), None)

    def later(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[:half], tensor[:half].flip(0)]) if tensor.dim() else tensor.clone()

    def earlier(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[half:].flip(0), tensor[half:]]) if tensor.dim() else tensor.clone()

    began = perf_counter()
    first = output_of(Tensor.clone)
    if perf_counter() - began > _MAX_FORWARD_S:
        seen.why_not = "a forward pass takes more than a second"
        return
    others = [output_of(change) for change in (Tensor.clone, later, earlier)]
    outputs = [one for one in others if one is not None]
    if kept.length is not None and (kept.num, kept.length) not in received:
        seen.why_not = "the first dimension may be time"
    else:
        seen.why_not = _why_not(first, outputs, kept.num)
    if first is not None and seen.why_not is None:
        _note_changes(seen, first, outputs, output_of)
        _note_layers(seen, list(model.modules())[:_MAX_LAYERS])
        _note_order(seen, model, kept, output_of, first)


def _note_order(
    seen: IndependenceSeen, model: nn.Module, kept: _Kept, output_of: Any, first: Tensor
) -> None:
    """Reverse sequences, if the model has a table of positions and attention."""
    seen.table = _table_of(model)
    if seen.table is not None and seen.moved <= _ROUNDING:
        seen.moved_by_order = _moved_by_order(output_of, first, kept)


def _table_of(model: nn.Module) -> str | None:
    """Return the name of a table of positions in a model with attention."""
    if not any("attention" in type(one).__name__.lower() for one in model.modules()):
        return None
    named = (*model.named_buffers(), *model.named_parameters())
    return next((name for name, one in named if one.dim() > 1 and _POSITIONS.search(name)), None)


def _moved_by_order(output_of: Any, first: Tensor, kept: _Kept) -> float | None:
    """Return the largest change of an output, in standard deviations, in reversed sequences."""
    rows = [one for one in tensors_in((kept.args, kept.kwargs), 3) if one.dim()]
    lengths = {one.shape[1] if one.dim() > 1 else 0 for one in rows}
    if len(lengths) != 1 or min(lengths) < _MIN_LENGTH or first.dim() != 2:
        return None  # an output by position, or none to reverse

    def reverse(tensor: Tensor) -> Tensor:
        return tensor.flip(1) if tensor.dim() > 1 else tensor.clone()

    again, other = output_of(Tensor.clone, is_repeated=False), output_of(reverse)
    is_whole = again is not None and other is not None and other.shape == first.shape
    if not is_whole or not torch.equal(again, first):
        return None
    spread = float(first.float().std()) or 1.0
    return float((other - first).float().abs().max()) / spread


def _why_not(first: Tensor | None, outputs: list[Tensor], num: int) -> str | None:
    """Return why outputs cannot be compared, or None."""
    if first is None or [one.shape for one in outputs] != 3 * [first.shape]:
        return _OTHER_ROWS
    if not _is_per_example(first, num):
        return _OTHER_ROWS
    if not torch.equal(first, outputs[0]):
        return "the model keeps a state in evaluation mode"
    are_finite = all(bool(torch.isfinite(one).all()) for one in outputs)
    return None if are_finite else "outputs are not finite"


def _note_changes(
    seen: IndependenceSeen, first: Tensor, outputs: list[Tensor], output_of: Any
) -> None:
    """Store by how much outputs changed, in standard deviations of the outputs."""
    num, half = len(first), len(first) // 2
    spread = float(first.float().std()) or float(first.float().abs().mean())
    changes = outputs[1][:half] - first[:half], outputs[2][half:] - first[half:]
    moved = max(float(change.float().abs().max()) for change in changes)
    seen.num_examples = num
    seen.moved = moved / spread if spread > 0 else 0.0
    if spread > 0 and seen.moved <= _ROUNDING:
        seen.moved_by_place = _moved_by_place(output_of, first) / spread


def _note_layers(seen: IndependenceSeen, layers: list[nn.Module]) -> None:
    """Store which layers may explain that examples affect each other."""
    seen.num_without_statistics = sum(_has_no_statistics(one) for one in layers)
    last = (one for one in layers if getattr(one, "batch_first", True) is False)
    seen.batch_second = next((type(one).__name__ for one in last), None)


def _moved_by_place(output_of: Any, first: Tensor) -> float:
    """Return the largest change of an output in a batch of reverse order.

    Random numbers differ by place: a model whose outputs change with them is not compared.
    """

    def reverse(tensor: Tensor) -> Tensor:
        return tensor.flip(0) if tensor.dim() else tensor.clone()

    again = output_of(Tensor.clone, is_repeated=False)
    other = output_of(reverse)
    is_whole = again is not None and other is not None and again.shape == other.shape == first.shape
    if not is_whole or not torch.equal(again, first) or not bool(torch.isfinite(other).all()):
        return 0.0
    return float((other.flip(0) - first).float().abs().max())


def _may_be_sequences(first: Tensor, target: Tensor, scores: Tensor) -> bool:
    """Return whether these may be rows of tokens, each with one class as its target."""
    if first.dim() != 2 or first.is_floating_point() or first.dtype is torch.bool:
        return False
    num, length = first.shape
    is_one_each = target.shape == (num,) and scores.dim() in (1, 2) and len(scores) == num
    is_long = length >= _MIN_LENGTH and length != num
    return is_one_each and is_long and bool((target != target[:1]).any())


def _received_by_layers(model: nn.Module) -> set[tuple[int, ...]]:
    """Return a set of the first two sizes that layers for (time, batch) are going to receive."""
    received: set[tuple[int, ...]] = set()

    def note(_module: nn.Module, args: Any) -> None:
        received.update(tuple(one.shape[:2]) for one in tensors_in(args, 2) if one.dim() == 3)

    for layer in model.modules():
        if isinstance(layer, _SEQUENTIAL) and not layer.batch_first:
            layer.register_forward_pre_hook(note)
    return received


def _is_per_example(output: Tensor, num: int) -> bool:
    is_square = num in output.shape[1:]  # such as similarities of all pairs
    return 1 <= output.dim() <= _MAX_OUTPUT_DIMS and output.shape[0] == num and not is_square


def has_own_hooks(module: nn.Module) -> bool:
    """Return whether the script has registered hooks on a module."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return any(not str(getattr(one, "__module__", "torch")).startswith("torch") for one in hooks)


def _has_no_statistics(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and not module.track_running_stats
