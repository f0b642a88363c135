"""SCRIPT_RUNGS: the speed-ups of unmodified scripts, in climbing order, one per file."""

from __future__ import annotations

from typing import Final

from stepladder.scripts.contract import ScriptRung
from stepladder.scripts.rungs.background_saves import BackgroundSaves
from stepladder.scripts.rungs.channels_last import ChannelsLast
from stepladder.scripts.rungs.compile import Compile
from stepladder.scripts.rungs.compute_threads import ComputeThreads
from stepladder.scripts.rungs.cudnn_benchmark import CudnnBenchmark
from stepladder.scripts.rungs.decoded_in_memory import DecodedInMemory
from stepladder.scripts.rungs.examples_in_memory import ExamplesInMemory
from stepladder.scripts.rungs.fast_matmul import FastMatmul
from stepladder.scripts.rungs.fused_optimizer import FusedOptimizer
from stepladder.scripts.rungs.gradient_checkpointing import GradientCheckpointing
from stepladder.scripts.rungs.keep_freed_memory import KeepFreedMemory
from stepladder.scripts.rungs.kept_activations import KeptActivations
from stepladder.scripts.rungs.larger_batch import LargerBatch
from stepladder.scripts.rungs.loader_workers import LoaderWorkers
from stepladder.scripts.rungs.metrics_when_used import MetricsWhenUsed
from stepladder.scripts.rungs.mixed_precision import MixedPrecision
from stepladder.scripts.rungs.no_anomaly_mode import NoAnomalyMode
from stepladder.scripts.rungs.pinned_batches import PinnedBatches
from stepladder.scripts.rungs.repeated_forwards import RepeatedForwards
from stepladder.scripts.rungs.single_precision import SinglePrecision
from stepladder.scripts.rungs.sparse_gradients import SparseGradients
from stepladder.scripts.rungs.sparse_logging import SparseLogging

__all__ = ["SCRIPT_RUNGS"]

SCRIPT_RUNGS: Final[tuple[ScriptRung, ...]] = (
    ExamplesInMemory(),
    DecodedInMemory(),
    SparseLogging(),
    MetricsWhenUsed(),
    BackgroundSaves(),
    NoAnomalyMode(),
    KeptActivations(),
    RepeatedForwards(),
    KeepFreedMemory(),
    ComputeThreads(),
    LoaderWorkers(),
    PinnedBatches(),
    CudnnBenchmark(),
    FastMatmul(),
    ChannelsLast(),
    SparseGradients(),
    FusedOptimizer(),
    SinglePrecision(),
    MixedPrecision(),
    Compile(),
    LargerBatch(),
    GradientCheckpointing(),
)
