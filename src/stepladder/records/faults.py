"""The faults of training jobs that stepladder can detect, with unique names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Eyes(StrEnum):
    """What detects a fault.

    CHECK: `stepladder check`, before a job's first step.
    WATCH: `stepladder watch`, while a script runs.
    DIAGNOSE: `stepladder diagnose`, in the folder of a run.
    AUDIT: `stepladder audit`, in logs of any training.
    """

    CHECK = "check"
    WATCH = "watch"
    DIAGNOSE = "diagnose"
    AUDIT = "audit"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a training job.

    Attributes:
        name: its name in findings, tables and benchmarks.
        title: a short description.
        eyes: what detects it.
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
    # optimisation
    _fault("missing_zero_grad", "gradients are never cleared between steps", _BOTH),
    _fault(
        "zero_grad_before_step", "gradients are cleared after backward, before the step", _WATCH
    ),
    _fault("parameters_never_step", "weights in use are not updated by any optimizer", _WATCH),
    _fault("parameters_not_in_optimizer", "some weights are missing from the optimizer", _BOTH),
    _fault(
        "parameters_twice",
        "weights are updated twice with the same gradients, or are those of several layers",
        _WATCH,
    ),
    _fault(
        "frozen_by_accident",
        "weights that should be trained get no gradient or do not change",
        _BOTH,
    ),
    _fault("not_frozen", "weights that are meant to be frozen are trained", _WATCH),
    _fault("unregistered_modules", "layers in a plain list are not registered in the model", _BOTH),
    _fault("loss_maximised", "the step increases the loss: its sign is wrong", _BOTH),
    _fault("learning_rate_too_high", "the learning rate is too high to learn", _BOTH + _AUDIT),
    _fault("loss_not_finite", "the loss becomes NaN or infinite and stays so", _BOTH),
    _fault(
        "learning_rate_too_low",
        "the learning rate is too low to learn in the given time",
        _BOTH + _AUDIT,
    ),
    _fault("optimizer_recreated", "the optimizer is created again, and its state is lost", _WATCH),
    _fault("schedule_misused", "the scheduler steps at the wrong time, or never", _WATCH),
    _fault(
        "mixed_precision_misused",
        "16-bit training without a GradScaler, or unscaled too late",
        _WATCH,
    ),
    _fault("accumulation_unscaled", "accumulated losses are not divided by their number", _WATCH),
    _fault(
        "clipping_without_effect", "gradients are clipped after the step or before backward", _WATCH
    ),
    _fault("clipping_always_active", "gradients are clipped in nearly every step", _WATCH),
    _fault("decay_on_norms_and_biases", "weight decay on norms and biases, or Adam with L2", _BOTH),
    # the model
    _fault("bad_initialisation", "initial weights are identical, zero or far too large", _BOTH),
    _fault("no_nonlinearity", "the model is linear: an activation is missing", _CHECK),
    _fault(
        "samples_not_independent", "an example's output depends on the rest of its batch", _BOTH
    ),
    _fault("batch_norm_tiny_batch", "BatchNorm learns from one or very few examples", _BOTH),
    _fault("batch_norm_stale", "BatchNorm is evaluated with statistics of other weights", _WATCH),
    _fault(
        "frozen_batch_norm_moves", "BatchNorm of frozen layers still updates its statistics", _WATCH
    ),
    _fault("pretrained_not_loaded", "pretrained weights were requested but not loaded", _BOTH),
    _fault("uninitialised_module_state", "a layer's state is used before it is set", _CHECK),
    _fault(
        "positions_without_effect",
        "a model has a table of positions, but gives the same output for inputs in reverse order",
        _WATCH,
    ),
    _fault("one_layer_for_many", "a multiplied list has one layer several times", _WATCH),
    _fault("line_without_effect", "a changed copy is thrown away, or a method not called", _WATCH),
    _fault("normalised_in_part", "only the mean is divided by the standard deviation", _WATCH),
    # the loss
    _fault("softmax_before_loss", "softmax or sigmoid before a loss that applies it itself", _BOTH),
    _fault("nll_without_log_softmax", "negative log-likelihood of raw scores", _BOTH),
    _fault("softmax_wrong_dim", "softmax over the batch instead of the classes", _BOTH),
    _fault(
        "target_broadcast",
        "shapes of output and target, or of weights, are broadcast in the loss",
        _BOTH,
    ),
    _fault("loss_kind_mismatch", "the loss does not fit the kind of target", _BOTH),
    _fault(
        "contrastive_loss_misused",
        "targets or roles of pairs and triplets are exchanged or alike",
        _WATCH,
    ),
    _fault(
        "loss_term_lost", "a part of the loss is a number or constant, and is not learned", _WATCH
    ),
    _fault(
        "terminal_states_ignored",
        "the target of Q-learning adds the value of a next state after the end of an episode",
        _WATCH,
    ),
    _fault(
        "backward_ignores_gradient", "a custom backward ignores the gradient it receives", _WATCH
    ),
    _fault(
        "divergence_wrong",
        "the divergence of a variational autoencoder has a wrong sign or factor",
        _WATCH,
    ),
    _fault("loss_weights_inverted", "weights of classes grow with their frequency", _WATCH),
    _fault(
        "loss_reduction_mismatch",
        "the loss is a sum where a mean is intended, or a mean taken too early",
        _BOTH,
    ),
    _fault(
        "metric_wrong", "a metric differs from the value computed from the outputs", _BOTH + _AUDIT
    ),
    # data
    _fault("label_range", "labels outside 0 … C−1", _BOTH),
    _fault("unnormalised_input", "inputs are far from mean 0 and standard deviation 1", _BOTH),
    _fault("range_lost", "inputs use a small part of their range", _CHECK),
    _fault("double_normalisation", "inputs are normalised twice", _BOTH),
    _fault(
        "channel_order", "channels are in another order or dimension than the model expects", _BOTH
    ),
    _fault(
        "reshape_instead_of_transpose",
        "a reshape mixes examples or dimensions where a transpose is meant",
        _WATCH,
    ),
    _fault("not_finite_data", "NaN or infinity in inputs or targets", _BOTH),
    _fault("duplicated_inputs", "examples are constant or copies of each other", _BOTH),
    _fault(
        "stored_data_changes",
        "a dataset changes the examples that it stores whenever it returns them",
        _WATCH,
    ),
    _fault("label_in_inputs", "the label is a column of the inputs, or a token in them", _WATCH),
    _fault("labels_misaligned", "labels do not match their inputs", _BOTH),
    _fault("unmixed_batches", "batches have only one class: the data is sorted", _BOTH),
    _fault("no_shuffle", "the order is the same in every epoch", _BOTH),
    _fault("loader_left_early", "a loader is left early, so most examples are never seen", _WATCH),
    _fault("few_examples_drawn", "the sampler draws only a few of the examples", _WATCH),
    _fault("sampler_without_set_epoch", "a distributed sampler repeats its order", _WATCH),
    _fault("split_leakage", "examples of one split are also in another", _BOTH),
    _fault("same_draws_in_workers", "all workers draw the same random numbers", _BOTH),
    _fault("input_too_large", "inputs are far larger than the model was designed for", _BOTH),
    _fault(
        "tokens_out_of_vocabulary",
        "token ids outside the vocabulary, or padding in the loss",
        _BOTH,
    ),
    _fault(
        "padding_misread",
        "a padding mask is inverted, or the last output of padded sequences is used",
        _WATCH,
    ),
    # validation
    _fault("augmented_validation", "validation data is augmented or reshuffled", _BOTH),
    _fault(
        "train_mode_in_validation",
        "dropout or BatchNorm is in training mode during validation",
        _BOTH,
    ),
    _fault("eval_mode_in_training", "the model is in evaluation mode during training", _WATCH),
    _fault("gradients_in_validation", "validation runs with gradients enabled", _BOTH),
    _fault("graph_retained", "losses are kept with their graphs, so memory grows", _WATCH),
    _fault(
        "stopping_on_noise",
        "training stops on noise, on training data, or while it improves",
        _BOTH + _AUDIT,
    ),
    # the run
    _fault(
        "checkpoint_incomplete",
        "a checkpoint lacks state that a restart needs, or it is not restored",
        _BOTH,
    ),
    _fault("seeds_wrong", "seeds are not set, or equal where they must differ", _BOTH),
    _fault("ranks_differ", "ranks hold different weights, or start with different data", _BOTH),
    _fault("ranks_read_same_data", "ranks read the same data", _WATCH),
    _fault("validation_padded", "validation counts examples twice on several ranks", _WATCH),
    _fault("schedule_stepped_per_rank", "the schedule steps once for every rank", _WATCH),
    _fault("slow_rank", "the other ranks wait for one", _WATCH),
    _fault("communication_exposed", "ranks wait for communication instead of computing", _WATCH),
    _fault("unused_search", "DistributedDataParallel searches for unused weights in vain", _WATCH),
    # data and settings of the job as a whole
    _fault("loss_off_chance", "the initial loss is far from chance level", _CHECK),
    _fault("cannot_overfit", "the model cannot overfit a single batch", _CHECK),
    _fault("no_better_than_baseline", "a trivial baseline is as good", _CHECK + _DIAGNOSE),
    _fault("missing_classes", "classes of train are missing in a held-out split", _CHECK),
    _fault("distribution_shift", "two splits have different distributions", _BOTH),
    _fault("validation_too_small", "validation is too small for the decisions based on it", _CHECK),
    _fault("validation_fails", "validation fails or is not repeatable", _CHECK),
    _fault("not_reproducible", "two runs with the same seed differ", _CHECK),
    _fault("wrong_checkpoint_kept", "the wrong checkpoint is kept", _BOTH),
    _fault(
        "no_room_for_checkpoints",
        "checkpoints cannot be written: no permission or disk space",
        _CHECK,
    ),
    _fault(
        "machine_limit", "the job needs more cores, memory, files or ports than available", _CHECK
    ),
)
