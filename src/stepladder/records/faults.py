"""The faults of training jobs that can be told by machine: one name each, the same everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Eyes(StrEnum):
    """Who looks for a fault.

    CHECK: `stepladder check`, before a job's first step.
    WATCH: `stepladder watch`, while a script runs.
    DIAGNOSE: `stepladder diagnose`, in the folder of a run.
    AUDIT: `stepladder audit`, in logs that anybody wrote.
    """

    CHECK = "check"
    WATCH = "watch"
    DIAGNOSE = "diagnose"
    AUDIT = "audit"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way in which a training job is wrong.

    Attributes:
        name: what findings, tables and benchmarks call it.
        title: what it is, in a few words.
        eyes: who looks for it.
    """

    name: str
    title: str
    eyes: tuple[Eyes, ...]


_CHECK, _WATCH = (Eyes.CHECK,), (Eyes.WATCH,)
_DIAGNOSE, _AUDIT = (Eyes.DIAGNOSE,), (Eyes.AUDIT,)
_BOTH = (Eyes.CHECK, Eyes.WATCH)


def _fault(name: str, title: str, eyes: tuple[Eyes, ...]) -> Fault:
    return Fault(name=name, title=title, eyes=eyes)


FAULTS: tuple[Fault, ...] = (
    # what learns
    _fault("missing_zero_grad", "gradients are never cleared between steps", _BOTH),
    _fault(
        "zero_grad_before_step", "gradients are cleared after backward, before the step", _WATCH
    ),
    _fault("parameters_never_step", "weights in use belong to no optimiser that steps", _WATCH),
    _fault("parameters_not_in_optimizer", "some weights are missing from the optimiser", _BOTH),
    _fault("parameters_twice", "weights are stepped twice on the same gradients", _WATCH),
    _fault("frozen_by_accident", "weights get no gradient although they should learn", _BOTH),
    _fault("unregistered_modules", "layers in a plain list: the model does not know them", _BOTH),
    _fault("loss_maximised", "the step raises the loss: its sign is wrong", _BOTH),
    _fault("learning_rate_too_high", "the learning rate is too high to learn", _BOTH + _AUDIT),
    _fault("loss_not_finite", "the loss turns NaN or infinite, and stays so", _BOTH),
    _fault("learning_rate_too_low", "the learning rate is too low to learn in the time", _BOTH),
    _fault("schedule_misused", "the scheduler steps at the wrong time, or never", _WATCH),
    _fault(
        "mixed_precision_misused", "16-bit training without scaler, or unscaled too late", _WATCH
    ),
    _fault("accumulation_unscaled", "accumulated losses are not divided by their number", _WATCH),
    _fault("clipping_always_active", "gradients are clipped in nearly every step", _WATCH),
    _fault("decay_on_norms_and_biases", "weight decay on norms and biases, or Adam with L2", _BOTH),
    # the model
    _fault("bad_initialisation", "weights begin all alike, at zero or far too large", _BOTH),
    _fault("no_nonlinearity", "the model is linear: an activation is missing", _CHECK),
    _fault(
        "samples_not_independent", "an example's output depends on the rest of its batch", _CHECK
    ),
    _fault("batch_norm_tiny_batch", "BatchNorm learns from one or very few examples", _BOTH),
    _fault("pretrained_not_loaded", "pretrained weights were wanted and are not there", _CHECK),
    _fault("uninitialised_module_state", "a layer's state is unset where it is used", _CHECK),
    # the loss
    _fault("softmax_before_loss", "softmax or sigmoid before a loss that has its own", _BOTH),
    _fault("nll_without_log_softmax", "negative log-likelihood of raw scores", _BOTH),
    _fault("softmax_wrong_dim", "softmax over the batch instead of the classes", _BOTH),
    _fault("target_broadcast", "shapes of output and target are broadcast in the loss", _BOTH),
    _fault("loss_kind_mismatch", "the loss does not fit the kind of target", _CHECK),
    _fault("loss_reduction_mismatch", "the loss is summed where a mean is meant", _BOTH),
    _fault("metric_wrong", "a metric differs from what the outputs give", _CHECK + _AUDIT),
    # data
    _fault("label_range", "labels outside 0 … C−1", _BOTH),
    _fault("unnormalised_input", "inputs are far from mean 0 and deviation 1", _BOTH),
    _fault("double_normalisation", "inputs are normalised twice", _BOTH),
    _fault("channel_order", "channels in another order or place than the model reads", _CHECK),
    _fault("not_finite_data", "NaN or infinity in inputs or targets", _BOTH),
    _fault("duplicated_inputs", "examples are constant or copies of each other", _BOTH),
    _fault("labels_misaligned", "labels do not belong to their inputs", _CHECK),
    _fault("unmixed_batches", "a batch holds one class only: data are sorted", _BOTH),
    _fault("no_shuffle", "the order is the same in every epoch", _BOTH),
    _fault("sampler_without_set_epoch", "a distributed sampler repeats its order", _WATCH),
    _fault("split_leakage", "examples of one split are in another as well", _CHECK),
    _fault("same_draws_in_workers", "all workers draw the same random numbers", _BOTH),
    _fault("input_too_large", "inputs are far larger than the model was made for", _BOTH),
    _fault(
        "tokens_out_of_vocabulary", "token ids beyond the embedding, or padding in the loss", _BOTH
    ),
    # validation
    _fault("augmented_validation", "validation data are augmented or shuffled anew", _BOTH),
    _fault(
        "train_mode_in_validation", "dropout or BatchNorm in training mode at validation", _BOTH
    ),
    _fault("eval_mode_in_training", "the model stays in evaluation mode while it learns", _WATCH),
    _fault("gradients_in_validation", "validation keeps gradients", _BOTH),
    _fault("graph_retained", "losses are kept with their graphs: memory grows", _WATCH),
    _fault(
        "stopping_on_noise", "training stops on noise, or on what it trains on", _CHECK + _AUDIT
    ),
    # the run
    _fault("checkpoint_incomplete", "a checkpoint lacks what a restart needs", _BOTH),
    _fault("seeds_wrong", "seeds are unset, or alike where they must differ", _BOTH),
    _fault("ranks_differ", "ranks begin with different weights or data", _CHECK),
    # beyond single faults: what a job's data and settings allow
    _fault("loss_off_chance", "the first loss is far from that of guessing", _CHECK),
    _fault("cannot_overfit", "the model cannot learn even one batch", _CHECK),
    _fault("no_better_than_baseline", "a trivial baseline does as well", _CHECK + _DIAGNOSE),
    _fault("missing_classes", "a held-out split lacks classes of train", _CHECK),
    _fault("distribution_shift", "two splits are not from one distribution", _CHECK),
    _fault("validation_too_small", "validation cannot resolve what is decided by it", _CHECK),
    _fault("validation_fails", "validation itself fails or is not repeatable", _CHECK),
    _fault("not_reproducible", "two runs with one seed differ", _CHECK),
    _fault("wrong_checkpoint_kept", "the checkpoint that is kept is not the one meant", _CHECK),
    _fault("no_room_for_checkpoints", "no permission or room for the checkpoints", _CHECK),
    _fault("machine_limit", "cores, memory, files or ports fall short of the job", _CHECK),
)
