"""Every option with named choices, as an enum. A plain string is a name or a path."""

from __future__ import annotations

from enum import StrEnum


class Split(StrEnum):
    """A split of the data."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"


class Auto(StrEnum):
    """A switch that is decided when the run starts; false until then."""

    AUTO = "auto"

    def __bool__(self) -> bool:
        return False


class ClassesFrom(StrEnum):
    """Which folders of a source are the classes; auto: read it from their names."""

    AUTO = "auto"
    TOP = "top"


class SourceFormat(StrEnum):
    """Format of a source of pictures; auto detects it from file names and the first bytes.

    table is a table in the catalog of Spark.
    """

    AUTO = "auto"
    FOLDER = "folder"
    CSV = "csv"
    PARQUET = "parquet"
    HUGGINGFACE = "huggingface"
    PETASTORM = "petastorm"
    WEBDATASET = "webdataset"
    DELTA = "delta"
    TABLE = "table"


class EngineName(StrEnum):
    """What processes pictures: threads of this process, or Spark executors."""

    LOCAL = "local"
    SPARK = "spark"


class AllReduce(StrEnum):
    """How gradients are added up over devices; native: as PyTorch does; auto: by their size.

    The others are explained, with pictures, in docs/collectives.md. On CPUs only: on GPUs, NCCL
    chooses among a ring and trees itself.
    """

    NATIVE = "native"
    AUTO = "auto"
    PARAMETER_SERVER = "parameter_server"
    SHARDED_PARAMETER_SERVER = "sharded_parameter_server"
    REDUCTION_TREE = "reduction_tree"
    BINARY_TREE = "binary_tree"
    DOUBLE_TREE = "double_tree"
    RING = "ring"
    RECURSIVE_DOUBLING = "recursive_doubling"
    HALVING_DOUBLING = "halving_doubling"
    BINARY_BLOCKS = "binary_blocks"
    HIERARCHICAL = "hierarchical"


class AsyncMethod(StrEnum):
    """How workers train one model without waiting for each other at every step.

    Each is explained, with measured curves, in docs/asynchronous.md.
    """

    OFF = "off"
    PARAMETER_SERVER = "parameter_server"
    BACKUP_WORKERS = "backup_workers"
    HOGWILD = "hogwild"
    LOCAL_SGD = "local_sgd"
    DILOCO = "diloco"


class WorkerData(StrEnum):
    """What a worker reads; shard: its part of each epoch; all: every example, in its own order."""

    SHARD = "shard"
    ALL = "all"


class AgeRule(StrEnum):
    """Learning rate of an old gradient; none: as of a new one; inverse: divided by its age."""

    NONE = "none"
    INVERSE = "inverse"


class Buckets(StrEnum):
    """How gradients are grouped for sending; size: 25 MiB each; layer: each weight on its own."""

    SIZE = "size"
    LAYER = "layer"


class GradientCompression(StrEnum):
    """What is sent instead of whole gradients: 16-bit numbers, or matrices of rank 1 (PowerSGD)."""

    NONE = "none"
    BF16 = "bf16"
    FP16 = "fp16"
    POWER_SGD = "power_sgd"


class PipelineSchedule(StrEnum):
    """The order of passes in a pipeline.

    gpipe: all forward passes first; one_f_one_b (1F1B): one forward and one backward in turn, which
    keeps fewer activations.
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "one_f_one_b"


class Launcher(StrEnum):
    """What starts the processes of several devices."""

    PROCESSES = "processes"
    SPARK = "spark"
    RAY = "ray"


class OnWorldChange(StrEnum):
    """What stays the same when a run resumes on another number of devices.

    keep_batch: the global batch, by more or fewer accumulation steps or examples per device.
    scale_batch: the batch per device; the learning rate follows the global batch by its rule.
    """

    KEEP_BATCH = "keep_batch"
    SCALE_BATCH = "scale_batch"


class Cluster(StrEnum):
    """What schedules the processes of several machines."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    SPARK = "spark"
    RAY = "ray"


class Encoding(StrEnum):
    """How a store encodes a picture."""

    JPEG = "jpeg"
    PIXELS = "pixels"


class Compression(StrEnum):
    """Compression of each page of a pixel store, for slow networks."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class JpegSize(StrEnum):
    """What a JPEG store contains: the original files, or JPEGs re-encoded at the store's size."""

    ORIGINAL = "original"
    RESIZED = "resized"


class Fit(StrEnum):
    """How a picture is made square: padded with white, or cropped at the centre."""

    PAD = "pad"
    CROP = "crop"


class Where(StrEnum):
    """Where pictures are during training: in memory, or read from disk in every epoch."""

    AUTO = "auto"
    MEMORY = "memory"
    STREAM = "stream"


class VerifyPages(StrEnum):
    """When to verify the CRC of a stored picture."""

    FIRST_TOUCH = "first_touch"
    ALWAYS = "always"
    NEVER = "never"


class OrderMode(StrEnum):
    """Order of the training examples.

    global shuffles the whole split; windowed shuffles the files, and rows within a window of
    several files; sequential does not shuffle; auto is windowed if each row would need a request.
    """

    AUTO = "auto"
    GLOBAL = "global"
    WINDOWED = "windowed"
    SEQUENTIAL = "sequential"


class Sampling(StrEnum):
    """What a fraction of the training data samples; auto: whole files if the store is remote."""

    AUTO = "auto"
    ROWS = "rows"
    FILES = "files"


class WeightsSource(StrEnum):
    """Where the trunk's weights come from (the path of a safetensors file is also allowed)."""

    PACKAGED = "packaged"
    HUB = "hub"
    NONE = "none"


class TrainMode(StrEnum):
    """Which weights to train: the head, all of them, or first the head and then all of them."""

    HEAD = "head"
    ALL = "all"
    HEAD_THEN_ALL = "head_then_all"


class LrRule(StrEnum):
    """How the learning rate is scaled with the global batch size."""

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"
    ADASCALE = "adascale"


class OptimizerName(StrEnum):
    """Optimizer; `stepladder.optim.table` has a spec of each, in this order."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"
    NADAM = "nadam"
    LION = "lion"
    LARS = "lars"
    LAMB = "lamb"
    MUON = "muon"
    SOAP = "soap"
    KFAC = "kfac"


class ScheduleKind(StrEnum):
    """Learning rate schedule after warm-up."""

    CONSTANT = "constant"
    COSINE = "cosine"


class Monitor(StrEnum):
    """Metric for early stopping and for choosing the best weights."""

    VAL_LOSS = "val_loss"
    VAL_ACCURACY = "val_accuracy"


class BaselineAt(StrEnum):
    """When a run and its baseline are compared."""

    SAMPLES_SEEN = "samples_seen"
    WALL_TIME = "wall_time"


class DeviceChoice(StrEnum):
    """Device to train on; auto: CUDA if available."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Precision(StrEnum):
    """Numerical precision of the training step.

    bf16 and fp16 use autocast with fp32 weights (fp16 with a loss scaler); fp16_master keeps
    half-precision weights in the model and an fp32 master copy in the optimizer.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP16_MASTER = "fp16_master"


class MemoryFormat(StrEnum):
    """Memory format of image tensors; auto: decided when the run starts."""

    AUTO = "auto"
    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"


class ClassWeights(StrEnum):
    """Class weights in the loss; balanced: inversely proportional to class frequencies in train."""

    NONE = "none"
    BALANCED = "balanced"


class Checks(StrEnum):
    """What to do if a check finds a problem; train runs the fast checks, climb all of them."""

    OFF = "off"
    WARN = "warn"
    STOP = "stop"


class ClimbAim(StrEnum):
    """Goal of a climb: less time at equal accuracy, or more accuracy for a given time.

    fit first grows the model until it overfits, then does the same as accuracy.
    """

    TIME = "time"
    ACCURACY = "accuracy"
    FIT = "fit"


class Selection(StrEnum):
    """Which members of a population take the weights of which.

    truncation: the worst ones those of the best. top_k: all others those of the best.
    """

    TRUNCATION = "truncation"
    TOP_K = "top_k"


class Perturbed(StrEnum):
    """Whose settings a population changes after a selection.

    copies: those of the members that took the weights of another, with its settings. winners: those
    of the best, while the copies keep their own.
    """

    COPIES = "copies"
    WINNERS = "winners"


class PopulationEngine(StrEnum):
    """How the members of a population are trained; auto: by the first of these that can.

    heads: all at once, by batched matrix products, where only linear heads are trained. stacked:
    small models, all at once on the same batches. slices: one after the other, from checkpoint to
    checkpoint. ray: as slices, by Ray Tune.
    """

    AUTO = "auto"
    HEADS = "heads"
    STACKED = "stacked"
    SLICES = "slices"
    RAY = "ray"


class PublishFormat(StrEnum):
    """Format of the table that a store is published as."""

    DELTA = "delta"


class ExportFormat(StrEnum):
    """File format that `export` writes."""

    ONNX = "onnx"
    TORCH = "torch"
