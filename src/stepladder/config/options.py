"""Options that are not part of the Recipe: where data comes from, where results are written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stepladder.config.checks import require
from stepladder.config.choices import (
    BaselineAt,
    Checks,
    ClassesFrom,
    ClimbAim,
    Compression,
    Encoding,
    EngineName,
    Fit,
    JpegSize,
    Launcher,
    OnWorldChange,
    Perturbed,
    PopulationEngine,
    Selection,
    SourceFormat,
)
from stepladder.config.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Options of `stepladder prepare`: which pictures to read, and how to write the store."""

    source: Path = Path("images")
    """Folder of class folders, folder of train/val/test folders, table of paths and labels (CSV,
    JSON lines), or files that contain pictures: Parquet, Hugging Face, Petastorm, Delta,
    WebDataset tars."""
    source_format: SourceFormat = SourceFormat.AUTO
    """Format of the source; auto: detect it from file names and the first bytes."""
    engine: EngineName = EngineName.LOCAL
    """Where the work runs: in threads of this process, or on Spark (extra: spark)."""
    out: Path = Path("store")
    """Folder to write the store to."""
    size: int = 224
    """Height and width of the stored pictures, in pixels."""
    fit: Fit = Fit.PAD
    """How to make a picture square: pad it with white, or crop its centre."""
    encoding: Encoding = Encoding.PIXELS
    """How to store pictures: as JPEG files, or as decoded pixels."""
    compression: Compression = Compression.NONE
    """For encoding pixels: compress each picture; for slow networks, as local disks get slower."""
    jpeg_size: JpegSize = JpegSize.ORIGINAL
    """For encoding jpeg: keep the original files, or re-encode the pictures at the store's size."""
    jpeg_quality: int = 90
    """For jpeg_size resized: JPEG quality, in [1, 100]."""
    path_column: str = "path"
    """Column of picture paths, relative to the folder of a CSV; optional in other sources."""
    image_column: str | None = None
    """Column of pictures, or their file extension in a tar; none: detect it."""
    label_column: str = "label"
    """Column of class names or numbers; in a tar, a key of the JSON file."""
    split_column: str = "split"
    """Optional column with the values train, val or test."""
    columns: str | None = None
    """Names of the columns of a CSV without a header, such as `path,label`."""
    path_format: str | None = None
    """How to make a path of a table's cell, such as `images/{}.jpg`, or `{:05}.jpg` for numbers
    with five digits; none: the cell is the path."""
    split_folders: str | None = None
    """Which folders are which split, such as `2019=train,2020=test`; none: read their names."""
    classes_from: ClassesFrom = ClassesFrom.AUTO
    """Which folders are the classes: top, whatever is inside them, or auto, by their names."""
    label_pattern: str | None = None
    """Class of each picture in a folder: the group of a regular expression on its path, such as
    `([^/]+)_[0-9]+` for `beagle_12.jpg`; none: the name of its folder."""
    pixel_height: int | None = None
    """Height of pictures stored as raw pixels in a column; none: read it from the column height."""
    pixel_width: int | None = None
    """Width of pictures stored as raw pixels in a column; none: read it from the column width."""
    delta_version: int | None = None
    """Version of the Delta table to read; none: the latest one when the command starts."""
    val_frac: float = 0.1
    """Fraction to hold out for validation if the source has no val split: of train, or of all
    pictures if it has no splits, in (0, 1)."""
    group_by: str | None = None
    """Keep groups in one split: a column, `folder`, or a regular expression for the path."""
    max_bad: float = 0.01
    """Fraction of unreadable pictures to skip before the command fails, in [0, 1]."""
    max_pixels: int = 50_000_000
    """Largest picture to decode, in pixels."""
    max_sample_value: float | None = None
    """Sample value of white, such as 4095 for 12 bits in 16; none: by the header or the type.
    Larger values are clipped, and pictures whose type has a smaller maximum stay as they are."""
    follow_symlinks: bool = False
    """Follow symbolic links that point outside the source folder."""
    workers: int = 0
    """Number of parallel workers; 0: one per core."""
    overwrite: bool = False
    """Replace a store that is damaged or was made from other pictures or with other options."""

    def __post_init__(self) -> None:
        require(8 <= self.size <= 4096, "prepare.size", self.size, "in [8, 4096]")
        require(
            1 <= self.jpeg_quality <= 100, "prepare.jpeg_quality", self.jpeg_quality, "in [1, 100]"
        )
        is_packed = self.compression is not Compression.NONE
        require(
            not is_packed or self.encoding is Encoding.PIXELS,
            "prepare.compression",
            self.compression.value,
            "none for encoding jpeg, as JPEG files are compressed already",
        )
        require(0 < self.val_frac < 1, "prepare.val_frac", self.val_frac, "in (0, 1)")
        require(0 <= self.max_bad <= 1, "prepare.max_bad", self.max_bad, "in [0, 1]")
        require(self.max_pixels >= 64, "prepare.max_pixels", self.max_pixels, "64 or more")
        white = self.max_sample_value
        require(white is None or white > 0, "prepare.max_sample_value", white, "above 0")
        require(self.workers >= 0, "prepare.workers", self.workers, "0 or more")
        for name in ("pixel_height", "pixel_width"):
            side = getattr(self, name)
            require(side is None or side >= 1, f"prepare.{name}", side, "1 or more")
        version = self.delta_version
        require(version is None or version >= 0, "prepare.delta_version", version, "0 or more")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where to write a run, and how to log and save it."""

    dir: Path = Path("auto")
    """Run folder; running the same command with the same folder resumes the run. auto: in `runs`,
    named after the job's file, its Task, or its store."""
    log_every: int = 50
    """Maximum number of steps between log events, and between checks for a non-finite loss."""
    checkpoint_every_s: float = 60.0
    """Minimum number of seconds between checkpoints; 0: save after every step."""
    keep_last: int = 2
    """Number of latest checkpoints to keep, so that there is a fallback if one is damaged."""
    save_top_k: int = 1
    """Number of best checkpoints to keep."""
    mirror: Path | None = None
    """Folder, or address in an object store, to copy every checkpoint to."""
    tensorboard: bool = False
    """Write TensorBoard event files (extra: tensorboard)."""
    mlflow_uri: str | None = None
    """MLflow tracking URI to log to (extra: mlflow); none: do not use MLflow."""
    system_every_s: float = 2.0
    """Seconds between samples of CPU, GPU and memory usage."""
    baseline: Path | None = None
    """Folder of an earlier run; stop training when this run is worse by more than noise."""
    baseline_at: BaselineAt = BaselineAt.SAMPLES_SEEN
    """Compare with the baseline after the same number of training samples, or the same time."""
    baseline_patience: int = 3
    """Number of consecutive validations worse than the baseline before training stops."""
    checks: Checks = Checks.WARN
    """What to do if a check finds a problem: off (run no checks), warn, or stop."""
    launch: Launcher = Launcher.PROCESSES
    """What starts the processes of `device.count` devices: this machine, Spark or Ray (extras)."""
    restarts: int = 3
    """How often all processes are started again from the last checkpoint after one of them died."""
    on_world_change: OnWorldChange = OnWorldChange.KEEP_BATCH
    """What a run that resumes on another number of devices keeps: the global batch (keep_batch), or
    the batch per device (scale_batch: batch.lr_rule then moves the learning rate)."""
    meet_s: float = 300.0
    """Seconds to wait until all processes have started, and then for each until it has loaded its
    Task, opened its data and built its model."""
    stall_s: float = 120.0
    """Seconds without an answer, or without progress in reading or writing, after which a process
    is reported as hanging, and the run ends."""

    def __post_init__(self) -> None:
        require(self.log_every >= 1, "run.log_every", self.log_every, "1 or more")
        require(
            self.checkpoint_every_s >= 0,
            "run.checkpoint_every_s",
            self.checkpoint_every_s,
            "0 or more",
        )
        require(self.keep_last >= 1, "run.keep_last", self.keep_last, "1 or more")
        require(self.save_top_k >= 1, "run.save_top_k", self.save_top_k, "1 or more")
        require(self.system_every_s > 0, "run.system_every_s", self.system_every_s, "above 0")
        patience = self.baseline_patience
        require(patience >= 1, "run.baseline_patience", patience, "1 or more")
        require(self.restarts >= 0, "run.restarts", self.restarts, "0 or more")
        require(self.meet_s > 0, "run.meet_s", self.meet_s, "above 0")
        require(self.stall_s > 0, "run.stall_s", self.stall_s, "above 0")


@dataclass(frozen=True, kw_only=True)
class LadderConfig:
    """How `climb` and `advise` try speed-ups, and which ones they keep."""

    aim: ClimbAim = ClimbAim.TIME
    """Try speed-ups (time) or remedies for a poor fit (accuracy); fit: grow the model until it
    overfits, then try remedies."""
    budget_s: float | None = None
    """Time limit of the command in seconds. Up to a fifth of it is reserved for the final training
    with everything that was kept; the original job is then trained too, for its test accuracy, if
    that takes no more than another fifth. None: no limit; training runs that compare two recipes
    then get as much time as with a budget of ten minutes."""
    min_gain: float = 0.03
    """Minimum gain in time to a trained model for a rung to be tried and kept; 0 or more."""
    max_accuracy_loss: float = 0.01
    """Maximum accuracy that a faster recipe may lose, in [0, 1]."""
    time_per_point: float = 1.5
    """Factor by which training time may grow for each percentage point of accuracy; 1 or more."""
    target_error: float = 0.0
    """Irreducible error, such as the fraction of wrong labels: only training error above it counts
    as underfitting. For tasks without classes, a loss; 0 or more."""
    try_all: bool = False
    """Try every rung, regardless of its predicted gain, and of how long its trial takes. By default
    one is skipped whose trial takes more than 10 s and more than it would save in 50 trainings."""
    num_blocks: int = 8
    """Number of interleaved timing blocks per recipe in a trial, 8 or more."""
    num_seeds: int = 5
    """Number of complete training runs per recipe in a trial, 2 or more."""
    block_s: float = 0.4
    """Minimum length of a timing block in seconds."""
    max_cache_bytes: int = 20_000_000_000
    """Maximum bytes on disk for features or a decoded copy; rungs that need more are rejected."""
    devices: int = 1
    """Devices of this machine that a climb may use, one process each; same as --devices. The rung
    more_gpus tries them. On a CPU, each has a part of the cores."""
    network_gbit_s: float | None = None
    """Speed of the network between two machines in Gbit/s, for the prediction of more_machines;
    none: 10, assumed."""
    prices: Path | None = None
    """CSV of GPUs and prices, see docs/rungs.md; none: use built-in data of common GPUs."""

    def __post_init__(self) -> None:
        budget = self.budget_s
        require(budget is None or budget > 0, "ladder.budget_s", budget, "above 0")
        require(self.min_gain >= 0, "ladder.min_gain", self.min_gain, "0 or more")
        loss = self.max_accuracy_loss
        require(0 <= loss <= 1, "ladder.max_accuracy_loss", loss, "in [0, 1]")
        require(self.time_per_point >= 1, "ladder.time_per_point", self.time_per_point, "1 or more")
        target = self.target_error
        require(0 <= target < float("inf"), "ladder.target_error", target, "0 or more")
        require(self.num_blocks >= 8, "ladder.num_blocks", self.num_blocks, "8 or more")
        require(self.num_seeds >= 2, "ladder.num_seeds", self.num_seeds, "2 or more")
        require(self.block_s > 0, "ladder.block_s", self.block_s, "above 0")
        network = self.network_gbit_s
        is_speed = network is None or 0 < network < float("inf")
        require(is_speed, "ladder.network_gbit_s", network, "above 0")
        require(self.devices >= 1, "ladder.devices", self.devices, "1 or more")
        cap = self.max_cache_bytes
        require(cap >= 0, "ladder.max_cache_bytes", cap, "0 or more")


@dataclass(frozen=True, kw_only=True)
class PopulationConfig:
    """How `population` trains many models at once, and moves their settings while they train."""

    members: int = 16
    """Number of models, 2 or more."""
    genes: str = ""
    """Options that differ between members, each with its range, such as `batch.lr 1e-4..1e-1 log,
    head.dropout 0..0.6`; in a file also one per line, below `genes:`."""
    selection: Selection = Selection.TRUNCATION
    """Which members take the weights of which."""
    perturbed: Perturbed = Perturbed.COPIES
    """Whose settings are changed then."""
    top_frac: float = 0.2
    """Fraction of the members whose weights others take, and, with truncation, of those that take
    them, in (0, 0.5]; at least one."""
    interval: int = 0
    """Examples that each member trains on between two selections; 0: those of an epoch."""
    factor: float = 1.2
    """Factor by which a perturbation multiplies or divides a number, above 1. On a range without
    log it moves by as much of the range as this is above 1."""
    redraw_frac: float = 0.25
    """Probability that a perturbation draws a new value from the whole range, in [0, 1]."""
    patience: int = 10
    """Number of selections in a row without a better member before the population ends."""
    target: float | None = None
    """Value of stopping.monitor at which the population ends; none: no target."""
    engine: PopulationEngine = PopulationEngine.AUTO
    """How the members are trained."""
    workers: int = 1
    """Of slices: number of processes that train members at the same time. Each has a part of the
    cores, or a GPU."""

    def __post_init__(self) -> None:
        require(self.members >= 2, "population.members", self.members, "2 or more")
        share = self.top_frac
        require(0 < share <= 0.5, "population.top_frac", share, "in (0, 0.5]")
        require(self.interval >= 0, "population.interval", self.interval, "0 or more")
        require(1 < self.factor < 10, "population.factor", self.factor, "in (1, 10)")
        redraw = self.redraw_frac
        require(0 <= redraw <= 1, "population.redraw_frac", redraw, "in [0, 1]")
        require(self.workers >= 1, "population.workers", self.workers, "1 or more")
        require(self.patience >= 1, "population.patience", self.patience, "1 or more")


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """All options of a YAML file: how to prepare data, what to train, where to write results.

    The groups of the recipe are at the top level of the file and of the flags (`model.name`,
    `--model.name`), next to `prepare`, `run`, `ladder` and `population`.
    """

    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    recipe: Recipe = field(default_factory=Recipe)
    run: RunConfig = field(default_factory=RunConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)
    population: PopulationConfig = field(default_factory=PopulationConfig)
