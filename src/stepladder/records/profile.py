"""Measurements of a job under one recipe, and its time to a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from stepladder.records.collectives import Fit
from stepladder.records.model_size import ModelSize

_MOSTLY: Final = 0.5


class Provenance(StrEnum):
    """Origin of a number.

    measured: timed or counted on this machine. read: from a file, a config or a library. assumed: a
    typical value. modelled: computed from other numbers. replayed: from single operations, or from
    training only the head on features of the frozen trunk. fitted: a constant of a formula, to
    measured times.
    """

    MEASURED = "measured"
    READ = "read"
    ASSUMED = "assumed"
    MODELLED = "modelled"
    REPLAYED = "replayed"
    FITTED = "fitted"


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """Time to a trained model by parts; the quantity that the ladder optimises.

    Attributes:
        one_time_s: work done once, by name: features, compile, store, load.
        epochs: epochs until training ends.
        steps_per_epoch: optimizer steps of an epoch; a smaller last one counts as a fraction.
        step_s: one full step, including waiting for data and copying.
        num_validations: validations until training ends.
        validation_s: one validation.
        checkpoint_s: all checkpoints together.
    """

    one_time_s: Mapping[str, float] = field(default_factory=dict)
    epochs: float
    steps_per_epoch: float
    step_s: float
    num_validations: float = 0.0
    validation_s: float = 0.0
    checkpoint_s: float = 0.0

    @property
    def epoch_s(self) -> float:
        """Seconds of the training steps of one epoch."""
        return self.steps_per_epoch * self.step_s

    @property
    def loop_s(self) -> float:
        """Seconds of the steps and validations of all epochs."""
        return self.epochs * self.epoch_s + self.num_validations * self.validation_s

    @property
    def total_s(self) -> float:
        """Total seconds from the start to the saved weights."""
        return sum(self.one_time_s.values()) + self.loop_s + self.checkpoint_s


@dataclass(frozen=True, kw_only=True)
class EpochRange:
    """How many epochs a training that stops early takes: 10th to 90th percentile over seeds.

    Attributes:
        low, high: the percentiles, whole validations apart. Without replays, the fewest and the
            most epochs that are possible.
        mean: mean over the seeds; without replays `high`.
        num_seeds: number of replays; 0: assumed.
        provenance: REPLAYED or MEASURED; ASSUMED without replays.
    """

    low: float
    high: float
    mean: float
    num_seeds: int
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A training of the current recipe until the default early stopping would end it.

    Replayed on features, or a full training.

    Attributes:
        epochs: epochs that it ran.
        val_losses: mean validation loss after each validation.
        epochs_to_stop: epochs at which default early stopping would end it, mean over seeds if
            these were replayed; None: never.
        stops: the same as a range over seeds; None: a single training.
        provenance: REPLAYED or MEASURED.
    """

    epochs: float
    val_losses: tuple[float, ...]
    epochs_to_stop: float | None
    stops: EpochRange | None = None
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Gradients that are known at the same time, in a backward pass.

    Attributes:
        num_bytes: of them.
        ready_frac: share of the backward pass after which they are known, in [0, 1].
    """

    num_bytes: int
    ready_frac: float


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Several devices, of this machine or of all machines, measured while all of them compute.

    Attributes:
        num: of devices, one process each; on a CPU each has a part of the cores.
        start_s: starting the processes until all have met.
        share_step_s: a step on one device's part of a batch, until the slowest one has taken it,
            without the exchange of gradients; None: the batch is too small to be divided.
        share_wait_s: of it, waiting for the part; 0 in ledgers of earlier versions, whose
            `share_step_s` has no reading.
        share_delay_s: of it, delays by chance: how much longer the slowest device of each step
            takes than the one that is the slowest on average; 0 in ledgers of earlier versions.
        exchange_fixed_s, exchange_byte_s: a and c of t(n) = a + c n, the seconds to add up n bytes
            of gradients over all devices.
        fit: cost of messages between them; None on GPUs, and in ledgers of earlier versions.
    """

    num: int
    start_s: float
    share_step_s: float | None
    exchange_fixed_s: float
    exchange_byte_s: float
    share_wait_s: float = 0.0
    share_delay_s: float = 0.0
    fit: Fit | None = None


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Facts about a model, its data and a machine under one recipe.

    Seconds, bytes and FLOPs; "per example" is per picture or row. None means not measured, and
    rungs must not guess it. `provenance` has the origin of each number.

    Attributes:
        time: time to a trained model under this recipe; with early stopping for the mean length.
        epoch_range: epochs until early stopping ends training, over seeds; None: they are fixed.
        no_advice_because: why the timelines have no advice, or None.
        num_train, num_val, num_test: number of examples; num_test is 0 in ledgers of earlier
            versions.
        is_built_in: the recipe's model and head groups describe the model (a built-in Task).
        has_head: the model has the form head(trunk(x)).
        is_trunk_frozen: no weights of the trunk are trained.
        is_random_before_head: the features of an example before the head may be random.
        default_threads: reading threads if the recipe sets none; None: one per core; 0: the main
            thread, whatever the recipe sets.
        is_pretrained: the trunk has pretrained weights.
        num_conv2d, num_batchnorm: number of such layers in the model.
        num_norms: number of normalisation layers of any kind; None in ledgers of earlier versions.
        num_blocks: length of the longest sequence of identical blocks, where gradient checkpointing
            can be turned on; 0: none, or not known.
        weight_bytes, trainable_bytes: size of all weights, and of the trained ones.
        example_bytes: size of a decoded example in memory.
        feature_bytes: size of the trunk's output for one example; None without a trunk.
        store_encoding: pixels or jpeg; None if the data is not a store.
        source_pixels: mean pixels of a stored JPEG before decoding; None if unknown.
        stored_bytes: stored size of an example; None if the data is not a store.
        is_store_near: whether random access to an example is cheap; False if it costs a network
            request or a disk seek; None: the data is not a store, or it is not known.
        device: cpu or cuda; device_name: its product name.
        num_cores: cores that this process may use.
        has_cuda, has_bf16, has_compiler: features of the machine; has_bf16: in hardware.
        free_memory_bytes: memory for a step. On a CPU, free host memory; on CUDA, device memory
            that is free or allocated by torch in this process, including weights, as in the peaks
            of memory_by_batch. In ledgers of earlier versions only free memory.
        free_host_bytes: free host memory; None in ledgers of earlier versions.
        free_disk_bytes: free space where artefacts would be written.
        disk_bytes_per_s: speed of reading the store without page cache; None: not known.
        link_bytes_per_s: speed of fetching the store's files from its object store; None if they
            are local, or not measured.
        cache_hit_frac: fraction of requested files that were in the cache, in [0, 1]; None if none
            was requested.
        peak_flops_per_s: achieved by a large matrix product, in the recipe's precision; in TF32 if
            the model's own 32-bit operations use it.
        bandwidth_bytes_per_s: achieved by a large copy.
        phases_s: seconds of each phase of a mean step (data_wait, to_device, augment, forward,
            backward, optimizer).
        unexplained_frac: fraction of the step's wall time outside of all phases.
        replay_host_s: one step on real batches that are already in host memory.
        replay_device_s: the same on batches that are already on the device.
        loader_per_s: examples per second of the loader without training.
        loader_cpu_s: CPU seconds of one thread to fetch and decode one example, or to copy it if
            pictures are kept in memory.
        loader_fetch_s, loader_decode_s: seconds of one thread to get and check the stored bytes of
            one example, and to decode them; None if the data does not distinguish them.
        fetch_bytes_per_s: stored bytes per second of one fetching thread.
        step_by_batch_s: seconds of a step by batch size, at least three sizes.
        step_fixed_s, step_per_example_s: a and c of t(b) = a + c b.
        memory_by_batch: peak bytes of a step by batch size (two sizes); of live tensors on a CPU.
        forward_flops, step_flops: FLOPs of one example, forward; forward and backward.
        forward_bytes: bytes that the operations of a forward pass read and write for one example,
            in a batch of the recipe's size, or of the features' if those are cached.
        conv_frac: fraction of the forward FLOPs in convolutions.
        mfu: model FLOPs utilisation, in [0, 1]: of a step, or of the trunk's forward pass if
            features are cached.
        trunk_s: forward pass of the trunk for one example, in batches like those of feature
            computation; None without a trunk.
        head_step_s: one step of only the head, on features at the recipe's batch size.
        head_validation_s: one validation of only the head, on features.
        op_replays: by variant (channels_last, bf16, channels_last+bf16, folded, fused_optimizer,
            pointwise, ...), time of the replayed operations divided by their unmodified time.
        curve: a training under this recipe; None if it would take too long.
        noise_scale: gradient noise scale in examples; None: unknown.
        noise_scale_unknown_because: the reason, in words; None if it is known.
        save_s: time to save the final checkpoint, including best weights; None: not measured.
        larger_trunks: names of larger trunks whose weights are available.
        devices: several devices; None: the climb may use only one, or has not come to them.
        machines: those of all machines under a launcher; None: there is one, or as above.
        size: what decides how the model is divided among devices; None: not measured.
        gradients: of the trained weights, in the order in which a backward pass has them; empty:
            not measured.
        provenance: by field name.
    """

    time: TrainingTime
    epoch_range: EpochRange | None = None
    no_advice_because: str | None = None
    num_train: int
    num_val: int
    num_test: int = 0
    is_built_in: bool
    has_head: bool
    is_trunk_frozen: bool
    is_random_before_head: bool
    default_threads: int | None = None
    is_pretrained: bool
    num_conv2d: int
    num_batchnorm: int
    num_norms: int | None = None
    num_blocks: int = 0
    weight_bytes: int
    trainable_bytes: int
    example_bytes: int
    feature_bytes: int | None = None
    store_encoding: str | None = None
    source_pixels: float | None = None
    stored_bytes: float | None = None
    is_store_near: bool | None = None
    device: str
    device_name: str
    num_cores: int
    has_cuda: bool
    has_bf16: bool
    has_compiler: bool
    free_memory_bytes: int
    free_host_bytes: int | None = None
    free_disk_bytes: int
    disk_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    cache_hit_frac: float | None = None
    peak_flops_per_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    phases_s: Mapping[str, float] = field(default_factory=dict)
    unexplained_frac: float = 0.0
    replay_host_s: float | None = None
    replay_device_s: float | None = None
    loader_per_s: float | None = None
    loader_cpu_s: float | None = None
    loader_fetch_s: float | None = None
    loader_decode_s: float | None = None
    fetch_bytes_per_s: float | None = None
    step_by_batch_s: Mapping[int, float] = field(default_factory=dict)
    step_fixed_s: float | None = None
    step_per_example_s: float | None = None
    memory_by_batch: Mapping[int, int] = field(default_factory=dict)
    forward_flops: float | None = None
    step_flops: float | None = None
    forward_bytes: float | None = None
    conv_frac: float | None = None
    mfu: float | None = None
    trunk_s: float | None = None
    head_step_s: float | None = None
    head_validation_s: float | None = None
    op_replays: Mapping[str, float] = field(default_factory=dict)
    curve: Curve | None = None
    noise_scale: float | None = None
    noise_scale_unknown_because: str | None = None
    save_s: float | None = None
    larger_trunks: tuple[str, ...] = ()
    devices: Devices | None = None
    machines: Devices | None = None
    size: ModelSize | None = None
    gradients: tuple[Gradient, ...] = ()
    provenance: Mapping[str, Provenance] = field(default_factory=dict)


def is_mostly_conv(conv_frac: float | None) -> bool:
    """Return True if convolutions do more than half of a model's FLOPs.

    Args:
        conv_frac: their fraction of the forward FLOPs, in [0, 1]; None: not counted.
    """
    return (conv_frac or 0.0) > _MOSTLY
