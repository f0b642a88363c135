"""Where a model can be cut into stages, and where it should be.

A model can be cut where a module begins if nothing that was computed before is used after but the
module's input. One forward pass shows it: each operation says which tensors it used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from stepladder.errors import UsageError

_REPEATS: Final = 3


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A place where a model can be cut.

    Attributes:
        module: name of the module that begins there.
        at: number of operations before it.
        shape: of its input for one example; dtype: of it.
        share: of the time of a forward pass that is before it.
    """

    module: str
    at: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    share: float = 0.0

    @property
    def num_bytes(self) -> int:
        """Bytes that cross the cut for one example."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """What a forward pass of a model shows.

    Attributes:
        cuts: all places where it can be cut, in order.
        uses: the first and the last operation that uses each parameter or buffer, by name; those
            that no operation uses are missing.
        num_operations: of the pass.
    """

    cuts: tuple[Cut, ...]
    uses: Mapping[str, tuple[int, int]]
    num_operations: int


class _Recorder(TorchFunctionMode):
    """Notes which operation makes and uses each tensor."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.num = 0
        self.kept: list[Any] = []  # so that no id is used twice
        self.made: dict[int, int] = {}
        self.last_use: dict[int, int] = {}
        self.uses: dict[str, tuple[int, int]] = {}
        self._names = names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs or {})) if isinstance(one, Tensor)]
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "__get__" and not isinstance(result, Tensor):
            return result  # a shape, a dtype
        at = self.num
        self.num += 1
        for tensor in given:
            self._use(tensor, at)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and id(tensor) not in self._names:
                self.made.setdefault(id(tensor), at)
                self.kept.append(tensor)
        return result

    def _use(self, tensor: Tensor, at: int) -> None:
        name = self._names.get(id(tensor))
        if name is not None:
            first, _ = self.uses.get(name, (at, at))
            self.uses[name] = (first, at)
            return
        self.kept.append(tensor)
        self.made.setdefault(id(tensor), -1)  # came from outside
        self.last_use[id(tensor)] = at


def anatomy_of(model: nn.Module, run: Callable[[], Any], *, num_examples: int) -> Anatomy:
    """Find the places where a model can be cut.

    Args:
        run: a forward pass of a few examples, without gradients.
        num_examples: that it computes.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    recorder = _Recorder({id(tensor): name for name, tensor in tensors.items()})
    begins: list[tuple[str, int, Tensor]] = []
    ends: dict[str, int] = {}
    calls: dict[str, int] = {}

    def note(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:  # noqa: ARG001
        calls[name] = calls.get(name, 0) + 1
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if len(args) == 1 and len(given) == 1 and given[0] is args[0]:
            begins.append((name, recorder.num, args[0]))

    def end(name: str, *_: Any) -> None:
        ends[name] = recorder.num

    handles = []
    for name, module in model.named_modules():
        if name:
            hook = partial(note, name)
            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            handles.append(module.register_forward_hook(partial(end, name)))
    try:
        with recorder:
            run()
    finally:
        for handle in handles:
            handle.remove()
    found: dict[int, Cut] = {}
    for name, at, given in begins:
        fits = given.dim() > 1 and given.shape[0] == num_examples and given.is_floating_point()
        if calls[name] > 1 or at in found or not fits:
            continue
        if not _is_alone(recorder, at, given, until=ends.get(name, at)):
            continue
        found[at] = Cut(module=name, at=at, shape=tuple(given.shape[1:]), dtype=given.dtype)
    cuts = tuple(found[at] for at in sorted(found) if at > 0)
    return Anatomy(cuts=cuts, uses=recorder.uses, num_operations=recorder.num)


def _is_alone(recorder: _Recorder, at: int, given: Tensor, *, until: int) -> bool:
    """Return whether nothing that was made before a module is used after but its own input.

    Args:
        at, until: the operations with which the module begins and ends.
        given: its input, which only the module itself may use.
    """
    return not any(
        made < at and recorder.last_use.get(key, -1) >= (until if key == id(given) else at)
        for key, made in recorder.made.items()
    )


def timed(model: nn.Module, anatomy: Anatomy, run: Callable[[], Any]) -> Anatomy:
    """Return the cuts with the share of the time before each; the median of a few passes."""
    modules = dict(model.named_modules())
    passes = []
    for _ in range(_REPEATS + 1):
        at: dict[str, float] = {}

        def note(name: str, module: nn.Module, args: Any, at: dict[str, float] = at) -> None:  # noqa: ARG001
            _wait()
            at[name] = time.perf_counter()

        handles = [
            modules[cut.module].register_forward_pre_hook(partial(note, cut.module))
            for cut in anatomy.cuts
        ]
        try:
            _wait()
            started = time.perf_counter()
            run()
            _wait()
            ended = time.perf_counter()
        finally:
            for handle in handles:
                handle.remove()
        passes.append([(at[cut.module] - started) / (ended - started) for cut in anatomy.cuts])
    columns = torch.tensor(passes[1:]).median(dim=0).values.tolist()
    cuts = tuple(
        replace(cut, share=share) for cut, share in zip(anatomy.cuts, columns, strict=True)
    )
    return replace(anatomy, cuts=cuts)


def _wait() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


def choose_cuts(anatomy: Anatomy, num_stages: int) -> list[Cut]:
    """Return the cuts whose slowest stage is fastest.

    Raises:
        UsageError: if the model has not enough places.
    """
    cuts = possible_cuts(anatomy)
    num_cuts = num_stages - 1
    if len(cuts) < num_cuts:
        raise UsageError(
            f"this model cannot be cut into {num_stages} stages: it has {len(cuts)} places where "
            "nothing but the input of one module is used afterwards",
            where="device.pipeline_stages",
            why="A stage gets one tensor from the stage before. Connections over several layers, "
            "and weights that several layers share, keep these in one stage.",
            fix="Use --device.sharded.",
        )
    shares = [0.0, *(cut.share for cut in cuts)]
    # best[k][i]: the slowest of k stages, of which the last ends where place i begins
    best: list[dict[int, tuple[float, tuple[int, ...]]]] = [{0: (0.0, ())}]
    for _ in range(num_cuts):
        nearest: dict[int, tuple[float, tuple[int, ...]]] = {}
        for place in range(1, len(shares)):
            options = [
                (max(slowest, shares[place] - shares[before]), (*chosen, place))
                for before, (slowest, chosen) in best[-1].items()
                if before < place
            ]
            if options:
                nearest[place] = min(options)
        best.append(nearest)
    _, chosen = min(
        (max(slowest, 1.0 - shares[place]), chosen) for place, (slowest, chosen) in best[-1].items()
    )
    return [cuts[place - 1] for place in chosen]


def possible_cuts(anatomy: Anatomy) -> list[Cut]:
    """Return the cuts that leave each weight in one stage."""
    return [cut for cut in anatomy.cuts if not _divides_a_weight(cut, anatomy.uses)]


def _divides_a_weight(cut: Cut, uses: Mapping[str, tuple[int, int]]) -> bool:
    return any(first < cut.at <= last for first, last in uses.values())


def stage_of_weights(anatomy: Anatomy, cuts: Sequence[Cut], names: Sequence[str]) -> dict[str, int]:
    """Return the stage that holds each tensor; one that nothing uses is in the first."""
    places = [cut.at for cut in cuts]
    return {
        name: sum(place <= anatomy.uses[name][0] for place in places) if name in anatomy.uses else 0
        for name in names
    }
