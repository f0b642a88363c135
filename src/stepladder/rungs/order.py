"""RUNGS and REMEDIES: all rungs, in the order in which a climb tries them."""

from __future__ import annotations

from stepladder.planning.hardware.gpus import GPUS, Gpu
from stepladder.rungs.accuracy.add_normalisation import AddNormalisation
from stepladder.rungs.accuracy.augmentation import Augmentation
from stepladder.rungs.accuracy.dropout import Dropout
from stepladder.rungs.accuracy.earlier_stop import EarlierStop
from stepladder.rungs.accuracy.hidden_layer import HiddenLayer
from stepladder.rungs.accuracy.label_smoothing import LabelSmoothing
from stepladder.rungs.accuracy.learning_rate_higher import LearningRateHigher
from stepladder.rungs.accuracy.learning_rate_lower import LearningRateLower
from stepladder.rungs.accuracy.train_longer import TrainLonger
from stepladder.rungs.accuracy.weight_decay import WeightDecay
from stepladder.rungs.accuracy.whole_model import WholeModel
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.all_reduce import AllReduce
from stepladder.rungs.devices.compressed_gradients import CompressedGradients
from stepladder.rungs.devices.gpu import UseGpu
from stepladder.rungs.devices.larger_gpu import LargerGpu
from stepladder.rungs.devices.layerwise_rates import LayerwiseRates
from stepladder.rungs.devices.local_sgd import LocalSgd
from stepladder.rungs.devices.more_gpus import MoreGpus
from stepladder.rungs.devices.more_machines import MoreMachines, TriedMachines
from stepladder.rungs.devices.population import Population
from stepladder.rungs.devices.sharded_model import ShardedModel
from stepladder.rungs.devices.stronger_optimizer import StrongerOptimizer
from stepladder.rungs.speed.all_data import AllData
from stepladder.rungs.speed.cached_features import CachedFeatures
from stepladder.rungs.speed.channels_last import ChannelsLast
from stepladder.rungs.speed.compile import Compile
from stepladder.rungs.speed.compute_threads import ComputeThreads
from stepladder.rungs.speed.early_stopping import EarlyStopping
from stepladder.rungs.speed.fewer_validations import FewerValidations
from stepladder.rungs.speed.folded_trunk import FoldedTrunk
from stepladder.rungs.speed.fused_optimizer import FusedOptimizer
from stepladder.rungs.speed.gradient_checkpointing import GradientCheckpointing
from stepladder.rungs.speed.larger_batch import LargerBatch
from stepladder.rungs.speed.larger_model import LargerModel
from stepladder.rungs.speed.loader_threads import LoaderThreads
from stepladder.rungs.speed.mixed_precision import MixedPrecision
from stepladder.rungs.speed.pixel_store import PixelStore
from stepladder.rungs.speed.pretrained import Pretrained
from stepladder.rungs.speed.scaled_decode import ScaledDecode
from stepladder.rungs.speed.streaming import Streaming
from stepladder.rungs.speed.windowed_order import WindowedOrder

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
    MoreGpus(),
    MoreMachines(),
    AllReduce(),
    CompressedGradients(),
    LocalSgd(),
    ShardedModel(),
    StrongerOptimizer(),
    LayerwiseRates(),
    Population(),
)
"""Rungs that make training faster, and rungs that use spare time for accuracy."""

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
"""Rungs that improve accuracy: first against training error, then against generalisation gap."""


def rungs_with(
    gpus: tuple[Gpu, ...] = GPUS,
    *,
    network_gbit_s: float | None = None,
    machines: int = 1,
) -> tuple[Rung, ...]:
    """Return RUNGS with the user's GPUs and prices, and the network for more_machines.

    Args:
        machines: on which the climb was started; with several, more_machines can be tried.
    """
    own: tuple[Rung, ...] = (
        LargerGpu(gpus),
        MoreGpus(gpus),
        MoreMachines(network_gbit_s, gpus=gpus)
        if machines == 1
        else TriedMachines(machines, gpus=gpus),
    )
    by_name = {rung.name: rung for rung in own}
    return tuple(by_name.get(rung.name, rung) for rung in RUNGS)
