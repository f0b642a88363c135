"""What was measured of a job under one recipe, and how long it takes to a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

_MOSTLY: Final = 0.5


class Provenance(StrEnum):
    """Where a number comes from.

    measured: timed or counted here. read: stands in a file, a config or a library. assumed: taken
    from experience, and said so. modelled: computed from other numbers. replayed: from single
    operations, or from training the head alone on features of the frozen trunk.
    """

    MEASURED = "measured"
    READ = "read"
    ASSUMED = "assumed"
    MODELLED = "modelled"
    REPLAYED = "replayed"


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """Time to a trained model, by its parts; the unit in which the ladder counts.

    Attributes:
        one_time_s: work done once, by name: features, compile, store, load.
        epochs: epochs until training ends.
        steps_per_epoch: optimiser steps of an epoch, the short last one as a part of a step.
        step_s: one full step, waiting for data and copying included.
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
        """The training steps of one epoch."""
        return self.steps_per_epoch * self.step_s

    @property
    def loop_s(self) -> float:
        """Steps and validations of all epochs."""
        return self.epochs * self.epoch_s + self.num_validations * self.validation_s

    @property
    def total_s(self) -> float:
        """Everything, from the start to the committed weights."""
        return sum(self.one_time_s.values()) + self.loop_s + self.checkpoint_s


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A training of the current recipe, to where the defaults would have stopped it.

    By replay on features, or for real.

    Attributes:
        epochs: epochs that it ran.
        val_losses: mean validation loss after each validation.
        epochs_to_stop: where the early stopping of the defaults would have ended it; None: nowhere.
        provenance: REPLAYED or MEASURED.
    """

    epochs: float
    val_losses: tuple[float, ...]
    epochs_to_stop: float | None
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Facts about a model, its data and a machine under one recipe.

    Seconds, bytes and FLOPs; "per example" is per picture or row. A None was not measured, and no
    rung may guess it. `provenance` names for each number where it comes from.

    Attributes:
        time: time to a trained model under this recipe.
        no_advice_because: why the timelines carry no advice, or None.
        num_train, num_val, num_test: examples; num_test is 0 in ledgers of earlier versions.
        is_built_in: the recipe's model and head groups describe the model (a built-in Task).
        has_head: the model has the form head(trunk(x)).
        is_trunk_frozen: no weight of the trunk learns.
        is_random_before_head: the same example may reach the head with other features.
        default_threads: that read where the recipe names none; None: one a core; 0: the main
            thread, whatever the recipe names.
        is_pretrained: the trunk has learnt weights.
        num_conv2d, num_batchnorm: such layers in the model.
        num_norms: layers that normalise, of any kind; None in ledgers of earlier versions.
        num_blocks: alike blocks in the longest row of them, where gradient checkpointing can be
            turned on; 0: none, or not known.
        weight_bytes, trainable_bytes: all weights; those that learn.
        example_bytes: one decoded example in memory.
        feature_bytes: the trunk's output for one example; None without a trunk.
        store_encoding: pixels or jpeg; None where the data is no store.
        source_pixels: mean pixels of a stored JPEG before decoding; None where unknown.
        stored_bytes: bytes of an example where it is stored; None where the data is no store.
        is_store_near: a single example of the store costs little more than its bytes; False: a
            request, or a disk arm's move; None: the data is no store, or it is not known.
        device: cpu or cuda; device_name as people know it.
        num_cores: cores that this process may use.
        has_cuda, has_bf16, has_compiler: what the machine offers. has_bf16: in hardware.
        free_memory_bytes: memory for a step. On a CPU, host memory that is free; on CUDA, device
            memory that is free or that torch holds in this process, weights and all, as peaks in
            memory_by_batch count them. In ledgers of earlier versions only what was free.
        free_host_bytes: host memory that is free; None in ledgers of earlier versions.
        free_disk_bytes: where artefacts would be written.
        disk_bytes_per_s: reading the store with none of it in memory; None: not to be known.
        link_bytes_per_s: fetching the store's files from the object store in which they lie; None
            where they lie on this machine, or it was not measured.
        cache_hit_frac: share of these files that the cache had when they were asked for, in [0, 1];
            None where none was asked for.
        peak_flops_per_s: achieved by a large matrix product here, in the recipe's precision; in
            TF32 where the model's own 32-bit operations run in it.
        bandwidth_bytes_per_s: achieved by a large copy here.
        phases_s: seconds of each phase of one mean step (data_wait, to_device, augment, forward,
            backward, optimizer).
        unexplained_frac: share of the step's wall time that no phase covers.
        replay_host_s: one step on real batches that lie ready in host memory.
        replay_device_s: the same on batches that lie on the device.
        loader_per_s: examples a second that the loader gives when nobody trains.
        loader_cpu_s: CPU seconds of one thread to fetch and decode one example; where memory holds
            the pictures, to copy it.
        loader_fetch_s, loader_decode_s: seconds of one thread to get and check the stored bytes of
            one example, and to decode them; None where the data does not tell them apart.
        fetch_bytes_per_s: stored bytes that one thread gets in a second of fetching.
        step_by_batch_s: seconds of a step by batch size, at least three sizes.
        step_fixed_s, step_per_example_s: a and c of t(b) = a + c b.
        memory_by_batch: peak bytes of a step by batch size (two sizes); of live tensors on a CPU.
        forward_flops, step_flops: FLOPs of one example, forward; forward and backward.
        forward_bytes: bytes that the single operations of a forward pass read and write for one
            example in a batch of the recipe's size, the features' where those are cached.
        conv_frac: share of the forward FLOPs that convolutions do.
        mfu: model FLOPs utilisation, in [0, 1]: of a step, and where features are cached of the
            trunk's forward pass.
        trunk_s: trunk forward of one example, in batches as features are computed in; None
            without a trunk.
        head_step_s: one step of the head alone on features at the recipe's batch size.
        head_validation_s: one validation of the head alone on features.
        op_replays: by variant (channels_last, bf16, channels_last+bf16, folded, fused_optimizer,
            pointwise, ...), time of the replayed single operations over their time as they are.
        curve: how training goes under this recipe; None where it was too long to find out.
        noise_scale: gradient noise scale in examples; None: unknown.
        noise_scale_unknown_because: why it is, in words; None where it is known.
        save_s: the checkpoint at the end, best weights included; None: not measured.
        larger_trunks: names of larger trunks whose weights are at hand.
        provenance: by field name.
    """

    time: TrainingTime
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
    provenance: Mapping[str, Provenance] = field(default_factory=dict)


def is_mostly_conv(conv_frac: float | None) -> bool:
    """Return True if convolutions set how fast a model is: they do more than half of its FLOPs.

    Args:
        conv_frac: their share of the forward FLOPs, in [0, 1]; None: not counted.
    """
    return (conv_frac or 0.0) > _MOSTLY
