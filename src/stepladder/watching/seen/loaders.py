"""What was seen of loaders and the passes over them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class PassSeen:
    """One pass over a loader, from its first batch to its last or to where it was stopped.

    Attributes:
        wait_s: seconds in which the script waited for it.
        start_s: of these, for the iterator, its first batch and its end.
    """

    loader: int
    num_batches: int = 0
    num_backwards: int = 0
    num_steps: int = 0
    began_at_step: int = 0
    is_whole: bool = False
    wait_s: float = 0.0
    start_s: float = 0.0
    span_s: float = 0.0
    num_forwards: int = 0
    num_train_mode: int = 0
    num_with_graph: int = 0
    first_checksum: float | None = None

    def count(self, *, is_training: bool, has_graph: bool) -> None:
        """Count a call of a model."""
        self.num_forwards += 1
        self.num_train_mode += is_training
        self.num_with_graph += has_graph

    @property
    def is_training(self) -> bool:
        """Return whether anything was learned in it."""
        return self.num_backwards + self.num_steps > 0

    @property
    def is_validation(self) -> bool:
        """Return whether a model ran on it after training had begun, without learning."""
        return not self.is_training and self.num_forwards > 0 and self.began_at_step > 0


@dataclass(kw_only=True)
class DrawsSeen:
    """The indices that the samplers of one dataset returned, in all of its loaders.

    Attributes:
        num_stored: length of the dataset; 0 if its keys are no positions.
        num_drawn, num_distinct: indices, and distinct ones; the latter are counted at the end.
        num_compared, num_apart: examples that it stores in an array and that were compared, and how
            many of them are distinct; 0 if it stores none.
        width: values of such an example.
    """

    num_stored: int
    num_drawn: int = 0
    num_distinct: int = 0
    num_compared: int = 0
    num_apart: int = 0
    width: int = 0


@dataclass(frozen=True, kw_only=True)
class WholeLabelsSeen:
    """A loss of the same labels in each step, of which a part is evaluated as held out.

    Attributes:
        where: the line that selects that part.
        trained_at: the line of backward.
        num_trained, num_held_out: labels in the loss, and in that part.
    """

    where: str | None
    trained_at: str | None
    num_trained: int
    num_held_out: int


@dataclass(frozen=True, kw_only=True)
class SharedSeen:
    """An evaluation of some of a dataset's examples, by a model that had trained on some of them.

    Both are known from the indices of loaders, of what the model last learned from before.

    Attributes:
        where: the line of the evaluation.
        trained_at: the line that iterates the loader of training.
        dataset: the class of the dataset.
        num_evaluated, num_trained, num_common: examples of both loaders, and those in both.
        is_named: names of variables say that the evaluation is of held-out examples.
        is_instead: it is of a part of a split whose largest part no loader reads.
        has_new: the model was also evaluated on examples that it had not trained on.
        was_new: these examples were also evaluated before they were trained on.
    """

    where: str | None
    trained_at: str | None
    dataset: str
    num_evaluated: int
    num_trained: int
    num_common: int
    is_named: bool
    is_instead: bool
    has_new: bool
    was_new: bool

    @property
    def share(self) -> float:
        """Return the share of the evaluated examples that was trained on."""
        return self.num_common / self.num_evaluated


@dataclass(kw_only=True)
class RepeatsSeen:
    """Examples of one dataset that were fetched several times in the training process.

    Attributes:
        num_compared, num_equal: fetched again, and of these, equal to what they were before.
        has_drawn: random numbers were drawn meanwhile.
        num_examples, example_bytes: of the whole dataset, and of one of its examples.
        memory_bytes: available memory.
    """

    num_examples: int
    num_compared: int = 0
    num_equal: int = 0
    has_drawn: bool = False
    example_bytes: int = 0
    memory_bytes: int = 0


@dataclass(kw_only=True)
class LoaderSeen:
    """One loader.

    Attributes:
        where, line: the line that iterates it, as text, and as file and number.
        num_examples: examples of a whole pass; None if unknown, as of a stream.
        is_stacked: its batches are stacked by torch's default, along the first dimension.
        keeps_workers: its worker processes serve several passes.
        num_stored, num_distinct: inspected examples that its dataset stores in memory, and how many
            of them are distinct; 0 if it stores none.
        shared_draws: how its workers come to draw the same random numbers; None if they don't.
        ignores_index: its dataset returns an example without the index, so it has no order.
        restarted_draws, restarted_at: the generator that may be in the same state whenever its
            workers are started, and the line that seeds it; None if it has persistent workers.
        epoch_sampler: it has a DistributedSampler that shuffles by epoch.
        num_set_epoch: number of set_epoch calls.
        num_dataset, num_repeated, num_replicas: for a DistributedSampler that drops nothing: the
            examples of its dataset, those that it repeats so that all ranks get as many, and the
            ranks.
        num_learnt, num_learnt_distinct: examples that a model learned from, as far as they were
            followed, and how many of them are distinct.
        least_width: values that the model received of such an example, at least.
        draws: what the samplers of its dataset returned; None if that is unknown.
        repeats: examples of its dataset that were compared; None if none were.
        sampler_kind: the class of its sampler.
        num_weights, num_zero: weights of its sampler, and how many are 0; 0 if it has none.
    """

    where: str | None
    line: tuple[str, int] | None = None
    dataset: str = ""
    dataset_id: int = 0
    sampler: str = ""
    batch_size: int | None = None
    num_workers: int = 0
    num_batches: int | None = None
    num_examples: int | None = None
    is_stacked: bool = False
    keeps_workers: bool = False
    is_iterable: bool = False
    shared_draws: str | None = None
    ignores_index: bool = False
    restarted_draws: str | None = None
    restarted_at: str | None = None
    epoch_sampler: bool = False
    num_set_epoch: int = 0
    num_dataset: int = 0
    num_repeated: int = 0
    num_replicas: int = 1
    num_stored: int = 0
    num_distinct: int = 0
    num_learnt: int = 0
    num_learnt_distinct: int = 0
    least_width: int | None = None
    draws: DrawsSeen | None = None
    repeats: RepeatsSeen | None = None
    sampler_kind: str = ""
    num_weights: int = 0
    num_zero: int = 0
    passes: list[PassSeen] = field(default_factory=list)

    @property
    def begins_alike(self) -> bool:
        """Return whether the compared passes of training begin with the same batch."""
        sums = [one.first_checksum for one in self.training if one.first_checksum is not None]
        is_several = all(one.num_batches > 1 for one in self.training)
        return len(sums) >= 2 and len(set(sums)) == 1 and is_several

    @property
    def training(self) -> list[PassSeen]:
        """Return the passes in which something was learned."""
        return [one for one in self.passes if one.is_training]

    @property
    def validation(self) -> list[PassSeen]:
        """Return the passes in which a model only ran."""
        return [one for one in self.passes if one.is_validation]
