"""RUNGS: every rung, in climbing order. This list is the product."""

from __future__ import annotations

from stepladder.rungs.cached_features import CachedFeatures
from stepladder.rungs.channels_last import ChannelsLast
from stepladder.rungs.contract import Rung
from stepladder.rungs.early_stopping import EarlyStopping
from stepladder.rungs.folded_trunk import FoldedTrunk
from stepladder.rungs.larger_batch import LargerBatch
from stepladder.rungs.mixed_precision import MixedPrecision

RUNGS: tuple[Rung, ...] = (
    EarlyStopping(),
    CachedFeatures(),
    FoldedTrunk(),
    ChannelsLast(),
    MixedPrecision(),
    LargerBatch(),
)
