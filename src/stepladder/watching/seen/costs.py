"""What was seen of costs, as plain data: written by the watchers, read by the causes."""

from __future__ import annotations

from dataclasses import dataclass, field

# What a sample of the stack was taken in.
DATA = "data"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
SAVE = "save"
HOOK = "hook"  # a function of the script that torch calls beside a layer or a gradient
OWN = "own"  # the script's own code, or what it calls, outside of the others


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A line of the script.

    Attributes:
        where: such as `train.py:12`.
        function: the function that it is in.
        text: the line, stripped.
        loops: the headers of the loops around it within that function, innermost first.
        nearby, line: lines of the script around it, from which a report reads what follows, and its
            number among them; empty and 0 if nothing there can concatenate.
        joins: what its statement concatenates with, such as `torch.cat`; empty if it does not.
        store: what the result replaces and contains, as in `self.rows = torch.cat([self.rows, x])`.
        body, at: the lines of its function and its number among them, if it is in nested loops.
        fills: what the single values depend on that these compute; see `script/filled.py`.
    """

    where: str
    function: str
    text: str
    loops: tuple[str, ...] = ()
    nearby: tuple[str, ...] = ()
    line: int = 0
    joins: str = ""
    store: str = ""
    body: tuple[str, ...] = ()
    at: int = 0
    fills: str = ""


@dataclass(kw_only=True)
class SampleSeen:
    """All samples with one stack.

    Attributes:
        part: DATA, FORWARD, BACKWARD, OPTIMIZER, SAVE, HOOK or OWN.
        is_validation: taken while a model was evaluated.
        spots: the script's own lines on the stack, outermost first.
        calls: the library functions that the last of them had called, outermost first, such as
            `PIL/Image.py:resize`.
        num_inside: how many of the lines, the last ones, a loader has called.
        seconds: wall time that they represent.
        followed_s, outside_s: of these, seconds in steps whose phases are timed, and of those
            seconds between the phases.
        by_block: seconds by block of steps; see `StacksSeen`.
    """

    part: str
    is_validation: bool
    spots: tuple[Spot, ...]
    calls: tuple[str, ...]
    num_inside: int = 0
    seconds: float = 0.0
    followed_s: float = 0.0
    outside_s: float = 0.0
    by_block: dict[int, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class StacksSeen:
    """Samples of the training thread's stack.

    Attributes:
        steps_of_block: steps in each block; the number of blocks is bounded.
        last_step: the step of the last sample.
        spent_s: processor time of sampling.
    """

    num: int = 0
    samples: list[SampleSeen] = field(default_factory=list)
    steps_of_block: int = 1
    first_step: int = 0
    last_step: int = 0
    spent_s: float = 0.0


@dataclass(kw_only=True)
class CalledSeen:
    """The calls of one module in the steps in which modules were timed.

    Attributes:
        name: its name in the model, or its class.
        kind: its class.
        where: the script's line that led to the call.
        num_steps: steps with such a call.
        num_calls: all calls.
        seconds: their total time, as forward only.
    """

    name: str
    kind: str
    where: str | None
    num_steps: int = 0
    num_calls: int = 0
    seconds: float = 0.0


@dataclass(kw_only=True)
class CallsSeen:
    """Modules in the steps in which they were timed.

    Attributes:
        num_steps, span_s: these steps, and their total time.
        learned_s: time of calls of outermost modules with gradients.
        repeated: calls on an input that the same module had already received.
        frozen: outermost frozen parts that receive data; those in evaluation mode only.
        frozen_training: the same in training mode, with layers that depend on it.
        unheld: parts whose weights require gradients but that no optimizer holds.
        cells: recurrent cells, called once per time step.
        rows: modules that are called on one row of a tensor after another.
    """

    num_steps: int = 0
    span_s: float = 0.0
    learned_s: float = 0.0
    repeated: dict[int, CalledSeen] = field(default_factory=dict)
    frozen: dict[int, CalledSeen] = field(default_factory=dict)
    frozen_training: dict[int, CalledSeen] = field(default_factory=dict)
    unheld: dict[int, CalledSeen] = field(default_factory=dict)
    cells: dict[int, CalledSeen] = field(default_factory=dict)
    rows: dict[int, CalledSeen] = field(default_factory=dict)


@dataclass(kw_only=True)
class PaddingSeen:
    """Sequences that models received in inspected steps of training.

    Attributes:
        num_positions: lengths of these batches, summed.
        num_used: without what is padding in all rows of a batch.
        lengths, used: those that occurred.
        is_fixed: the model may need inputs of this length.
    """

    num_looked: int = 0
    num_positions: int = 0
    num_used: int = 0
    lengths: set[int] = field(default_factory=set)
    used: set[int] = field(default_factory=set)
    is_fixed: bool = False
    where: str | None = None


@dataclass(kw_only=True)
class ResizedSeen:
    """Images that one line resizes.

    Attributes:
        function: what resizes them.
        before, after: pixels of the last one.
        num, num_enlarged: calls, and those that at least double the number of pixels.
    """

    where: str | None
    function: str
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    num: int = 0
    num_enlarged: int = 0


@dataclass(frozen=True, kw_only=True)
class TableSeen:
    """A large embedding table whose gradient is dense, although a step uses few of its rows.

    Attributes:
        shape: rows and columns.
        num_used: the ids of one step, an upper bound of the rows that it uses.
        optimizer: the class of the one that holds it.
        identity: `id` of its weights, while these exist.
    """

    name: str
    where: str | None
    shape: tuple[int, int]
    num_used: int
    optimizer: str
    has_momentum: bool = False
    has_decay: bool = False
    is_fused: bool = False
    on_cpu: bool = True
    identity: int = 0


@dataclass(kw_only=True)
class DenormalsSeen:
    """Floats below 1.2e-38, of the tensors of one step on a CPU.

    Attributes:
        step: that step: of few, the one with the slowest products.
        num: values of all tensors that were sampled.
        num_denormal: of these, those that are denormal, estimated.
        num_tensors, num_timed: tensors with denormal values, and all of their values.
        slow_s, fast_s: seconds for a product of these, and without the denormal ones, estimated
            from the samples.
    """

    step: int = 0
    num: int = 0
    num_denormal: int = 0
    num_tensors: int = 0
    num_timed: int = 0
    slow_s: float = 0.0
    fast_s: float = 0.0

    @property
    def slower(self) -> float:
        """Return how many times as long a product of all values takes because of denormal ones."""
        if not self.num_timed or self.fast_s <= 0:
            return 1.0
        others_s = self.fast_s / self.num_timed * (self.num - self.num_timed)
        return max(1.0, (self.slow_s + others_s) / (self.fast_s + others_s))


@dataclass(frozen=True, kw_only=True)
class MaskedSeen:
    """Large matrices in the graph of one step that are almost empty.

    Attributes:
        kind: "scores", which a softmax made of masked values, or "matrix", which is data.
        shape: of one of them.
        empty: the part of their values that is zero.
        part: of what the step computes, by the number of values, that belongs to them.
    """

    kind: str
    shape: tuple[int, int]
    empty: float
    part: float


@dataclass(kw_only=True)
class HooksSeen:
    """Hooks of the script on one layer or weight, of which there are ever more.

    Attributes:
        name: of the layer in its model, or of the weight.
        kind: such as "forward hooks".
        function: what most of them call.
        file, first_line, last_line: where that is defined.
        registered_at: the line that registers them; None if it was not seen.
        counts: (step, number), at a few steps.
    """

    name: str
    kind: str
    function: str = ""
    file: str = ""
    first_line: int = 0
    last_line: int = 0
    registered_at: str | None = None
    counts: list[tuple[int, int]] = field(default_factory=list)


@dataclass(kw_only=True)
class RetainedSeen:
    """Calls of backward at one line that keep their graphs.

    Attributes:
        nodes: of the graphs of the first such calls in some steps, by step, and how many of them
            were in an earlier one.
        num_calls: the most calls in a step.
        follows_models: a model was called before each of them.
        is_cleared: a gradient was removed between two of them.
    """

    where: str | None
    nodes: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    num_calls: int = 0
    follows_models: bool = True
    is_cleared: bool = False


@dataclass(kw_only=True)
class CostsSeen:
    """Everything that was seen of costs.

    Attributes:
        resized: by line.
        transformed: by line, the largest size (h, w) of images that Pillow rotates, filters or
            warps.
        num_modes: steps after the third in which modes were read.
        num_anomaly: of these, those with torch.autograd.set_detect_anomaly.
        num_profiled: of these, those under torch's profiler.
        is_deterministic: cuDNN or torch is restricted to deterministic algorithms.
        num_floats, num_doubles: values of weights that optimizers hold, and those in float64.
        enlarged: pixels per image of the model's inputs, and of the images that they were enlarged
            from, by inspected step; None if they do not seem to be.
        num_nodes: nodes of the graph of one step; counted up to a limit.
        masked: of the same step; None if it has no such matrix.
        tables: large embedding tables with few used rows, by name.
        hooks: layers and weights whose hooks become more.
        retained: by line.
        computed: what layers receive and return in training.
        updated: gradients and the state of optimizers.
    """

    stacks: StacksSeen = field(default_factory=StacksSeen)
    calls: CallsSeen = field(default_factory=CallsSeen)
    padding: PaddingSeen = field(default_factory=PaddingSeen)
    resized: dict[str | None, ResizedSeen] = field(default_factory=dict)
    transformed: dict[str | None, tuple[int, int]] = field(default_factory=dict)
    num_modes: int = 0
    num_anomaly: int = 0
    num_profiled: int = 0
    is_deterministic: bool = False
    num_doubles: int = 0
    num_floats: int = 0
    num_nodes: int = 0
    masked: MaskedSeen | None = None
    enlarged: list[tuple[tuple[int, int], tuple[int, int]] | None] = field(default_factory=list)
    tables: dict[str, TableSeen] = field(default_factory=dict)
    hooks: list[HooksSeen] = field(default_factory=list)
    retained: dict[str | None, RetainedSeen] = field(default_factory=dict)
    computed: DenormalsSeen = field(default_factory=DenormalsSeen)
    updated: DenormalsSeen = field(default_factory=DenormalsSeen)
