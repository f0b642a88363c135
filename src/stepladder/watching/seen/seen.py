"""All that was seen, as plain data: written by the watchers, read by the detectors."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepladder.records.watch import Clearing
from stepladder.watching.seen.costs import CostsSeen
from stepladder.watching.seen.inputs import (
    OwnScaleSeen,
    PackedEndSeen,
    PaddingSeen,
    PixelsSeen,
    SeedingSeen,
    ShiftSeen,
    StoredSeen,
)
from stepladder.watching.seen.labels import (
    AheadSeen,
    CopiesSeen,
    IndependenceSeen,
    LabelsSeen,
    MirroredSeen,
    PairsSeen,
)
from stepladder.watching.seen.loaders import LoaderSeen, SharedSeen, WholeLabelsSeen
from stepladder.watching.seen.losses import (
    AverageSeen,
    BlankSeen,
    ComparisonSeen,
    ConstantTermSeen,
    IgnoredEndSeen,
    LossSeen,
    LostTermSeen,
    MarginSeen,
    OwnBackwardSeen,
    PredictionSeen,
    UnevenAverageSeen,
    UnusedTermSeen,
)
from stepladder.watching.seen.models import (
    IgnoredPlanSeen,
    IgnoredStateSeen,
    InputSeen,
    ModelSeen,
    OwnStateSeen,
    ReshapeSeen,
    SavedSeen,
    SlipSeen,
    SoftmaxSeen,
    StateSeen,
)
from stepladder.watching.seen.steps import (
    BackwardSeen,
    ClippingSeen,
    OptimizerSeen,
    OptionSeen,
    PatienceSeen,
    PrecisionSeen,
    ScheduleSeen,
    StartSeen,
)
from stepladder.watching.seen.weights import (
    FrozenNormSeen,
    LoadSeen,
    MisnamedSeen,
    RepeatedSeen,
)


@dataclass(kw_only=True)
class Seen:
    """Everything that was seen.

    Attributes:
        is_over: the script ended, in whatever way.
        was_cut: it failed or was stopped early: what never happened might have happened later.
        num_loads: calls of `load_state_dict`.
    """

    num_steps: int = 0
    num_backwards: int = 0
    backward_at: str | None = None
    optimizers: list[OptimizerSeen] = field(default_factory=list)
    options: list[OptionSeen] = field(default_factory=list)
    losses: list[LossSeen] = field(default_factory=list)
    margins: list[MarginSeen] = field(default_factory=list)
    predictions: list[PredictionSeen] = field(default_factory=list)
    uneven_averages: list[UnevenAverageSeen] = field(default_factory=list)
    averages: list[AverageSeen] = field(default_factory=list)
    comparisons: list[ComparisonSeen] = field(default_factory=list)
    own_backwards: list[OwnBackwardSeen] = field(default_factory=list)
    ignored_ends: list[IgnoredEndSeen] = field(default_factory=list)
    lost_terms: list[LostTermSeen] = field(default_factory=list)
    constant_terms: list[ConstantTermSeen] = field(default_factory=list)
    unused_terms: dict[tuple[str | None, int], UnusedTermSeen] = field(default_factory=dict)
    backward_calls: list[BackwardSeen] = field(default_factory=list)
    starts: list[StartSeen] = field(default_factory=list)
    loaders: list[LoaderSeen] = field(default_factory=list)
    shared: list[SharedSeen] = field(default_factory=list)
    whole_labels: list[WholeLabelsSeen] = field(default_factory=list)
    models: list[ModelSeen] = field(default_factory=list)
    inputs: list[InputSeen] = field(default_factory=list)
    slips: list[SlipSeen] = field(default_factory=list)
    reshapes: list[ReshapeSeen] = field(default_factory=list)
    schedules: list[ScheduleSeen] = field(default_factory=list)
    patience: list[PatienceSeen] = field(default_factory=list)
    precision: PrecisionSeen = field(default_factory=PrecisionSeen)
    clippings: list[ClippingSeen] = field(default_factory=list)
    independence: IndependenceSeen | None = None
    copies: CopiesSeen | None = None
    mirrored: MirroredSeen | None = None
    ahead: AheadSeen | None = None
    labels: list[LabelsSeen] = field(default_factory=list)
    shifts: list[ShiftSeen] = field(default_factory=list)
    own_scales: list[OwnScaleSeen] = field(default_factory=list)
    pixels: list[PixelsSeen] = field(default_factory=list)
    stored: list[StoredSeen] = field(default_factory=list)
    seedings: list[SeedingSeen] = field(default_factory=list)
    paddings: list[PaddingSeen] = field(default_factory=list)
    packed_ends: list[PackedEndSeen] = field(default_factory=list)
    softmaxes: list[SoftmaxSeen] = field(default_factory=list)
    blanks: list[BlankSeen] = field(default_factory=list)
    pairs: list[PairsSeen] = field(default_factory=list)
    saved: list[SavedSeen] = field(default_factory=list)
    stale_states: list[StateSeen] = field(default_factory=list)
    ignored_plans: list[IgnoredPlanSeen] = field(default_factory=list)
    ignored_states: list[IgnoredStateSeen] = field(default_factory=list)
    own_states: list[OwnStateSeen] = field(default_factory=list)
    loads: list[LoadSeen] = field(default_factory=list)
    num_loads: int = 0
    frozen_norms: list[FrozenNormSeen] = field(default_factory=list)
    misnamed: list[MisnamedSeen] = field(default_factory=list)
    repeated: list[RepeatedSeen] = field(default_factory=list)
    unregistered: dict[str, int] = field(default_factory=dict)
    norm_counts: dict[str, list[int]] = field(default_factory=dict)
    bad_tokens: tuple[int, int] | None = None
    bad_tokens_at: str | None = None
    padding: tuple[int, int] | None = None
    not_finite: str | None = None
    not_finite_at: str | None = None
    not_finite_step: int | None = None
    loss_not_finite_at: int | None = None
    num_graphs_alive: int = 0
    num_outputs_alive: int = 0
    has_seed: bool = False
    reseeded: dict[tuple[str | None, int], int] = field(default_factory=dict)
    is_compiled: bool = False
    modules_were_seen: bool = False
    world_size: int = 1
    num_processes: int = 0
    is_over: bool = False
    was_cut: bool = False
    num_looked: int = 0
    clearing: Clearing | None = None
    costs: CostsSeen = field(default_factory=CostsSeen)
