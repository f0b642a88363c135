"""DETECTORS: all faults that watching can find, in the order of FAULTS."""

from __future__ import annotations

from typing import Final

from stepladder.records.findings import Severity
from stepladder.records.watch import Needs
from stepladder.watching.contract import Detector
from stepladder.watching.faults.inputs import (
    draws,
    examples,
    inputs,
    padding,
    pairs,
    pixels,
    shifts,
    stored,
    unread,
)
from stepladder.watching.faults.losses import (
    bootstraps,
    divergences,
    kinds,
    loss,
    loss_weights,
    metrics,
    terms,
)
from stepladder.watching.faults.models import (
    independence,
    reshapes,
    slips,
    weights,
    without_gradient,
)
from stepladder.watching.faults.steps import (
    clipping,
    learning,
    own_backwards,
    stepping,
    stopping,
    validation,
)

_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
_TORCH = "PyTorch documentation"
_CHECKER = "TheDeepChecker, Ben Braiek & Khomh 2023, arXiv:2204.00694"
_KARPATHY = 'Karpathy 2019, "A Recipe for Training Neural Networks"'
_AMP = 'PyTorch, "Automatic Mixed Precision examples"'
_ACCUMULATION = 'PyTorch, "CUDA Automatic Mixed Precision examples": gradient accumulation'
_HE = "He et al. 2015, arXiv:1502.01852"
_GROUP_NORM = "Wu & He 2018, arXiv:1803.08494"
_LOADING = 'PyTorch, "torch.utils.data": iterating a DataLoader'
_LEAKAGE = "Kapoor & Narayanan 2023, arXiv:2207.07048 (no clean split)"
_LEAKAGE_OF_TARGET = "Kaufman et al. 2012, doi:10.1145/2382577.2382579 (leakage of the target)"
_TORCH_DATA = 'PyTorch, "Datasets & DataLoaders": custom datasets'
_SAMPLING = 'PyTorch, "torch.utils.data": WeightedRandomSampler, SubsetRandomSampler'
_MISALIGNED = "Zhang et al. 2017, arXiv:1611.03530 (random labels)"
_WORKERS = 'PyTorch, "Reproducibility": DataLoader'
_TRANSFER = 'Chollet 2020, Keras guide "Transfer learning & fine-tuning": BatchNormalization'
_KING = "King & Zeng 2001, Logistic Regression in Rare Events Data (section 4)"
_SWA = "Izmailov et al. 2018, arXiv:1803.05407 (section 3.2)"
_SHIFT = "Breck et al. 2019, Data Validation for Machine Learning (section 3.2)"
_ATTENTION = "Vaswani et al. 2017, arXiv:1706.03762 (section 3.5)"
_PYTHON = 'Python documentation, "Expressions" and "Common Sequence Operations"'
_SAVING = 'PyTorch, "Saving and Loading Models"'

DETECTORS: Final[tuple[Detector, ...]] = (
    Detector("missing_zero_grad", _ERROR, _KARPATHY, stepping.missing_zero_grad, Needs.EITHER),
    Detector("zero_grad_before_step", _ERROR, _KARPATHY, stepping.zero_grad_before_step),
    Detector(
        "parameters_never_step",
        _ERROR,
        "TrainCheck, Jiang et al. 2025, arXiv:2506.14813",
        learning.parameters_never_step,
    ),
    Detector("parameters_not_in_optimizer", _WARNING, _TORCH, learning.parameters_not_in_optimizer),
    Detector("parameters_twice", _WARNING, _TORCH, learning.parameters_twice),
    Detector("frozen_by_accident", _WARNING, _CHECKER, without_gradient.frozen_by_accident),
    Detector("not_frozen", _WARNING, _TORCH, weights.not_frozen),
    Detector("unregistered_modules", _WARNING, _TORCH, learning.unregistered_modules),
    Detector("loss_maximised", _WARNING, _CHECKER, learning.loss_maximised),
    Detector("learning_rate_too_high", _WARNING, _CHECKER, learning.learning_rate_too_high),
    Detector("loss_not_finite", _ERROR, _CHECKER, learning.loss_not_finite),
    Detector("learning_rate_too_low", _WARNING, _CHECKER, learning.learning_rate_too_low),
    Detector("optimizer_recreated", _ERROR, _TORCH, stepping.optimizer_recreated),
    Detector("schedule_misused", _WARNING, _TORCH, stepping.schedule_misused),
    Detector("mixed_precision_misused", _WARNING, _AMP, stepping.mixed_precision_misused),
    Detector("accumulation_unscaled", _WARNING, _ACCUMULATION, stepping.accumulation_unscaled),
    Detector(
        "clipping_without_effect",
        _ERROR,
        "PyTorch documentation, torch.nn.utils.clip_grad_norm_",
        clipping.clipping_without_effect,
    ),
    Detector(
        "clipping_always_active",
        _WARNING,
        "Pascanu et al. 2013, arXiv:1211.5063",
        clipping.clipping_always_active,
    ),
    Detector(
        "decay_on_norms_and_biases",
        _INFO,
        "Loshchilov & Hutter 2019, arXiv:1711.05101; Goyal et al. 2017, arXiv:1706.02677",
        learning.decay_on_norms_and_biases,
    ),
    Detector("bad_initialisation", _WARNING, _HE, stepping.bad_initialisation),
    Detector("samples_not_independent", _WARNING, _KARPATHY, independence.samples_not_independent),
    Detector("batch_norm_tiny_batch", _WARNING, _GROUP_NORM, stepping.batch_norm_tiny_batch),
    Detector("batch_norm_stale", _ERROR, _SWA, validation.batch_norm_stale),
    Detector("frozen_batch_norm_moves", _WARNING, _TRANSFER, weights.frozen_batch_norm_moves),
    Detector("pretrained_not_loaded", _ERROR, _SAVING, weights.pretrained_not_loaded),
    Detector(
        "positions_without_effect", _WARNING, _ATTENTION, independence.positions_without_effect
    ),
    Detector("one_layer_for_many", _WARNING, _PYTHON, slips.one_layer_for_many),
    Detector("line_without_effect", _WARNING, _TORCH, slips.line_without_effect),
    Detector("normalised_in_part", _WARNING, _PYTHON, slips.normalised_in_part),
    Detector("softmax_before_loss", _ERROR, _TORCH, loss.softmax_before_loss),
    Detector("nll_without_log_softmax", _WARNING, _TORCH, loss.nll_without_log_softmax),
    Detector("softmax_wrong_dim", _WARNING, _TORCH, loss.softmax_wrong_dim),
    Detector("target_broadcast", _WARNING, _TORCH, loss.target_broadcast),
    Detector("loss_kind_mismatch", _WARNING, _TORCH, kinds.loss_kind_mismatch),
    Detector("contrastive_loss_misused", _WARNING, _TORCH, kinds.contrastive_loss_misused),
    Detector("loss_term_lost", _ERROR, _TORCH, terms.loss_term_lost),
    Detector(
        "terminal_states_ignored",
        _WARNING,
        "Mnih et al. 2015, doi:10.1038/nature14236 (Algorithm 1)",
        bootstraps.terminal_states_ignored,
    ),
    Detector(
        "backward_ignores_gradient",
        _ERROR,
        'PyTorch, "Extending torch.autograd"',
        own_backwards.backward_ignores_gradient,
    ),
    Detector(
        "divergence_wrong",
        _WARNING,
        "Kingma & Welling 2014, arXiv:1312.6114 (appendix B)",
        divergences.divergence_wrong,
    ),
    Detector("loss_weights_inverted", _WARNING, _KING, loss_weights.loss_weights_inverted),
    Detector("loss_reduction_mismatch", _WARNING, _TORCH, loss.loss_reduction_mismatch),
    Detector("metric_wrong", _WARNING, _TORCH, metrics.metric_wrong),
    Detector("label_range", _WARNING, _TORCH, loss.label_range),
    Detector("unnormalised_input", _WARNING, _KARPATHY, inputs.unnormalised_input),
    Detector("double_normalisation", _WARNING, _KARPATHY, inputs.double_normalisation),
    Detector("channel_order", _WARNING, _TORCH, pixels.channel_order),
    Detector(
        "reshape_instead_of_transpose",
        _WARNING,
        "PyTorch documentation, torch.Tensor.view",
        reshapes.reshape_instead_of_transpose,
    ),
    Detector("not_finite_data", _WARNING, _CHECKER, inputs.not_finite_data),
    Detector("duplicated_inputs", _WARNING, _CHECKER, inputs.duplicated_inputs),
    Detector("stored_data_changes", _WARNING, _TORCH_DATA, stored.stored_data_changes),
    Detector("label_in_inputs", _WARNING, _LEAKAGE_OF_TARGET, pairs.label_in_inputs),
    Detector("labels_misaligned", _WARNING, _MISALIGNED, pairs.labels_misaligned),
    Detector("unmixed_batches", _WARNING, _CHECKER, inputs.unmixed_batches),
    Detector("no_shuffle", _WARNING, _KARPATHY, inputs.no_shuffle),
    Detector("loader_left_early", _WARNING, _LOADING, unread.loader_left_early),
    Detector("few_examples_drawn", _WARNING, _SAMPLING, draws.few_examples_drawn),
    Detector(
        "sampler_without_set_epoch",
        _WARNING,
        "PyTorch, DistributedSampler.set_epoch",
        inputs.sampler_without_set_epoch,
    ),
    Detector("split_leakage", _WARNING, _LEAKAGE, examples.split_leakage),
    Detector("same_draws_in_workers", _WARNING, _WORKERS, inputs.same_draws_in_workers),
    Detector(
        "input_too_large",
        _WARNING,
        "Tan & Le 2019, arXiv:1905.11946 (size and cost)",
        inputs.input_too_large,
    ),
    Detector("tokens_out_of_vocabulary", _WARNING, _TORCH, loss.tokens_out_of_vocabulary),
    Detector("padding_misread", _ERROR, _TORCH, padding.padding_misread),
    Detector("augmented_validation", _WARNING, _KARPATHY, validation.augmented_validation),
    Detector("train_mode_in_validation", _WARNING, _KARPATHY, validation.train_mode_in_validation),
    Detector("eval_mode_in_training", _WARNING, _KARPATHY, validation.eval_mode_in_training),
    Detector("gradients_in_validation", _WARNING, _TORCH, validation.gradients_in_validation),
    Detector(
        "graph_retained",
        _WARNING,
        'PyTorch, "Frequently Asked Questions": memory',
        validation.graph_retained,
    ),
    Detector(
        "stopping_on_noise",
        _WARNING,
        "Prechelt 1998, doi:10.1007/3-540-49430-8_3 (early stopping)",
        stopping.stopping_on_noise,
    ),
    Detector("checkpoint_incomplete", _WARNING, _SAVING, validation.checkpoint_incomplete),
    Detector("seeds_wrong", _INFO, 'PyTorch, "Reproducibility"', validation.seeds_wrong),
    Detector("distribution_shift", _WARNING, _SHIFT, shifts.distribution_shift),
    Detector("wrong_checkpoint_kept", _ERROR, _SAVING, validation.wrong_checkpoint_kept),
)
