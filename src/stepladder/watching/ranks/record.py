"""Record on one rank what is compared with the others; watching one process records none of it."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import checksum, is_plain, part, tensors_in
from stepladder.watching.ranks.collectives import Collectives
from stepladder.watching.ranks.seen import (
    HeldBy,
    PaddedSeen,
    RankSeen,
    RateSeen,
    WeightsSeen,
    WrapperSeen,
)
from stepladder.watching.step_times import has_gpu
from stepladder.watching.watcher import Watcher

_MAX_TENSORS: Final = 128
_MAX_OF_A_TENSOR: Final = 1024
_MAX_CHECKS: Final = 64
_WEIGHTS_EVERY: Final = 500  # steps, after powers of two
_FIRST_INPUTS: Final = 4  # steps whose inputs are all compared
_INPUTS_EVERY: Final = 50
_MAX_INPUTS: Final = 64
_FIRST_READ: Final = 12  # steps whose waits are all read
_READ_EVERY: Final = 10
_WARM: Final = 3  # iterations that create buckets and connections
_MAX_WAITS: Final = 500
_MAX_LOSSES: Final = 64
_MAX_BATCHES: Final = 32
_NS: Final = 1e-9
_LIBRARIES: Final = ("horovod", "deepspeed", "bagua", "colossalai", "megatron", "fairscale", "apex")


class _Wrapped:
    """One DistributedDataParallel while the script runs.

    Attributes:
        averaged, frozen, ignored: ids of its weights, by whether their gradients are averaged.
        iteration: the last one whose times were read.
    """

    def __init__(self, module: Any, seen: WrapperSeen) -> None:
        self.ref = weakref.ref(module)
        self.seen = seen
        left_out = set(getattr(module, "parameters_to_ignore", ()))
        named = list(module.module.named_parameters())
        self.ignored = {id(p) for name, p in named if name in left_out}
        self.averaged = {id(p) for name, p in named if name not in left_out and p.requires_grad}
        self.frozen = {id(p) for _, p in named} - self.ignored - self.averaged
        self.iteration = -1

    def holds(self, weight: Any) -> HeldBy | None:
        """Return how it holds a weight; None: it does not."""
        for ids, held in (
            (self.averaged, HeldBy.WRAPPER),
            (self.frozen, HeldBy.FROZEN),
            (self.ignored, HeldBy.IGNORED),
        ):
            if id(weight) in ids:
                return held
        return None


class RankWatch:
    """Records weights, inputs and waits of one rank."""

    def __init__(self, seen: RankSeen, names: Names, optimizers: OptimizerWatch) -> None:
        self.seen = seen
        self._names = names
        self._optimizers = optimizers
        self._watcher: Watcher
        self._wrapped: list[_Wrapped] = []
        self._collectives = Collectives(self._called, self._is_between)
        self._spent = (0, 0.0, 0.0)  # step, and seconds in collectives until then
        self._closed_at = -1  # number of steps before the last backward
        self._factors: dict[tuple[int, Any], Tensor] = {}
        self._due = 0
        self._known: list[int] = []
        self._kinds: dict[int, set[str]] = {}
        self._backwards_began = False
        self._before = (0, 0)  # calls and numbers before the first backward

    def install(self, watcher: Watcher) -> None:
        """Wrap DistributedDataParallel and the functions of torch.distributed."""
        self._watcher = watcher
        watcher.seen.world_size = self.seen.size
        patches = watcher.patches
        patches.wrap(DistributedDataParallel, "__init__", after=self._made)
        patches.wrap(DistributedDataParallel, "forward", before=self._called_wrapper)
        patches.wrap(DistributedDataParallel, "register_comm_hook", after=self._hooked)
        patches.wrap(torch.autograd, "backward", before=self._open, after=self._close)
        if torch.distributed.is_available():
            for owner in (torch.distributed, sys.modules["torch.distributed.distributed_c10d"]):
                patches.wrap(owner, "init_process_group", after=self._grouped)
        self._collectives.install(watcher.switch, patches)
        watcher.on_step.append(self._next)

    def settle(self) -> None:
        """Read losses, loaders and schedules."""
        seen, watched = self.seen, self._watcher.seen
        seen.has_group = seen.has_group or _is_initialized()
        self._note_collectives()
        seen.library = next((name for name in _LIBRARIES if name in sys.modules), None)
        seen.was_cut = watched.was_cut
        main = max(watched.optimizers, key=lambda one: one.num_steps, default=None)
        if main is not None:
            seen.stepped_at = main.stepped_at
            seen.losses = dict(main.losses[:_MAX_LOSSES])
        training = [one for one in watched.loaders if one.training]
        seen.has_sampler = any(one.sampler == "distributed" for one in training)
        sums = [p.first_checksum for one in training for p in one.training]
        seen.batches = [value for value in sums if value is not None][:_MAX_BATCHES]
        seen.padded = [
            PaddedSeen(
                where=one.where,
                num_examples=one.num_dataset,
                num_repeated=one.num_repeated,
                num_ranks=one.num_replicas,
                collectives=tuple(sorted(self._kinds.get(idx, ()))),
            )
            for idx, one in enumerate(watched.loaders)
            if one.num_repeated and any(p.is_whole for p in one.validation) and not one.training
        ]
        seen.schedules = [
            RateSeen(
                kind=one.kind,
                where=one.stepped_at or one.built_at,
                num_stepped=one.num_stepped,
                horizon=one.horizon,
            )
            for one in watched.schedules
            if one.horizon
        ]

    def _note_collectives(self) -> None:
        seen, calls = self.seen, self._collectives
        if self._backwards_began:
            seen.num_calls = calls.num_calls - self._before[0]
            seen.num_elements = calls.num_elements - self._before[1]
        seen.has_exchange = calls.has_exchange

    def _grouped(self, *_: Any) -> None:
        self.seen.has_group = True
        self._collectives.add_functional()

    def _made(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        module = args[0]
        seen = WrapperSeen(
            where=self._watcher.own.here(),
            num_ranks=int(torch.distributed.get_world_size(module.process_group)),
            finds_unused=bool(getattr(module, "find_unused_parameters", False)),
        )
        if not has_gpu():  # there, reading the times waits for the device
            module._set_ddp_runtime_logging_sample_rate(_READ_EVERY)
        self.seen.wrappers.append(seen)
        self._wrapped.append(_Wrapped(module, seen))

    def _wrapped_of(self, module: Any) -> _Wrapped | None:
        return next((one for one in self._wrapped if one.ref() is module), None)

    def _hooked(self, _note: Any, args: tuple[Any, ...], _kwargs: Any, _result: Any) -> None:
        one = self._wrapped_of(args[0])
        if one is not None:
            one.seen.has_hook = True

    def _called_wrapper(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        module = args[0]
        one = self._wrapped_of(module)
        if one is None or not torch.is_grad_enabled() or not module.training:
            return
        one.seen.num_forwards += 1
        one.seen.num_unsynced += not module.require_backward_grad_sync
        step, inputs = self._watcher.step, self.seen.inputs
        is_due = step < _FIRST_INPUTS or step % _INPUTS_EVERY == 0
        if is_due and step not in inputs and len(inputs) < _MAX_INPUTS:
            given = [t for t in tensors_in((args[1:], kwargs)) if is_plain(t) and t.numel()]
            if given:
                inputs[step] = sum(checksum(t) for t in given[:3])

    def _called(self, kind: str) -> None:
        """Note a collective that comes after a pass over a loader in which nothing is learned."""
        one = self._watcher.current
        if one is not None and not one.is_training:
            self._kinds.setdefault(one.loader, set()).add(kind)

    def _open(self, _args: Any, _kwargs: Any) -> None:
        if not self._backwards_began:
            self._backwards_began = True
            self._before = (self._collectives.num_calls, self._collectives.num_elements)
        step = self._watcher.step
        self._closed_at = -1
        if step < self._due:
            return
        powers = 1 << step.bit_length() if step else 1
        self._due = min(powers, (step // _WEIGHTS_EVERY + 1) * _WEIGHTS_EVERY)
        is_on_time = step % _WEIGHTS_EVERY == 0 or step & (step - 1) == 0
        if is_on_time and len(self.seen.weights) < _MAX_CHECKS:
            self._read_weights(step)

    def _close(self, *_: Any) -> None:
        self._closed_at = self._watcher.step

    def _is_between(self) -> bool:
        return self._closed_at == self._watcher.step

    def _read_weights(self, step: int) -> None:
        weights = self._optimizers.weights(with_unused=step == 0)
        plain = [p for p in weights if is_plain(p) and p.is_floating_point() and p.numel()]
        self.seen.num_sharded = max(self.seen.num_sharded, len(weights) - len(plain))
        if self._is_sharded(weights):
            self.seen.num_sharded, plain = max(1, self.seen.num_sharded), []
        every = -(-len(plain) // _MAX_TENSORS) if plain else 1
        some = plain[::every]
        if not some:
            return
        self._describe(plain, some)
        values = [part(p, _MAX_OF_A_TENSOR).double() for p in some]
        sums = [v.dot(self._factors_for(v)) for v in values]
        found = torch.stack([one.cpu() for one in (*sums, *(v.abs().sum() for v in values))])
        numbers = found.tolist()
        self.seen.weights.append(
            WeightsSeen(
                step=step, sums=tuple(numbers[: len(some)]), sizes=tuple(numbers[len(some) :])
            )
        )

    def _factors_for(self, values: Tensor) -> Tensor:
        """Return a fixed factor for each position, so that exchanged values are seen as well."""
        key = (values.numel(), values.device)
        if key not in self._factors:
            at = torch.arange(1, values.numel() + 1, dtype=torch.float64, device=values.device)
            self._factors[key] = torch.cos(at)
        return self._factors[key]

    def _describe(self, plain: list[Any], some: list[Any]) -> None:
        """Describe weights, if they are not those of the last time."""
        ids = [id(p) for p in some]
        held = tuple(self._held(p) for p in some)
        if ids == self._known and held == self.seen.held:
            return
        if self._known and ids != self._known:
            self.seen.weights.clear()
        self._known = ids
        self.seen.names = tuple(self._names.of(p) for p in some)
        self.seen.shapes = tuple(tuple(p.shape) for p in some)
        self.seen.held = held
        self.seen.num_trained = sum(p.numel() for p in plain)

    def _held(self, weight: Tensor) -> HeldBy:
        found = (one.holds(weight) for one in self._wrapped if one.ref() is not None)
        return next((held for held in found if held is not None), HeldBy.NOTHING)

    def _is_sharded(self, weights: list[Any]) -> bool:
        """Note how FSDP shards; return whether plain weights may be parts of larger ones."""
        for weight in weights:
            mesh = getattr(weight, "device_mesh", None)
            if mesh is not None:
                self.seen.whole_mesh = mesh.ndim == 1 and mesh.size() == self.seen.size
                break
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")
        if fsdp is None:
            return False
        roots = [root.ref() for root in self._names.roots]
        modules = [m for root in roots if root is not None for m in root.modules()]
        if not any(isinstance(m, fsdp.FSDPModule) for m in modules):
            self.seen.whole_mesh = False
        return any(isinstance(m, fsdp.FullyShardedDataParallel) for m in modules)

    def _next(self) -> None:
        """Read how long this rank waited for communication."""
        step = self._watcher.step
        if step > _FIRST_READ and step % _READ_EVERY:
            return
        calls, (before, spent, between) = self._collectives, self._spent
        self._spent = (step, calls.spent_s, calls.spent_between_s)
        num = max(1, step - before)
        wait_s, between_s = (calls.spent_s - spent) / num, (calls.spent_between_s - between) / num
        wrapped = [one for one in self._wrapped if one.ref() is not None]
        read = [_read(one) for one in wrapped]
        new = [wait for wait in read if wait is not None]
        is_read = bool(new) if wrapped else self.seen.has_group and not has_gpu()
        if is_read and step > _WARM and len(self.seen.waits) < _MAX_WAITS:
            self.seen.waits[step] = wait_s + sum(new)
            self.seen.inside[step] = wait_s - between_s + sum(new)


def _read(one: _Wrapped) -> float | None:
    """Return the seconds in which a wrapper's last iteration only communicated, if it is new."""
    module = one.ref()
    if module is None:
        return None
    found = module._get_ddp_logging_data()
    iteration = int(found.get("iteration", -1))
    if iteration <= one.iteration:
        return None
    one.iteration = iteration
    seen = one.seen
    seen.num_read += 1
    seen.num_with_unused += int(found.get("unused_parameter_size", 0)) > 0
    sizes = found.get("rebuilt_bucket_sizes") or found.get("bucket_sizes") or ""
    seen.bucket_bytes = tuple(int(word) for word in str(sizes).replace(",", " ").split())
    communicated = found.get("backward_comm_time")
    if communicated is None or iteration < _WARM:
        return None
    overlap = int(found.get("backward_compute_comm_overlap_time", 0))
    return max(0.0, (int(communicated) - overlap) * _NS)


def _is_initialized() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
