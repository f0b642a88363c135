"""The settings that are applied to a script from outside, as one immutable value."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

CHECKPOINT_OPTIONS: Final = (
    "use_reentrant",
    "context_fn",
    "determinism_check",
    "debug",
    "early_stop",
    "preserve_rng_state",
)
"""The arguments of `torch.utils.checkpoint.checkpoint` that are its own."""
MAX_MEMORY_FRAC: Final = 0.5
"""Of the free memory, what examples may take that are kept."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is changed in a script that runs; by default nothing.

    Attributes:
        keep_freed_memory: configure malloc to keep large freed blocks.
        threads: of one operation on a CPU; None: as the script has them.
        fast_matmul: TF32, or bfloat16 passes, in products of fp32 matrices on a GPU.
        cudnn_benchmark: let cuDNN choose its convolutions by trying them.
        channels_last: lay out weights of convolutions as NHWC.
        autocast: run the model in bfloat16 where that is safe, by autocast.
        compiled: compile the model.
        fused_optimizer: one kernel for all weights.
        workers: processes of the loader that training reads from; None: as the script has them.
        pinned: its batches are copied to pinned memory.
        examples_in_memory: examples are read once and then kept.
        memory_loaders: keys of the places of the loaders that do so.
        row_loaders: of these, those whose batches are rows of whole columns.
        memory_readers: processes that read all examples of these before the first batch; 0: each
            example is read when it is needed.
        batch_factor: times as many examples in each of its batches.
        lr_factor: times the learning rate of each optimizer.
        once_per_input: a second forward of the model on the same unchanged batch returns the output
            of the first one.
        log_every: of the calls in `log_places`, only those in each so many steps are made.
        log_places: keys of the places of calls that log.
        moved_metrics: keys of the places of an `if` into which the lines before it are moved, which
            compute what only it uses.
        background_saves: `torch.save` writes in a thread.
        single_precision: float64 models compute in float32.
        sparse_tables: embeddings with a sparse gradient, by their names in the script, such as
            `net.table`.
        no_anomaly_mode: torch's anomaly mode stays off once an optimizer is made.
        checkpointing: recompute activations in backward instead of keeping them.
        kept_activations: keep activations that the script recomputes.
        decoded_method: key of the place of a dataset's `__getitem__` whose first part is read once
            and then kept.
        decoded_statements: of that part.
        decoded_first: it reads all examples before worker processes start.
        loader: key of the place where that loader is made.
    """

    keep_freed_memory: bool = False
    threads: int | None = None
    fast_matmul: bool = False
    cudnn_benchmark: bool = False
    channels_last: bool = False
    autocast: bool = False
    compiled: bool = False
    fused_optimizer: bool = False
    workers: int | None = None
    pinned: bool = False
    examples_in_memory: bool = False
    memory_loaders: tuple[str, ...] = ()
    row_loaders: tuple[str, ...] = ()
    memory_readers: int = 0
    batch_factor: int = 1
    lr_factor: float = 1.0
    once_per_input: bool = False
    log_every: int = 1
    log_places: tuple[str, ...] = ()
    moved_metrics: tuple[str, ...] = ()
    background_saves: bool = False
    single_precision: bool = False
    sparse_tables: tuple[str, ...] = ()
    no_anomaly_mode: bool = False
    checkpointing: bool = False
    kept_activations: bool = False
    decoded_method: str | None = None
    decoded_statements: float = 0
    decoded_first: bool = False
    loader: str | None = None

    @property
    def loader_places(self) -> tuple[str, ...]:
        """The keys of all places where loaders are changed."""
        of_loader = (self.loader,) if self.loader is not None else ()
        return tuple(dict.fromkeys((*of_loader, *self.memory_loaders)))

    def seen_from(self, folder: Path) -> Settings:
        """Return the same, with the paths of places below a folder relative to it."""
        start = f"{os.path.realpath(folder)}{os.sep}"
        return self._with_places(lambda key: key.removeprefix(start))

    def put_in(self, folder: Path) -> Settings:
        """Return the same, with absolute paths instead of those relative to a folder."""
        start = os.path.realpath(folder)
        return self._with_places(lambda key: str(Path(start, key)))

    def _with_places(self, change: Callable[[str], str]) -> Settings:
        return replace(
            self,
            loader=None if self.loader is None else change(self.loader),
            decoded_method=None if self.decoded_method is None else change(self.decoded_method),
            memory_loaders=tuple(map(change, self.memory_loaders)),
            row_loaders=tuple(map(change, self.row_loaders)),
            log_places=tuple(map(change, self.log_places)),
            moved_metrics=tuple(map(change, self.moved_metrics)),
        )
