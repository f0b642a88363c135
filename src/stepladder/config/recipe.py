"""The Recipe: one training run as an immutable value.

Everything that a rung of the ladder may change lives here, and nothing else does. Where a run is
written and how it is logged is in `stepladder.config.options`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from stepladder.config.checks import Range, ranged, require, require_ranges
from stepladder.config.choices import (
    ClassWeights,
    DeviceChoice,
    LrRule,
    MemoryFormat,
    Monitor,
    OptimizerName,
    OrderMode,
    Precision,
    Sampling,
    ScheduleKind,
    TrainMode,
    VerifyPages,
    WeightsSource,
    Where,
)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which pictures are read, and how."""

    store: Path = Path("store")
    """Folder that `stepladder prepare` wrote."""
    fraction: float = 1.0
    """Share of the training pictures to use, in (0, 1]."""
    seed: int = 42
    """Seed that draws the sample when fraction is below 1."""
    where: Where = Where.AUTO
    """Hold decoded pictures in memory, or read them each epoch; auto: memory if a quarter does."""
    sample: Sampling = Sampling.AUTO
    """What a fraction below 1 is a sample of: rows, or whole files of the store."""
    order: OrderMode = OrderMode.AUTO
    """Order of the training examples."""
    window_rows: int = 0
    """For windowed order: examples shuffled together; 0: of a store, those of four files."""
    verify_pages: VerifyPages = VerifyPages.FIRST_TOUCH
    """When a stored picture's checksum is checked."""
    decode_once: bool = False
    """Decode a JPEG store once into a store of pixels beside it, and read that."""
    cache_dir: Path | None = None
    """Folder that keeps files of a store in an object store; none: `stepladder-cache` here."""
    max_cache_bytes: int = 100_000_000_000
    """Bytes that it may take; what was used least recently goes first."""
    table_version: int | None = None
    """Version of a Delta table that is read; none: the latest, written here when the run begins."""

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "data.fraction", self.fraction, "in (0, 1]")
        version = self.table_version
        require(version is None or version >= 0, "data.table_version", version, "0 or more")
        cap = self.max_cache_bytes
        require(cap >= 0, "data.max_cache_bytes", cap, "0 or more")
        require(self.window_rows >= 0, "data.window_rows", self.window_rows, "0 or more")


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Threads that read and decode."""

    threads: int = 0
    """Reading threads; 0 takes one a core."""
    prefetch_batches: int = 2
    """Batches read ahead of the step."""
    scaled_decode: bool = True
    """Decode a JPEG much larger than needed at a part of its size; pixels differ slightly."""

    def __post_init__(self) -> None:
        require(self.threads >= 0, "loader.threads", self.threads, "0 or more")
        require(
            self.prefetch_batches >= 1,
            "loader.prefetch_batches",
            self.prefetch_batches,
            "1 or more",
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The trunk."""

    name: str = "tf_efficientnet_lite0"
    """Name of a timm model."""
    weights: WeightsSource | Path = WeightsSource.PACKAGED
    """Weights of the trunk: packaged, hub, none, or the path of a safetensors file."""
    fold_batchnorm: bool = False
    """Fold the BatchNorm layers of a frozen trunk into its convolutions."""


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig:
    """The output of a frozen trunk, computed once."""

    cached: bool = False
    """Put each example through the frozen trunk once, and train the head on the features."""
    cached_views: int = 0
    """With augmentation: random views of each training example to keep; 0: none, and no cache."""

    def __post_init__(self) -> None:
        views = self.cached_views
        require(views >= 0, "features.cached_views", views, "0 or more")


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The classifier on top of the trunk."""

    hidden: int = 0
    """Width of one more layer before the classifier; 0 for none."""
    dropout: float = 0.0
    """Dropout before the classifier, in [0, 1)."""

    def __post_init__(self) -> None:
        require(self.hidden >= 0, "head.hidden", self.hidden, "0 or more")
        require(0 <= self.dropout < 1, "head.dropout", self.dropout, "in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Batch and learning rate, which move together."""

    global_batch_size: int = 16
    """Examples per optimiser step, summed over ranks and accumulation."""
    micro_batch_size: int | None = None
    """Examples per forward pass on one device; none: the device's whole share."""
    lr: float = 1e-3
    """Learning rate at base_batch_size (at any batch size if lr_rule is none)."""
    lr_all: float = 1e-4
    """Learning rate of the second stage of head_then_all, at base_batch_size."""
    lr_rule: LrRule = LrRule.NONE
    """How the learning rate follows global_batch_size / base_batch_size."""
    base_batch_size: int = 16
    """Batch size at which lr was chosen."""

    def __post_init__(self) -> None:
        require(
            self.global_batch_size >= 1,
            "batch.global_batch_size",
            self.global_batch_size,
            "1 or more",
        )
        require(
            self.base_batch_size >= 1, "batch.base_batch_size", self.base_batch_size, "1 or more"
        )
        micro = self.micro_batch_size
        require(micro is None or micro >= 1, "batch.micro_batch_size", micro, "1 or more")
        require(0 < self.lr < float("inf"), "batch.lr", self.lr, "above 0")
        require(0 < self.lr_all < float("inf"), "batch.lr_all", self.lr_all, "above 0")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The update rule."""

    name: OptimizerName = OptimizerName.NADAM
    """Update rule."""
    momentum: float = ranged(0.9, Range(0, 1))
    """Momentum of SGD, in [0, 1)."""
    beta1: float = ranged(0.9, Range(0, 1))
    """First-moment decay of the Adam family, in [0, 1)."""
    beta2: float = ranged(0.999, Range(0, 1))
    """Second-moment decay of the Adam family, in [0, 1)."""
    eps: float = ranged(1e-8, Range(0, takes_low=False))
    """Term that keeps the Adam family's division finite, above 0."""
    weight_decay: float = ranged(0.0, Range(0))
    """Weight decay of matrices and kernels (biases and norms have none), 0 or more."""
    clip_norm: float | None = ranged(None, Range(0, takes_low=False))
    """Largest norm of the gradient; none: no clipping."""
    fused: bool = False
    """Update all weights in one kernel (nadam: on the CPU alone)."""

    def __post_init__(self) -> None:
        require_ranges(self, "optimizer")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How long, and how the learning rate moves."""

    max_epochs: int = 60
    """Epochs at most (early stopping usually ends sooner). For head_then_all: of each stage."""
    max_steps: int | None = None
    """Optimiser steps at most; none: no such limit."""
    max_time_s: float | None = None
    """Seconds of training at most, the one decision that goes by the wall clock; none: no limit."""
    kind: ScheduleKind = ScheduleKind.CONSTANT
    """Shape of the learning rate after warm-up."""
    horizon_epochs: int | None = None
    """Epochs over which cosine falls; none: to max_epochs, or max_steps if that comes sooner."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from zero."""
    min_lr_frac: float = 0.0
    """Where cosine ends, as a share of the learning rate, in [0, 1]."""

    def __post_init__(self) -> None:
        require(self.max_epochs >= 1, "schedule.max_epochs", self.max_epochs, "1 or more")
        require(self.warmup_steps >= 0, "schedule.warmup_steps", self.warmup_steps, "0 or more")
        require(0 <= self.min_lr_frac <= 1, "schedule.min_lr_frac", self.min_lr_frac, "in [0, 1]")
        for name in ("max_steps", "horizon_epochs"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"schedule.{name}", value, "1 or more")
        limit = self.max_time_s
        require(limit is None or limit > 0, "schedule.max_time_s", limit, "above 0")


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Cross-entropy and its variants."""

    label_smoothing: float = 0.0
    """Share of the target spread over all classes, in [0, 1)."""
    class_weights: ClassWeights = ClassWeights.NONE
    """Weight of each class."""

    def __post_init__(self) -> None:
        require(
            0 <= self.label_smoothing < 1, "loss.label_smoothing", self.label_smoothing, "in [0, 1)"
        )


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Random changes to training pictures; off by default, as only the head learns by default."""

    crop: float = 1.0
    """Smallest share of the area that a random resized crop keeps, in (0, 1]; 1: no crop."""
    flip: bool = False
    """Mirror half of the pictures left to right."""
    randaugment_ops: int = 0
    """RandAugment operations per picture; 0: none."""
    randaugment_magnitude: float = 9.0
    """Strength of RandAugment, in [0, 10]."""
    mixup_alpha: float = 0.0
    """Parameter of MixUp's beta distribution; 0: no MixUp."""

    def __post_init__(self) -> None:
        require(0 < self.crop <= 1, "augment.crop", self.crop, "in (0, 1]")
        require(
            self.randaugment_ops >= 0, "augment.randaugment_ops", self.randaugment_ops, "0 or more"
        )
        strength = self.randaugment_magnitude
        require(0 <= strength <= 10, "augment.randaugment_magnitude", strength, "in [0, 10]")
        require(self.mixup_alpha >= 0, "augment.mixup_alpha", self.mixup_alpha, "0 or more")


@dataclass(frozen=True, kw_only=True)
class StoppingConfig:
    """When training has given what it can."""

    early: bool = True
    """Stop when validations no longer improve."""
    monitor: Monitor = Monitor.VAL_LOSS
    """What counts as better."""
    patience: int = 3
    """Validations without a clear improvement before stopping."""
    min_improvement_frac: float = 0.005
    """Improvement over the best, as a share of it, that counts; 0 or more."""
    allow_noise: bool = True
    """Count what a standard error of noise may hide; false: only above the share."""
    restore_best: bool = True
    """End with the best weights instead of the last."""
    validate_every_epochs: int = 1
    """Epochs between validations."""
    validate_every_steps: int | None = None
    """Steps between validations; none: go by epochs."""

    def __post_init__(self) -> None:
        require(self.patience >= 1, "stopping.patience", self.patience, "1 or more")
        share = self.min_improvement_frac
        require(0 <= share < 1, "stopping.min_improvement_frac", share, "in [0, 1)")
        every = self.validate_every_epochs
        require(every >= 1, "stopping.validate_every_epochs", every, "1 or more")
        steps = self.validate_every_steps
        require(steps is None or steps >= 1, "stopping.validate_every_steps", steps, "1 or more")


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where and in what number format the step runs."""

    kind: DeviceChoice = DeviceChoice.AUTO
    """Device to train on."""
    precision: Precision = Precision.FP32
    """Number format of the step."""
    memory_format: MemoryFormat = MemoryFormat.CONTIGUOUS
    """Layout of image tensors."""
    compile: bool = False
    """Compile the model with torch.compile; takes a C++ compiler on the CPU."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    threads: int = 0
    """Compute threads on the CPU; 0 takes one a core."""

    def __post_init__(self) -> None:
        require(self.threads >= 0, "device.threads", self.threads, "0 or more")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run, as an immutable value."""

    seed: int = 0
    """Seed of initial weights, order, augmentation and dropout."""
    deterministic: bool = False
    """Use deterministic kernels, and name the operations that have none."""
    train: TrainMode = TrainMode.HEAD
    """Which weights learn."""
    data: DataConfig = field(default_factory=DataConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    stopping: StoppingConfig = field(default_factory=StoppingConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)

    def __post_init__(self) -> None:
        require(self.seed >= 0, "seed", self.seed, "0 or more")


def uncompiled(recipe: Recipe) -> Recipe:
    """Give a recipe whose model computes as its modules say: nothing compiled."""
    return replace(recipe, device=replace(recipe.device, compile=False))
