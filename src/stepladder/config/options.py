"""What a command needs beside the Recipe: where pictures come from, where results go."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stepladder.config.checks import require
from stepladder.config.choices import (
    BaselineAt,
    Checks,
    ClimbAim,
    Compression,
    Encoding,
    EngineName,
    Fit,
    JpegSize,
    SourceFormat,
)
from stepladder.config.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """From pictures to a store."""

    source: Path = Path("images")
    """Folder of class folders, folder of train/val/test folders, CSV of path and label, or files
    that hold pictures: Parquet, Hugging Face, Petastorm, Delta, tars of WebDataset."""
    source_format: SourceFormat = SourceFormat.AUTO
    """What the source is."""
    engine: EngineName = EngineName.LOCAL
    """What does the work: threads of this process, or Spark (extra: spark)."""
    out: Path = Path("store")
    """Folder to write the store to."""
    size: int = 224
    """Height and width of the stored square, in pixels."""
    fit: Fit = Fit.PAD
    """How a picture becomes a square."""
    encoding: Encoding = Encoding.PIXELS
    """How a picture is kept."""
    compression: Compression = Compression.NONE
    """For encoding pixels: pack each picture's page, for slow links; a local disk is faster not."""
    jpeg_size: JpegSize = JpegSize.ORIGINAL
    """For encoding jpeg: the source bytes, or pictures encoded again at the store's size."""
    jpeg_quality: int = 90
    """For jpeg_size resized: quality in [1, 100]."""
    path_column: str = "path"
    """The column of picture paths; for a CSV relative to its folder, else optional."""
    image_column: str | None = None
    """The column of pictures, or the ending in a tar; none: the one that holds pictures."""
    label_column: str = "label"
    """The column of class names or numbers; in a tar a key of the JSON."""
    split_column: str = "split"
    """The optional column of train, val or test."""
    pixel_height: int | None = None
    """Height of pictures that a column holds as plain pixels; none: of the column height."""
    pixel_width: int | None = None
    """Width of pictures that a column holds as plain pixels; none: of the column width."""
    delta_version: int | None = None
    """Version of a Delta table that is read; none: the latest, found once."""
    val_frac: float = 0.1
    """Share held out for validation where the source has no split, in (0, 1)."""
    group_by: str | None = None
    """Keep a group on one side: a column, `folder`, or a regular expression on the path."""
    max_bad: float = 0.01
    """Share of unreadable pictures to put aside before giving up, in [0, 1]."""
    max_pixels: int = 50_000_000
    """Largest picture that is decoded, in pixels."""
    follow_symlinks: bool = False
    """Follow symbolic links that lead out of the source folder."""
    workers: int = 0
    """Parallel workers; 0 takes one a core."""
    overwrite: bool = False
    """Replace a store that is damaged, or was made from other pictures or with other options."""

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
            "none for encoding jpeg, whose pictures are packed already",
        )
        require(0 < self.val_frac < 1, "prepare.val_frac", self.val_frac, "in (0, 1)")
        require(0 <= self.max_bad <= 1, "prepare.max_bad", self.max_bad, "in [0, 1]")
        require(self.max_pixels >= 64, "prepare.max_pixels", self.max_pixels, "64 or more")
        require(self.workers >= 0, "prepare.workers", self.workers, "0 or more")
        for name in ("pixel_height", "pixel_width"):
            side = getattr(self, name)
            require(side is None or side >= 1, f"prepare.{name}", side, "1 or more")
        version = self.delta_version
        require(version is None or version >= 0, "prepare.delta_version", version, "0 or more")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where a run is written, and how it is logged and saved."""

    dir: Path = Path("runs/run")
    """Folder of the run; the same command on the same folder resumes it."""
    log_every: int = 50
    """Steps between log events, and between checks for a non-finite loss, at most."""
    checkpoint_every_s: float = 60.0
    """Seconds between checkpoints at the least; 0 saves after every step."""
    keep_last: int = 2
    """Newest checkpoints kept, so that a damaged one has a fallback."""
    save_top_k: int = 1
    """Best checkpoints kept."""
    mirror: Path | None = None
    """Folder, or place in an object store, that every checkpoint is copied to."""
    tensorboard: bool = False
    """Write TensorBoard files (extra: tensorboard)."""
    mlflow_uri: str | None = None
    """MLflow tracking URI to log to (extra: mlflow); none: no MLflow."""
    system_every_s: float = 2.0
    """Seconds between samples of CPU, GPU and memory use."""
    baseline: Path | None = None
    """Folder of an earlier run; this one stops where it is worse by more than noise."""
    baseline_at: BaselineAt = BaselineAt.SAMPLES_SEEN
    """Compare after the same training samples, or after the same time."""
    baseline_patience: int = 3
    """Validations in a row that must be worse than the baseline before stopping."""
    checks: Checks = Checks.WARN
    """What becomes of a job that its checks find unsound; `check` looks and trains nothing."""

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


@dataclass(frozen=True, kw_only=True)
class LadderConfig:
    """How `climb` and `advise` try speed-ups, and what they keep."""

    aim: ClimbAim = ClimbAim.TIME
    """Try speed-ups, or remedies for a poor fit; fit: grow the model until it overfits before."""
    budget_s: float | None = None
    """Seconds for one command. Trials end in time for the training with what was kept, as far as
    that takes no more than a fifth; the job as written is trained after it for its test accuracy
    where another fifth allows it. None: no limit, and trainings that compare two recipes take what
    ten minutes would allow them."""
    min_gain: float = 0.03
    """Gain in time to a trained model below which a rung is not tried, nor kept; 0 or more."""
    max_accuracy_loss: float = 0.01
    """Accuracy that a faster recipe may lose at most, in [0, 1]."""
    time_per_point: float = 1.5
    """How many times as long training may take for one more point of accuracy; 1 or more."""
    target_error: float = 0.0
    """Share of examples that nobody gets right, such as wrong labels: a training error counts
    from there on. Without classes, a loss; 0 or more."""
    try_all: bool = False
    """Try rungs whatever gain is predicted."""
    num_blocks: int = 8
    """Interleaved blocks that each recipe of a trial runs, 8 or more."""
    num_seeds: int = 5
    """Trainings to the end that each recipe of a trial gets, 2 or more."""
    block_s: float = 0.4
    """Length of a block in seconds, at least."""
    max_cache_bytes: int = 20_000_000_000
    """Bytes of disk that features or a decoded copy may take; a rung that needs more is refused."""
    prices: Path | None = None
    """CSV of GPUs with prices, as docs/rungs.md says; none: data sheets of common ones."""

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
        cap = self.max_cache_bytes
        require(cap >= 0, "ladder.max_cache_bytes", cap, "0 or more")


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """One YAML file: how to prepare, what to train, where to write.

    The recipe's groups stand at the top level of the file and of the flags (`model.name`,
    `--model.name`), beside `prepare` and `run`.
    """

    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    recipe: Recipe = field(default_factory=Recipe)
    run: RunConfig = field(default_factory=RunConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)
