"""RUNGS: every rung, in climbing order. This list is the product."""

from __future__ import annotations

from stepladder.rungs.all_data import AllData
from stepladder.rungs.cached_features import CachedFeatures
from stepladder.rungs.channels_last import ChannelsLast
from stepladder.rungs.compile import Compile
from stepladder.rungs.compute_threads import ComputeThreads
from stepladder.rungs.contract import Rung
from stepladder.rungs.early_stopping import EarlyStopping
from stepladder.rungs.fewer_validations import FewerValidations
from stepladder.rungs.folded_trunk import FoldedTrunk
from stepladder.rungs.fused_optimizer import FusedOptimizer
from stepladder.rungs.gpu import UseGpu
from stepladder.rungs.gpus import Gpu
from stepladder.rungs.gradient_checkpointing import GradientCheckpointing
from stepladder.rungs.larger_batch import LargerBatch
from stepladder.rungs.larger_gpu import LargerGpu
from stepladder.rungs.larger_model import LargerModel
from stepladder.rungs.loader_threads import LoaderThreads
from stepladder.rungs.mixed_precision import MixedPrecision
from stepladder.rungs.pixel_store import PixelStore
from stepladder.rungs.pretrained import Pretrained
from stepladder.rungs.scaled_decode import ScaledDecode
from stepladder.rungs.streaming import Streaming

RUNGS: tuple[Rung, ...] = (
    Pretrained(),
    UseGpu(),
    EarlyStopping(),
    CachedFeatures(),
    FoldedTrunk(),
    ChannelsLast(),
    MixedPrecision(),
    FusedOptimizer(),
    ComputeThreads(),
    Compile(),
    GradientCheckpointing(),
    LargerBatch(),
    LargerModel(),
    LoaderThreads(),
    ScaledDecode(),
    PixelStore(),
    Streaming(),
    FewerValidations(),
    AllData(),
    LargerGpu(),
)


def rungs_with(gpus: tuple[Gpu, ...]) -> tuple[Rung, ...]:
    """Give RUNGS with larger_gpu choosing among the user's own list."""
    return tuple(LargerGpu(gpus) if isinstance(rung, LargerGpu) else rung for rung in RUNGS)
