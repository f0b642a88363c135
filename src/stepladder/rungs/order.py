"""RUNGS and REMEDIES: every rung, in climbing order. These lists are the product."""

from __future__ import annotations

from stepladder.rungs.add_normalisation import AddNormalisation
from stepladder.rungs.all_data import AllData
from stepladder.rungs.augmentation import Augmentation
from stepladder.rungs.cached_features import CachedFeatures
from stepladder.rungs.channels_last import ChannelsLast
from stepladder.rungs.compile import Compile
from stepladder.rungs.compute_threads import ComputeThreads
from stepladder.rungs.contract import Rung
from stepladder.rungs.dropout import Dropout
from stepladder.rungs.earlier_stop import EarlierStop
from stepladder.rungs.early_stopping import EarlyStopping
from stepladder.rungs.fewer_validations import FewerValidations
from stepladder.rungs.folded_trunk import FoldedTrunk
from stepladder.rungs.fused_optimizer import FusedOptimizer
from stepladder.rungs.gpu import UseGpu
from stepladder.rungs.gpus import Gpu
from stepladder.rungs.gradient_checkpointing import GradientCheckpointing
from stepladder.rungs.hidden_layer import HiddenLayer
from stepladder.rungs.label_smoothing import LabelSmoothing
from stepladder.rungs.larger_batch import LargerBatch
from stepladder.rungs.larger_gpu import LargerGpu
from stepladder.rungs.larger_model import LargerModel
from stepladder.rungs.learning_rate_higher import LearningRateHigher
from stepladder.rungs.learning_rate_lower import LearningRateLower
from stepladder.rungs.loader_threads import LoaderThreads
from stepladder.rungs.mixed_precision import MixedPrecision
from stepladder.rungs.pixel_store import PixelStore
from stepladder.rungs.pretrained import Pretrained
from stepladder.rungs.scaled_decode import ScaledDecode
from stepladder.rungs.streaming import Streaming
from stepladder.rungs.train_longer import TrainLonger
from stepladder.rungs.weight_decay import WeightDecay
from stepladder.rungs.whole_model import WholeModel
from stepladder.rungs.windowed_order import WindowedOrder

_PRETRAINED, _ALL_DATA = Pretrained(), AllData()

RUNGS: tuple[Rung, ...] = (
    _PRETRAINED,
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
    WindowedOrder(),
    FewerValidations(),
    _ALL_DATA,
    LargerGpu(),
)
"""What makes a training faster, and what spare time buys."""

REMEDIES: tuple[Rung, ...] = (
    _PRETRAINED,
    LearningRateHigher(),
    LearningRateLower(),
    HiddenLayer(),
    LargerModel(needs_idle=False),
    WholeModel(),
    AddNormalisation(),
    TrainLonger(),
    _ALL_DATA,
    Augmentation(),
    Dropout(),
    WeightDecay(),
    LabelSmoothing(),
    EarlierStop(),
)
"""What makes a model better: first against a high training error, then against a high held-out one.
"""


def rungs_with(gpus: tuple[Gpu, ...]) -> tuple[Rung, ...]:
    """Give RUNGS with larger_gpu choosing among the user's own list."""
    return tuple(LargerGpu(gpus) if isinstance(rung, LargerGpu) else rung for rung in RUNGS)
