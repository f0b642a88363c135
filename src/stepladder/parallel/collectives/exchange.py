"""How DistributedDataParallel sends and adds up gradients, by the options of a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stepladder.config.choices import AllReduce, Buckets, GradientCompression
from stepladder.config.recipe import DeviceConfig
from stepladder.errors import UsageError
from stepladder.machine.activity import doing
from stepladder.parallel.collectives.algorithms import ALGORITHMS, Algorithm, Shape
from stepladder.parallel.collectives.choice import Choice
from stepladder.parallel.collectives.executor import Executor
from stepladder.parallel.collectives.gradient_sum import Choose, GradientSum
from stepladder.parallel.collectives.probe import measure_fit, num_local
from stepladder.parallel.collectives.race import Race
from stepladder.parallel.collectives.schedule import Schedule
from stepladder.parallel.collectives.transport import GlooTransport
from stepladder.parallel.world import World
from stepladder.records.collectives import Collectives, Fit
from stepladder.records.from_json import read_record

_FOREVER: Final = timedelta(days=7)  # a rank that does not answer is found by its heartbeat
_ONE_BUCKET_MB: Final = 1e6
_ONE_WEIGHT_MB: Final = 1e-6
_SEGMENT_BYTES: Final = 1024**2
_MAX_SEGMENTS: Final = 16
_LOW_RANK_FROM: Final = 10  # steps before PowerSGD begins, with whole gradients
_MIN_RATE: Final = 2  # by which PowerSGD makes a gradient smaller, or leaves it as it is
_DTYPES: Final = {
    GradientCompression.BF16: torch.bfloat16,
    GradientCompression.FP16: torch.float16,
}


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How gradients are grouped, compressed, sent and added up.

    Attributes:
        config: options of the run.
        world: the ranks that train together; more than one.
        is_cuda: gradients are on GPUs, where NCCL adds them up.
    """

    config: DeviceConfig
    world: World
    is_cuda: bool = False

    @property
    def bucket_cap_mb(self) -> float | None:
        """Return the size of DDP's buckets in MiB; None: its default."""
        if self.config.gradient_compression is GradientCompression.POWER_SGD:
            return _ONE_BUCKET_MB  # with several, it fails on gloo
        return _ONE_WEIGHT_MB if self.config.buckets is Buckets.LAYER else None

    def register(self, ddp: DistributedDataParallel) -> None:
        """Register what adds up the buckets; all ranks call this together."""
        compression = self.config.gradient_compression
        if compression is GradientCompression.POWER_SGD:
            _register_power_sgd(ddp)
            return
        dtype = sent_dtype(self.config)
        if self.is_cuda:
            if dtype is not None:
                _register_half(ddp, dtype)
            return
        if self.config.all_reduce is AllReduce.NATIVE and dtype is None:
            return
        executor = Executor(GlooTransport.open(_FOREVER))
        group = dist.new_group(backend="gloo", timeout=_FOREVER)
        sums = GradientSum(executor, self._choose(executor, group), group=group, dtype=dtype)
        # without types, as DDP compares them with its own
        ddp.register_comm_hook(None, lambda state, bucket: sums.begin(bucket.buffer()))  # noqa: ARG005

    def _choose(self, executor: Executor, group: Any) -> Choose:
        """Return what chooses the schedule for a bucket.

        Raises:
            UsageError: if a saved fit is not of as many ranks.
        """
        name = self.config.all_reduce
        if name is AllReduce.NATIVE:
            return lambda _: None
        if name is AllReduce.AUTO:
            race = Race(Choice(self._fit(executor)), executor, group)
            return lambda num_bytes: race(num_bytes).schedule
        algorithm = next(one for one in ALGORITHMS if one.name == name)
        return _Fixed(algorithm, self.world.size, num_local(self.world))

    def _fit(self, executor: Executor) -> Fit:
        """Return what messages cost: from a file, or measured now."""
        file = self.config.all_reduce_fit
        if file is None:
            with doing("measuring the connections between the devices"):
                return measure_fit(executor, self.world)
        fit = read_record(Collectives, file).fit
        if (fit.num_ranks, fit.num_local) != (self.world.size, num_local(self.world)):
            raise UsageError(
                f"{file} has the figures of {fit.num_ranks} devices, {fit.num_local} on each host",
                where="device.all_reduce_fit",
                why=f"This run has {self.world.size}, {num_local(self.world)} on each host.",
                fix=f"Type stepladder bench-collectives --devices {self.world.size}, or leave the "
                "option out.",
            )
        executor.use_pieces_for(fit.link)
        return fit


@dataclass(frozen=True)
class _Fixed:
    """One algorithm at every size; a tree sends segments of about 1 MiB."""

    algorithm: Algorithm
    num_ranks: int
    num_local: int

    def __call__(self, num_bytes: int) -> Schedule:
        num = 1
        if self.algorithm.has_segments:
            num = max(1, min(_MAX_SEGMENTS, num_bytes // _SEGMENT_BYTES))
        return _schedule(self.algorithm, self.num_ranks, self.num_local, num)


@cache
def _schedule(algorithm: Algorithm, num_ranks: int, num_local: int, num_segments: int) -> Schedule:
    shape = Shape(num_ranks=num_ranks, num_local=num_local, num_segments=num_segments)
    return algorithm.schedule(shape)


def sent_dtype(config: DeviceConfig) -> torch.dtype | None:
    """Return the type to which gradients are rounded before they are sent; None: their own."""
    return _DTYPES.get(config.gradient_compression)


def exchange_of(config: DeviceConfig, world: World, *, is_cuda: bool) -> Exchange | None:
    """Return how the ranks of a run exchange gradients; None: as PyTorch does by default.

    Raises:
        UsageError: if the options do not fit the devices or the hosts.
    """
    compression, name = config.gradient_compression, config.all_reduce
    is_default = name is AllReduce.NATIVE and config.buckets is Buckets.SIZE
    if world.is_alone or (is_default and compression is GradientCompression.NONE):
        return None
    if is_cuda and name not in (AllReduce.NATIVE, AllReduce.AUTO):
        raise UsageError(
            f"--all-reduce {name} is for CPUs: it sends over gloo",
            where="device.all_reduce",
            why="On GPUs, NCCL adds up gradients, and chooses among a ring and trees by size.",
            fix="Leave it out; to force NCCL's choice, export NCCL_ALGO=Ring or NCCL_ALGO=Tree.",
        )
    if name is AllReduce.HIERARCHICAL and world.num_hosts != max(1, world.even_hosts):
        raise UsageError(
            "a hierarchy needs as many ranks on each host, one host after the other",
            where="device.all_reduce",
            why=f"There are {world.size} ranks on {world.num_hosts} hosts.",
            fix="Use --all-reduce ring or auto.",
        )
    return Exchange(config=config, world=world, is_cuda=is_cuda)


def _register_half(ddp: DistributedDataParallel, dtype: torch.dtype) -> None:
    """Let torch send 16 bits of each gradient; on a CPU, its hook for bf16 fails."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    hooks = default_hooks
    is_bf16 = dtype is torch.bfloat16
    hook: Any = hooks.bf16_compress_hook if is_bf16 else hooks.fp16_compress_hook
    ddp.register_comm_hook(None, hook)


def _register_power_sgd(ddp: DistributedDataParallel) -> None:
    """Let torch send matrices of rank 1 instead of the gradients of matrices.

    Raises:
        UsageError: if no weight is large enough to become smaller.

    Source: Vogels, Karimireddy and Jaggi 2019, "PowerSGD", arXiv:1905.13727.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    if not any(_is_compressible(weight) for weight in ddp.parameters() if weight.requires_grad):
        raise UsageError(
            "no trained weight of this model is a matrix that PowerSGD makes smaller",
            where="device.gradient_compression",
            fix="Use --device.gradient-compression bf16.",
        )
    state = powerSGD_hook.PowerSGDState(
        # DDP's own sends, such as the map of unused weights, would meet its sums in one group
        process_group=dist.new_group(timeout=_FOREVER),
        matrix_approximation_rank=1,
        start_powerSGD_iter=_LOW_RANK_FROM,
        min_compression_rate=_MIN_RATE,
    )
    hook: Any = powerSGD_hook.powerSGD_hook
    ddp.register_comm_hook(state, hook)


def _is_compressible(weight: nn.Parameter) -> bool:
    rows = weight.shape[0] if weight.dim() > 1 else 0
    columns = weight.numel() // rows if rows else 0
    return (rows + columns) * _MIN_RATE < rows * columns
