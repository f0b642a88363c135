"""Every choice among named things. A string in a config is a name or a path, never a choice."""

from __future__ import annotations

from enum import StrEnum


class Split(StrEnum):
    """A part of the pictures."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"


class SourceFormat(StrEnum):
    """What a source of pictures is; auto finds it out from names and the first bytes.

    A table is one that Spark knows by name.
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
    """What works through pictures: threads of this process, or executors of Spark."""

    LOCAL = "local"
    SPARK = "spark"


class Encoding(StrEnum):
    """How a store keeps a picture."""

    JPEG = "jpeg"
    PIXELS = "pixels"


class Compression(StrEnum):
    """How the pages of a store of pixels are packed, each by itself; for slow links."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class JpegSize(StrEnum):
    """What a JPEG store keeps: the source bytes, or pictures encoded again at the store's size."""

    ORIGINAL = "original"
    RESIZED = "resized"


class Fit(StrEnum):
    """How a picture of any shape becomes a square: padded with white, or cut at the centre."""

    PAD = "pad"
    CROP = "crop"


class Where(StrEnum):
    """Where pictures are during training: read once into memory, or read from disk each epoch."""

    AUTO = "auto"
    MEMORY = "memory"
    STREAM = "stream"


class VerifyPages(StrEnum):
    """When the CRC of a stored picture is checked."""

    FIRST_TOUCH = "first_touch"
    ALWAYS = "always"
    NEVER = "never"


class OrderMode(StrEnum):
    """How training examples are ordered.

    global is shuffled over the whole split; windowed shuffles files, and rows within a window of
    several; sequential is as stored; auto is windowed where each row would cost a request.
    """

    AUTO = "auto"
    GLOBAL = "global"
    WINDOWED = "windowed"
    SEQUENTIAL = "sequential"


class Sampling(StrEnum):
    """What a share of the training data is a sample of; auto: of files where they are far away."""

    AUTO = "auto"
    ROWS = "rows"
    FILES = "files"


class WeightsSource(StrEnum):
    """Where a trunk's weights come from (a path to a safetensors file is the fourth way)."""

    PACKAGED = "packaged"
    HUB = "hub"
    NONE = "none"


class TrainMode(StrEnum):
    """Which weights learn: the head, all of them, or first the head and then all of them."""

    HEAD = "head"
    ALL = "all"
    HEAD_THEN_ALL = "head_then_all"


class LrRule(StrEnum):
    """How the learning rate follows the global batch size."""

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"


class OptimizerName(StrEnum):
    """Update rule; `stepladder.optim.table` has a spec of each, in this order."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"
    NADAM = "nadam"


class ScheduleKind(StrEnum):
    """Shape of the learning rate after warm-up."""

    CONSTANT = "constant"
    COSINE = "cosine"


class Monitor(StrEnum):
    """What early stopping and the best weights go by."""

    VAL_LOSS = "val_loss"
    VAL_ACCURACY = "val_accuracy"


class BaselineAt(StrEnum):
    """Where a run and its baseline are compared."""

    SAMPLES_SEEN = "samples_seen"
    WALL_TIME = "wall_time"


class DeviceChoice(StrEnum):
    """Device to train on; auto takes CUDA where there is one."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Precision(StrEnum):
    """Number format of the step.

    bf16 and fp16 are autocast over fp32 weights (fp16 with a loss scaler); fp16_master keeps
    half-precision weights in the model and an fp32 master copy in the optimiser.
    """

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP16_MASTER = "fp16_master"


class MemoryFormat(StrEnum):
    """Layout of image tensors."""

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"


class ClassWeights(StrEnum):
    """Weight of each class in the loss; balanced is inverse to the class's share of train."""

    NONE = "none"
    BALANCED = "balanced"


class Checks(StrEnum):
    """What becomes of an unsound job: train looks fast, climb fully; warn tells, stop ends it."""

    OFF = "off"
    WARN = "warn"
    STOP = "stop"


class ClimbAim(StrEnum):
    """What a climb is for: less time at equal accuracy, or more accuracy for a stated time.

    fit is accuracy after the model was grown until it overfits.
    """

    TIME = "time"
    ACCURACY = "accuracy"
    FIT = "fit"


class PublishFormat(StrEnum):
    """The kind of table that a store is published as."""

    DELTA = "delta"


class ExportFormat(StrEnum):
    """What `export` writes."""

    ONNX = "onnx"
    TORCH = "torch"
