"""Records of climbs on unmodified scripts: what a script makes where, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stepladder.records.files import Json
from stepladder.records.ladder import Interval

SCRIPT_FILE: Final = "script.json"
PATCH_FILE: Final = "train.patch"


@dataclass(frozen=True, kw_only=True)
class Place:
    """A call in the script's own files.

    Attributes:
        file: path of the file, absolute.
        line, column: where the call begins; lines from 1, columns in bytes from 0.
        end_line, end_column: where it ends.
        is_direct: the script itself makes the call, and not a function of a library that it calls.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    is_direct: bool

    @property
    def key(self) -> str:
        """The place as a key: the same call has the same in each run."""
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, kw_only=True)
class MadeOptimizer:
    """An optimizer that the script has made.

    Attributes:
        kind: its class.
        place: the call; None: not in the script's own files.
        model: how the script's code names its model there, such as `model` or `self`; None: no
            variable holds a module with its weights.
        is_fused: it runs one kernel for all weights; None: it has no such kernel.
        why_not_fused: what speaks against that kernel; None: nothing.
        num_conv2d: convolutions over images in the model.
        is_channels_last: their weights are in that layout already.
        num_params: weights.
        is_compiled: the model is.
        checkpoints_by: its method that makes it recompute activations; None: it has none.
        has_anomaly_mode: torch's anomaly mode was on when it was made.
    """

    kind: str
    place: Place | None = None
    model: str | None = None
    is_fused: bool | None = None
    why_not_fused: str | None = None
    num_conv2d: int = 0
    is_channels_last: bool = False
    num_params: int = 0
    is_compiled: bool = False
    checkpoints_by: str | None = None
    has_anomaly_mode: bool = False


@dataclass(frozen=True, kw_only=True)
class FirstPart:
    """The first statements of a dataset's `__getitem__`, which read the same each time.

    Attributes:
        place: the method.
        num_statements: of it; 2.5 are two, and what the call in the third gets.
        num_bytes: of what they read for an example, a mean.
        share: of the seconds of reading an example, in [0, 1].
        num_examples: of all datasets of the script's loaders that are read by it.
    """

    place: Place
    num_statements: float
    num_bytes: float
    share: float
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class MadeLoader:
    """A DataLoader that the script has made.

    Attributes:
        place: the call; None: not in the script's own files.
        num_steps: batches from it that training used.
        num_workers: worker processes.
        keeps_workers: they serve several passes.
        is_pinned: batches are copied to pinned memory.
        is_stream: its dataset is iterable, without an index.
        num_examples: None: unknown.
        example_bytes: of tensors and arrays in an example, a mean; None: unknown.
        example_s: seconds to read one, a mean; None: unknown.
        why_not_kept: why examples cannot be kept in memory, such as that two reads differ; None:
            they can.
        has_rows: its batches are made by torch's default function, of indices from a sampler of
            torch, and consist of tensors.
        worker_options: the arguments that it was made with and that need worker processes.
        can_be_read_apart: forked processes may read its examples at once.
        first_part: of reading an example, if only what follows draws random numbers.
        why_no_part: why it has no such part; None: whole examples can be kept.
    """

    place: Place | None = None
    num_steps: int = 0
    num_workers: int = 0
    keeps_workers: bool = False
    is_pinned: bool = False
    is_stream: bool = False
    num_examples: int | None = None
    example_bytes: float | None = None
    example_s: float | None = None
    why_not_kept: str | None = None
    has_rows: bool = False
    worker_options: tuple[str, ...] = ()
    can_be_read_apart: bool = False
    first_part: FirstPart | None = None
    why_no_part: str | None = None


@dataclass(frozen=True, kw_only=True)
class LogCall:
    """A line of the script that prints or logs in each step.

    Attributes:
        place: the call.
        function: what it calls, such as `print` or `SummaryWriter.add_histogram`.
        share: of the time of steps, in [0, 1].
        num_per_step: calls in a step, a mean.
    """

    place: Place
    function: str
    share: float
    num_per_step: float


@dataclass(frozen=True, kw_only=True)
class MetricBlock:
    """Lines of the script that compute what only the `if` after them uses.

    Attributes:
        place: the `if`.
        num_statements: before it.
        first_line: of these.
        share: of the time, in [0, 1].
        used_share: of the times that they run, those in which the `if` uses them, in [0, 1].
        why_not: what else they do, for which they have to run; None: nothing.
    """

    place: Place
    num_statements: int
    first_line: int
    share: float
    used_share: float
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class LargeTable:
    """A large embedding whose gradient is dense, although a step uses few of its rows.

    Attributes:
        model: how the script's code names its model; empty: it has no name.
        module: the embedding's name in the model; empty: it is the model.
        num_rows, num_used: all rows, and those that a step uses at most.
        share: of the time, for rows that a step does not use; a bound.
        why_not: why its gradient cannot be sparse; None: it can.
    """

    model: str
    module: str
    num_rows: int
    num_used: int
    share: float
    why_not: str | None = None

    @property
    def path(self) -> str:
        """Its name in the script, such as `net.table`."""
        return f"{self.model}.{self.module}" if self.module else self.model


@dataclass(frozen=True, kw_only=True)
class ScriptFacts:
    """What one run of the script has shown.

    Attributes:
        has_gpu: the script trains on a GPU.
        num_cores: cores that it may use.
        threads: threads of one operation.
        num_steps: steps that were watched.
        is_whole: the script ended by itself: it takes no more steps.
        step_s: seconds per step, everything included.
        shares: of the time, by phase.
        batch_size: None: unknown.
        optimizers: in the order in which they were made.
        loaders: likewise.
        uses_autocast: an operation ran under autocast.
        output_is_tensor: the model returns one tensor of floating-point numbers.
        keeps_freed_memory: malloc is configured already.
        memory_bytes: free memory of the machine.
        has_compiler: a C++ compiler, which torch.compile needs on a CPU.
        dtype: of the weights.
        kernel_share: of the CPU time in steps, the part that the kernel takes.
        has_bfloat16: the processor, or GPU, has instructions for bfloat16.
        is_guarded: the kernel refuses writes outside of the private folder, if there is one.
        has_fast_matmul, has_cudnn_benchmark: the script has switched these on.
        repeated_share: of the time, forwards on the batch of the forward before.
        why_not_once: why these differ from the first one; None: they do not.
        logs: calls that log in each step.
        metrics: lines that compute what only an `if` after them uses.
        save_share: of the time, `torch.save`.
        save_bytes: of the largest file that it wrote.
        save_places: calls of it; None: one in no file of the script.
        has_anomaly_mode: torch's anomaly mode was on in most steps.
        anomaly_calls: what switched it on after an optimizer was made; None: not in the script's
            own files.
        tables: large embeddings with few used rows.
        recomputed_share: of the time, forwards that backward repeats (activation checkpointing).
        recomputed_bytes: memory that the activations of a step take if they are kept.
        recompute_places: calls of `torch.utils.checkpoint.checkpoint`; None: one in no file of the
            script.
        start_bytes, peak_bytes: memory of the device in use before the first forward, and the most
            that was used.
        capacity_bytes: all of its memory that the script may use.
    """

    has_gpu: bool = False
    num_cores: int = 1
    threads: int = 1
    num_steps: int = 0
    is_whole: bool = False
    step_s: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)
    batch_size: int | None = None
    optimizers: tuple[MadeOptimizer, ...] = ()
    loaders: tuple[MadeLoader, ...] = ()
    uses_autocast: bool = False
    output_is_tensor: bool = False
    keeps_freed_memory: bool = False
    memory_bytes: int = 0
    has_compiler: bool = False
    dtype: str = "float32"
    kernel_share: float = 0.0
    has_bfloat16: bool = False
    is_guarded: bool = True
    has_fast_matmul: bool = False
    has_cudnn_benchmark: bool = False
    repeated_share: float = 0.0
    why_not_once: str | None = None
    logs: tuple[LogCall, ...] = ()
    metrics: tuple[MetricBlock, ...] = ()
    save_share: float = 0.0
    save_bytes: int = 0
    save_places: tuple[Place | None, ...] = ()
    has_anomaly_mode: bool = False
    anomaly_calls: tuple[Place | None, ...] = ()
    tables: tuple[LargeTable, ...] = ()
    recomputed_share: float = 0.0
    recomputed_bytes: int = 0
    recompute_places: tuple[Place | None, ...] = ()
    start_bytes: int = 0
    peak_bytes: int = 0
    capacity_bytes: int = 0

    @property
    def computing_share(self) -> float:
        """The share of the time that forward and backward take, in [0, 1]."""
        return min(1.0, self.shares.get("forward", 0.0) + self.shares.get("backward", 0.0))

    @property
    def training_loader(self) -> MadeLoader | None:
        """The loader that most steps got their batches from."""
        return max(
            (one for one in self.loaders if one.num_steps),
            key=lambda one: one.num_steps,
            default=None,
        )

    @property
    def steps_per_epoch(self) -> int:
        """The batches of a pass over the data that training reads; 0: unknown."""
        loader = self.training_loader
        num = loader.num_examples if loader is not None else None
        return -(-num // self.batch_size) if num and self.batch_size else 0

    def bytes_with(self, factor: float) -> float:
        """Return the memory that a batch so many times as large takes at most."""
        return self.peak_bytes + (factor - 1) * max(0, self.peak_bytes - self.start_bytes)

    @property
    def models(self) -> tuple[MadeOptimizer, ...]:
        """The optimizers whose model has a name in the script."""
        return tuple(one for one in self.optimizers if one.model is not None)


@dataclass(frozen=True, kw_only=True)
class ScriptClimb:
    """script.json: the result of a climb on a script.

    Attributes:
        script, args: as given.
        step_s: seconds per step of the original, from the last pairs; None: not measured.
        result_s: the same with all that was kept.
        speedup: from these pairs; None: nothing was kept, or not measured.
        num_pairs: of blocks.
        steps_per_block: steps of a block.
        kept: rungs, in order.
        settings: what `stepladder run --with` applies.
        patch: the diff; empty: nothing can be changed in the script's own files.
        patched: speed-up of the patched script; None: not measured.
        only_outside: kept rungs that the diff does not have, with why.
        is_repeatable: two runs with one seed have the same losses.
        num_alarms: findings of the watcher.
        climb_s: seconds of the climb.
        notes: what the user has to know, one sentence each.
    """

    script: str
    args: tuple[str, ...] = ()
    step_s: float | None = None
    result_s: float | None = None
    speedup: Interval | None = None
    num_pairs: int = 0
    steps_per_block: int = 0
    kept: tuple[str, ...] = ()
    settings: Mapping[str, Json] = field(default_factory=dict)
    patch: str = ""
    patched: Interval | None = None
    only_outside: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True
    num_alarms: int = 0
    climb_s: float = 0.0
    notes: tuple[str, ...] = ()
