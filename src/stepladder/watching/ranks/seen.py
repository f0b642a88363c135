"""What one rank records for the comparison with the others, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.ranks import RankReport


class HeldBy(StrEnum):
    """What keeps a trained weight equal on all ranks.

    WRAPPER: a DistributedDataParallel averages its gradient.
    FROZEN: one contains it, but it required no gradient when the model was wrapped.
    IGNORED: one contains it, but ignores it, as the script requires.
    NOTHING: no DistributedDataParallel contains it.
    """

    WRAPPER = "wrapper"
    FROZEN = "frozen"
    IGNORED = "ignored"
    NOTHING = "nothing"


@dataclass(kw_only=True)
class WrapperSeen:
    """One DistributedDataParallel.

    Attributes:
        where: the script's line that created it.
        num_ranks: ranks that it averages over.
        num_forwards: its calls with gradients.
        num_unsynced: of these, those inside `no_sync()`.
        has_hook: a communication hook was registered, which may average something else.
        finds_unused: it was created with find_unused_parameters=True.
        num_read: iterations whose times and unused weights were read.
        num_with_unused: of these, those in which a weight had no gradient.
        bucket_bytes: sizes of its buckets.
    """

    where: str | None
    num_ranks: int
    num_forwards: int = 0
    num_unsynced: int = 0
    has_hook: bool = False
    finds_unused: bool = False
    num_read: int = 0
    num_with_unused: int = 0
    bucket_bytes: tuple[int, ...] = ()


@dataclass(kw_only=True)
class WeightsSeen:
    """Trained weights after a number of steps, before the next backward.

    Attributes:
        sums, sizes: by weight, a sum of some of its values with factors of at most 1, and the sum
            of their magnitudes.
    """

    step: int
    sums: tuple[float, ...]
    sizes: tuple[float, ...]


@dataclass(kw_only=True)
class PaddedSeen:
    """A loader for validation whose DistributedSampler repeats examples.

    Attributes:
        num_examples: of the dataset.
        num_repeated: examples that are read once more, over all ranks.
        num_ranks: by which the sampler divides.
        collectives: kinds that were called during its passes and after them.
    """

    where: str | None
    num_examples: int
    num_repeated: int
    num_ranks: int
    collectives: tuple[str, ...] = ()


@dataclass(kw_only=True)
class RateSeen:
    """A learning-rate scheduler with a horizon."""

    kind: str
    where: str | None
    num_stepped: int
    horizon: int


@dataclass(kw_only=True)
class RankSeen:
    """Everything that one rank records for the comparison.

    Attributes:
        run: equal for all ranks of a run.
        has_group: a process group was created.
        stepped_at: the script's line that steps the main optimizer.
        names, held, shapes: of the weights in `weights`.
        num_trained: numbers that are trained.
        num_sharded: tensors of the optimizer that are parts of larger ones.
        whole_mesh: FSDP2 shards over all ranks along one dimension.
        wrappers: each DistributedDataParallel.
        inputs: by step, a checksum of what a DistributedDataParallel was called with.
        losses: by step, what backward was called on.
        batches: checksums of the first batches of the passes for training.
        has_sampler: training reads through a DistributedSampler.
        waits: by step, seconds in which only communication happened.
        inside: of these, by step, those that are part of forward or backward.
        num_calls, num_elements: collectives that the script or a library called itself, after
            the first backward, and the numbers that they moved; without barriers.
        has_exchange: ranks sent different things to each other, as with model parallelism.
        library: another library that averages gradients, such as horovod; None: none is imported.
    """

    rank: int
    size: int
    run: str
    has_group: bool = False
    stepped_at: str | None = None
    names: tuple[str, ...] = ()
    held: tuple[HeldBy, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    num_trained: int = 0
    num_sharded: int = 0
    whole_mesh: bool = False
    weights: list[WeightsSeen] = field(default_factory=list)
    wrappers: list[WrapperSeen] = field(default_factory=list)
    inputs: dict[int, float] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    batches: list[float] = field(default_factory=list)
    has_sampler: bool = False
    waits: dict[int, float] = field(default_factory=dict)
    inside: dict[int, float] = field(default_factory=dict)
    num_calls: int = 0
    num_elements: int = 0
    has_exchange: bool = False
    library: str | None = None
    padded: list[PaddedSeen] = field(default_factory=list)
    schedules: list[RateSeen] = field(default_factory=list)
    was_cut: bool = False


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """rank.json: the report of one rank, and what it recorded for the comparison."""

    report: RankReport
    seen: RankSeen


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """What the detectors over ranks read.

    Attributes:
        size: number of ranks of the script.
        records: of those ranks that left one, by rank.
    """

    size: int
    records: tuple[RankRecord, ...]

    @property
    def seen(self) -> tuple[RankSeen, ...]:
        """What the ranks recorded."""
        return tuple(record.seen for record in self.records)

    @property
    def is_whole(self) -> bool:
        """Whether every rank left a record."""
        return len(self.records) == self.size > 1
