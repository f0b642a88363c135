"""The Recipe: one training run as an immutable value.

It contains exactly the options that a rung of the ladder may change. Where a run is written and
how it is logged is in `stepladder.config.options`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from stepladder.config.checks import Range, ranged, require, require_ranges
from stepladder.config.choices import (
    AgeRule,
    AllReduce,
    AsyncMethod,
    Auto,
    Buckets,
    ClassWeights,
    DeviceChoice,
    GradientCompression,
    LrRule,
    MemoryFormat,
    Monitor,
    OptimizerName,
    OrderMode,
    PipelineSchedule,
    Precision,
    Sampling,
    ScheduleKind,
    TrainMode,
    VerifyPages,
    WeightsSource,
    Where,
    WorkerData,
)
from stepladder.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which pictures to read, and how."""

    store: Path = Path("store")
    """Store folder, written by `stepladder prepare`."""
    fraction: float = 1.0
    """Fraction of the training pictures to use, in (0, 1]."""
    seed: int = 42
    """Random seed of the sample if fraction is below 1."""
    where: Where = Where.AUTO
    """Keep decoded pictures in memory, or stream them from disk in every epoch; auto: in memory if
    they take at most a quarter of the free memory."""
    sample: Sampling = Sampling.AUTO
    """What to sample if fraction is below 1: single rows, or whole files of the store."""
    order: OrderMode = OrderMode.AUTO
    """Order of the training examples."""
    window_rows: int = 0
    """For order windowed: number of examples to shuffle together; 0: those of four store files."""
    hosts: int = 0
    """Hosts among which the files of a store are divided, so that each downloads only its own; 0:
    those of the run if the store is in an object store; 1: off, every host reads all files."""
    verify_pages: VerifyPages = VerifyPages.FIRST_TOUCH
    """When to verify the checksum of a stored picture."""
    decode_once: bool = False
    """Decode a JPEG store once into a pixel store next to it, and read that one."""
    cache_dir: Path | None = None
    """Cache folder for files of a store in an object store; none: `stepladder-cache` in the current
    folder."""
    max_cache_bytes: int = 100_000_000_000
    """Maximum size of the cache in bytes; the least recently used files are removed first."""
    table_version: int | None = None
    """Version of the Delta table to read; none: the latest, recorded here when the run starts."""

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "data.fraction", self.fraction, "in (0, 1]")
        version = self.table_version
        require(version is None or version >= 0, "data.table_version", version, "0 or more")
        cap = self.max_cache_bytes
        require(cap >= 0, "data.max_cache_bytes", cap, "0 or more")
        require(self.window_rows >= 0, "data.window_rows", self.window_rows, "0 or more")
        require(self.hosts >= 0, "data.hosts", self.hosts, "0 or more")


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Threads that read and decode pictures."""

    threads: int | Auto = Auto.AUTO
    """Number of reading threads; 0: one per core; auto: one per core, or a single one if `auto` is
    off."""
    prefetch_batches: int = 2
    """Number of batches to prefetch."""
    scaled_decode: bool = True
    """Decode JPEGs that are much larger than needed at reduced size; pixels differ slightly."""

    def __post_init__(self) -> None:
        if not isinstance(self.threads, Auto):
            require(self.threads >= 0, "loader.threads", self.threads, "0 or more")
        require(
            self.prefetch_batches >= 1,
            "loader.prefetch_batches",
            self.prefetch_batches,
            "1 or more",
        )

    @property
    def num_threads(self) -> int:
        """The number of threads; 0 if it is one per core, or not yet decided."""
        return 0 if isinstance(self.threads, Auto) else self.threads


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The trunk (backbone) of the model."""

    name: str = "tf_efficientnet_lite0"
    """Name of a timm model."""
    weights: WeightsSource | Path = WeightsSource.PACKAGED
    """Weights of the trunk: packaged, hub, none, or the path of a safetensors file."""
    fold_batchnorm: bool = False
    """Fold the BatchNorm layers of a frozen trunk into its convolutions."""


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig:
    """Caching of the output of a frozen trunk."""

    cached: bool | Auto = Auto.AUTO
    """Compute the features of each example once, and train the head on the cached features; auto:
    if the trunk is frozen and nothing random comes before the head."""
    cached_views: int = 0
    """With augmentation: number of random views to cache per training example; 0: cache nothing."""

    def __post_init__(self) -> None:
        views = self.cached_views
        require(views >= 0, "features.cached_views", views, "0 or more")


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The classifier on top of the trunk."""

    hidden: int = 0
    """Width of a hidden layer before the classifier; 0: no hidden layer."""
    dropout: float = 0.0
    """Dropout probability before the classifier, in [0, 1)."""

    def __post_init__(self) -> None:
        require(self.hidden >= 0, "head.hidden", self.hidden, "0 or more")
        require(0 <= self.dropout < 1, "head.dropout", self.dropout, "in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """Batch size and learning rate, which are scaled together."""

    global_batch_size: int = 16
    """Examples per optimizer step, over all ranks and accumulation steps."""
    micro_batch_size: int | None = None
    """Examples per forward pass on one device; none: all examples of the device at once."""
    lr: float = 1e-3
    """Learning rate at base_batch_size (with lr_rule none: at every batch size)."""
    lr_all: float = 1e-4
    """Learning rate of the second stage of head_then_all, at base_batch_size."""
    lr_rule: LrRule = LrRule.NONE
    """How to scale the learning rate with global_batch_size / base_batch_size. adascale (for SGD)
    measures in each step what the larger batch is worth; epochs, and the steps of the schedule, are
    then counted in steps of base_batch_size, so that training takes more epochs than max_epochs."""
    base_batch_size: int = 16
    """Batch size for which lr was chosen."""

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
    """The optimizer and its hyperparameters."""

    name: OptimizerName = OptimizerName.NADAM
    """Optimizer."""
    momentum: float = ranged(0.9, Range(0, 1))
    """Momentum of SGD, LARS, Muon and K-FAC, in [0, 1)."""
    trust_coefficient: float = ranged(0.001, Range(0, takes_low=False))
    """Share of its weights by which LARS moves a layer at a learning rate of 1, above 0."""
    beta1: float = ranged(0.9, Range(0, 1))
    """First-moment decay of the Adam family, Lion, LAMB, SOAP, and Muon's vectors, in [0, 1)."""
    beta2: float = ranged(0.999, Range(0, 1))
    """Second-moment decay of the Adam family, LAMB, SOAP, and Muon's vectors, in [0, 1); of Lion's
    momentum, for which 0.99 is usual."""
    damping: float = ranged(1e-3, Range(0, takes_low=False))
    """Term that K-FAC adds to the curvature, above 0."""
    kl_clip: float = ranged(1e-3, Range(0, takes_low=False))
    """Limit of a step of K-FAC, lr² x step x curvature x step, above 0."""
    factor_decay: float = ranged(0.95, Range(0, 1))
    """Share of their former statistics that K-FAC and SOAP keep, in [0, 1)."""
    factor_every: int = ranged(1, Range(1))
    """Steps between two updates of K-FAC's statistics."""
    inverse_every: int = ranged(10, Range(1))
    """Steps between two inversions of K-FAC's statistics, or two bases of SOAP."""
    eps: float = ranged(1e-8, Range(0, takes_low=False))
    """Term added to the Adam family's denominator for numerical stability, above 0."""
    weight_decay: float = ranged(0.0, Range(0))
    """Weight decay, 0 or more; not applied to biases and normalisation layers."""
    clip_norm: float | None = ranged(None, Range(0, takes_low=False))
    """Maximum norm of the gradients; none: no clipping."""
    fused: bool | Auto = Auto.AUTO
    """Use the fused implementation of the optimizer (nadam: on the CPU only); auto: if it has one
    for the device."""

    def __post_init__(self) -> None:
        require_ranges(self, "optimizer")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Length of training, and schedule of the learning rate."""

    max_epochs: int = 60
    """Maximum number of epochs, per stage of head_then_all; early stopping usually ends sooner."""
    max_steps: int | None = None
    """Maximum number of optimizer steps; none: no limit."""
    max_time_s: float | None = None
    """Maximum training time in seconds; none: no limit. With it, results depend on the machine's
    speed."""
    kind: ScheduleKind = ScheduleKind.CONSTANT
    """Learning rate schedule after warm-up."""
    horizon_epochs: int | None = None
    """Epochs of the cosine decay; none: until max_epochs, or max_steps if that comes first."""
    warmup_steps: int = 0
    """Number of steps of linear warm-up from zero."""
    min_lr_frac: float = 0.0
    """Final learning rate of the cosine schedule, as a fraction of the initial one, in [0, 1]."""

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
    """Label smoothing, the fraction of the target spread over all classes, in [0, 1)."""
    class_weights: ClassWeights = ClassWeights.NONE
    """Class weights; balanced: inversely proportional to class frequencies."""

    def __post_init__(self) -> None:
        require(
            0 <= self.label_smoothing < 1, "loss.label_smoothing", self.label_smoothing, "in [0, 1)"
        )


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Data augmentation; off by default, because only the head is trained by default."""

    crop: float = 1.0
    """Minimum fraction of the area kept by random resized crops, in (0, 1]; 1: no cropping."""
    flip: bool = False
    """Flip pictures horizontally with probability 0.5."""
    randaugment_ops: int = 0
    """Number of RandAugment operations per picture; 0: no RandAugment."""
    randaugment_magnitude: float = 9.0
    """Magnitude of RandAugment, in [0, 10]."""
    mixup_alpha: float = 0.0
    """Alpha of the MixUp beta distribution; 0: no MixUp."""

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
    """Early stopping and validation."""

    early: bool = True
    """Stop training when the validation metric no longer improves."""
    monitor: Monitor = Monitor.VAL_LOSS
    """Metric for early stopping and for choosing the best weights."""
    patience: int = 3
    """Number of validations without improvement before training stops."""
    min_improvement_frac: float = 0.005
    """Minimum improvement over the best value, as a fraction of it, in [0, 1)."""
    allow_noise: bool = True
    """Count an improvement that reaches the minimum within one standard error of noise."""
    restore_best: bool = True
    """Use the best weights after training instead of the last ones."""
    validate_every_epochs: int = 1
    """Number of epochs between validations."""
    validate_every_steps: int | None = None
    """Number of steps between validations; none: use validate_every_epochs."""

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
    """Device and numerical precision of the training step."""

    kind: DeviceChoice = DeviceChoice.AUTO
    """Device to train on."""
    precision: Precision = Precision.FP32
    """Numerical precision of the training step."""
    memory_format: MemoryFormat = MemoryFormat.AUTO
    """Memory format of image tensors; auto: channels_last if the model has convolutions."""
    keep_freed_memory: bool | Auto = Auto.AUTO
    """On a CPU, keep freed memory in the process for the next layer, if the C library is glibc and
    you have not configured its malloc; auto: on, or off if `auto` is off."""
    compile: bool = False
    """Compile the model with torch.compile; on the CPU this needs a C++ compiler."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of storing them."""
    threads: int = 0
    """Number of compute threads of each process on the CPU; 0: one per core."""
    count: int = 1
    """Number of devices that train together, one process each; they share every global batch."""
    sync_batchnorm: bool = False
    """Let BatchNorm layers that are trained normalise over the examples of all devices."""
    replicas: int = 1
    """Number of devices that one process trains on, with a copy of the model on each, as
    DataParallel does; slower than `count`, and here for comparison."""
    all_reduce: AllReduce = AllReduce.NATIVE
    """How several devices add up gradients; auto measures the connections when the run starts, and
    may choose another algorithm after a restart: name one for runs that are equal to the bit."""
    all_reduce_fit: Path | None = None
    """collectives.json of `stepladder bench-collectives` for these devices: auto reads its figures
    instead of measuring the connections."""
    buckets: Buckets = Buckets.SIZE
    """How gradients are grouped for sending."""
    sharded: bool = False
    """Divide weights, gradients and the optimizer's state among the devices, instead of keeping all
    of them on each: for models that do not fit; sends half as much again."""
    tensor_parallel: int = 1
    """Number of devices that compute each attention and each MLP together, some heads and some
    hidden units each; a divisor of the number of devices. The groups of devices share every batch,
    and are sharded."""
    pipeline_stages: int = 1
    """Number of devices that hold the layers of a model one after the other; a divisor of the
    number of devices. The layers are divided by their measured time."""
    pipeline_schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    """Order of forward and backward passes of a pipeline."""
    micro_batches: int = 0
    """Parts into which a pipeline divides its examples, to keep all stages busy; 0: four for each
    stage, or one for each example if there are fewer."""
    gradient_compression: GradientCompression = GradientCompression.NONE
    """Send less than whole gradients; may change what is learnt. PowerSGD keeps what it has left
    out in memory only: a run that resumes is not equal to the bit to one without a break."""

    @property
    def division(self) -> str | None:
        """The option that divides the model among devices; None: each has all of it."""
        if self.pipeline_stages > 1:
            return "pipeline_stages"
        if self.tensor_parallel > 1:
            return "tensor_parallel"
        return "sharded" if self.sharded else None

    @property
    def divides_model(self) -> bool:
        """Whether each device has a part of the model only."""
        return self.division is not None

    def __post_init__(self) -> None:
        is_low_rank = self.gradient_compression is GradientCompression.POWER_SGD
        if is_low_rank and (
            self.all_reduce is not AllReduce.NATIVE or self.buckets is not Buckets.SIZE
        ):
            raise UsageError(
                "PowerSGD adds up its matrices by itself, in one bucket",
                where="device.gradient_compression",
                fix="Leave out device.all_reduce and device.buckets, or use bf16.",
            )
        for name in ("tensor_parallel", "pipeline_stages"):
            require(getattr(self, name) >= 1, f"device.{name}", getattr(self, name), "1 or more")
        require(self.micro_batches >= 0, "device.micro_batches", self.micro_batches, "0 or more")
        if self.divides_model:
            _require_divisible(self)
        require(self.threads >= 0, "device.threads", self.threads, "0 or more")
        require(self.count >= 1, "device.count", self.count, "1 or more")
        require(self.replicas >= 1, "device.replicas", self.replicas, "1 or more")
        if self.replicas > 1 and (self.count > 1 or self.compile):
            other = f"device.count {self.count}" if self.count > 1 else "device.compile"
            raise UsageError(
                f"device.replicas {self.replicas} cannot be combined with {other}",
                why="Replicas are copies of the model within one process.",
                where="device.replicas",
                fix="Leave out device.replicas; for several devices, type --devices "
                f"{max(self.count, self.replicas)}: one process for each is faster.",
            )


def _require_divisible(device: DeviceConfig) -> None:
    """Raise UsageError if other options of the device do not go with a model in parts."""
    where = f"device.{device.division}"
    others = {
        "device.all_reduce": device.all_reduce is not AllReduce.NATIVE,
        "device.buckets": device.buckets is not Buckets.SIZE,
        "device.gradient_compression": (
            device.gradient_compression is not GradientCompression.NONE
        ),
        "device.replicas": device.replicas > 1,
    }
    other = next((name for name, is_set in others.items() if is_set), None)
    if other is not None:
        raise UsageError(
            f"{other} does not go with a model that is divided among devices",
            where=where,
            why="Each device has a part of the model, and PyTorch sends and adds up the parts.",
            fix=f"Leave out {other}, or {where}.",
        )
    if device.precision in (Precision.FP16, Precision.FP16_MASTER):
        raise UsageError(
            f"device.precision {device.precision} has not been tried with a model that is divided "
            "among devices",
            where=where,
            fix="Use --device.precision bf16.",
        )
    if device.pipeline_stages > 1 and (device.tensor_parallel > 1 or device.sharded):
        second = "tensor_parallel" if device.tensor_parallel > 1 else "sharded"
        raise UsageError(
            f"device.pipeline_stages does not go with device.{second}",
            where="device.pipeline_stages",
            why="The stages of a pipeline are whole layers here; copies of the pipeline share the "
            "batch.",
            fix=f"Leave out device.{second}, or device.pipeline_stages.",
        )


@dataclass(frozen=True, kw_only=True)
class AsynchronousConfig:
    """Workers that train one model without waiting for each other at every step."""

    method: AsyncMethod = AsyncMethod.OFF
    """How the work of several workers is combined; off: devices are synchronous."""
    workers: int = 4
    """Number of workers, one process each; they share every global batch."""
    max_age: int | None = ranged(None, Range(0))
    """Of parameter_server: the most updates that a gradient may be behind; the worker that is
    fastest waits for the others. 0: synchronous; none: no limit."""
    age_rule: AgeRule = AgeRule.INVERSE
    """Of parameter_server: how the age of a gradient lowers its learning rate."""
    data: WorkerData = WorkerData.SHARD
    """Which examples a worker reads."""
    num_backup: int = 1
    """Of backup_workers: workers whose gradients a step does not wait for, and drops."""
    local_steps: int = 8
    """Of local_sgd and diloco: steps that each worker takes by itself between two averages."""
    outer_lr: float = ranged(0.7, Range(0, takes_low=False))
    """Of diloco: learning rate of the step along the average change of the workers."""
    outer_momentum: float = ranged(0.9, Range(0, 1))
    """Of diloco: Nesterov momentum of that step."""
    simulate: bool = False
    """Compute what all workers do in this process, in an order drawn from the seed: equal to the
    bit each time, and slower."""
    stragglers: float = ranged(1.0, Range(0, takes_low=False))
    """With simulate: how many times as long the last worker takes as the others."""

    def __post_init__(self) -> None:
        require_ranges(self, "asynchronous")
        require(self.workers >= 1, "asynchronous.workers", self.workers, "1 or more")
        require(self.local_steps >= 1, "asynchronous.local_steps", self.local_steps, "1 or more")
        most = self.workers - 1
        if self.method is AsyncMethod.BACKUP_WORKERS and not 1 <= self.num_backup <= most:
            raise UsageError(
                f"{self.num_backup} of {self.workers} workers cannot be backup workers",
                where="asynchronous.num_backup",
                fix=f"Use a number from 1 to {most}."
                if most
                else "Use --asynchronous.workers 2 or more.",
            )

    @property
    def is_on(self) -> bool:
        """Whether workers train."""
        return self.method is not AsyncMethod.OFF

    @property
    def num_in_batch(self) -> int:
        """Number of workers whose examples are a global batch; the others are backup workers."""
        is_backed_up = self.method is AsyncMethod.BACKUP_WORKERS
        return self.workers - (self.num_backup if is_backed_up else 0)

    @property
    def is_local(self) -> bool:
        """Whether workers take steps by themselves, and send the change of their weights."""
        return self.method in (AsyncMethod.LOCAL_SGD, AsyncMethod.DILOCO)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training run, as an immutable value."""

    seed: int = 0
    """Random seed of initial weights, data order, augmentation and dropout."""
    deterministic: bool = False
    """Use deterministic kernels, and report operations that have none; three devices or more add
    gradients up in one order from the first step.
    """
    auto: bool = True
    """Where an option is `auto`, choose what is faster and changes nothing but rounding; off: what
    PyTorch does by default."""
    train: TrainMode = TrainMode.HEAD
    """Which weights to train."""
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
    asynchronous: AsynchronousConfig = field(default_factory=AsynchronousConfig)

    def __post_init__(self) -> None:
        require(self.seed >= 0, "seed", self.seed, "0 or more")

    @property
    def is_alone(self) -> bool:
        """Whether one process trains."""
        return self.device.count == 1 and not self.asynchronous.is_on


def uncompiled(recipe: Recipe) -> Recipe:
    """Return the recipe with `torch.compile` turned off."""
    return replace(recipe, device=replace(recipe.device, compile=False))
