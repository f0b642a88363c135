"""DETECTORS: everything that watching looks for, in the order of FAULTS."""

from __future__ import annotations

from typing import Final

from stepladder.records.findings import Severity
from stepladder.records.watch import Needs
from stepladder.watching.contract import Detector
from stepladder.watching.faults import inputs, learning, loss, stepping, validation

_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
_TORCH = "PyTorch documentation"
_CHECKER = "TheDeepChecker, Ben Braiek & Khomh 2023, arXiv:2204.00694"
_KARPATHY = 'Karpathy 2019, "A Recipe for Training Neural Networks"'
_AMP = 'PyTorch, "Automatic Mixed Precision examples"'
_ACCUMULATION = 'PyTorch, "CUDA Automatic Mixed Precision examples": gradient accumulation'
_HE = "He et al. 2015, arXiv:1502.01852"
_GROUP_NORM = "Wu & He 2018, arXiv:1803.08494"
_WORKERS = 'PyTorch, "Reproducibility": DataLoader'
_SAVING = 'PyTorch, "Saving and Loading Models"'

DETECTORS: Final[tuple[Detector, ...]] = (
    Detector(
        name="missing_zero_grad",
        severity=_ERROR,
        source=_KARPATHY,
        look=stepping.missing_zero_grad,
        needs=Needs.EITHER,
    ),
    Detector(
        name="zero_grad_before_step",
        severity=_ERROR,
        source=_KARPATHY,
        look=stepping.zero_grad_before_step,
    ),
    Detector(
        name="parameters_never_step",
        severity=_ERROR,
        source="TrainCheck, Jiang et al. 2025, arXiv:2506.14813",
        look=learning.parameters_never_step,
    ),
    Detector(
        name="parameters_not_in_optimizer",
        severity=_WARNING,
        source=_TORCH,
        look=learning.parameters_not_in_optimizer,
    ),
    Detector(
        name="parameters_twice",
        severity=_WARNING,
        source=_TORCH,
        look=learning.parameters_twice,
    ),
    Detector(
        name="frozen_by_accident",
        severity=_WARNING,
        source=_CHECKER,
        look=learning.frozen_by_accident,
    ),
    Detector(
        name="unregistered_modules",
        severity=_WARNING,
        source=_TORCH,
        look=learning.unregistered_modules,
    ),
    Detector(
        name="loss_maximised", severity=_WARNING, source=_CHECKER, look=learning.loss_maximised
    ),
    Detector(
        name="learning_rate_too_high",
        severity=_WARNING,
        source=_CHECKER,
        look=learning.learning_rate_too_high,
    ),
    Detector(
        name="loss_not_finite", severity=_ERROR, source=_CHECKER, look=learning.loss_not_finite
    ),
    Detector(
        name="learning_rate_too_low",
        severity=_WARNING,
        source=_CHECKER,
        look=learning.learning_rate_too_low,
    ),
    Detector(
        name="schedule_misused", severity=_WARNING, source=_TORCH, look=stepping.schedule_misused
    ),
    Detector(
        name="mixed_precision_misused",
        severity=_WARNING,
        source=_AMP,
        look=stepping.mixed_precision_misused,
    ),
    Detector(
        name="accumulation_unscaled",
        severity=_WARNING,
        source=_ACCUMULATION,
        look=stepping.accumulation_unscaled,
    ),
    Detector(
        name="clipping_always_active",
        severity=_WARNING,
        source="Pascanu et al. 2013, arXiv:1211.5063",
        look=stepping.clipping_always_active,
    ),
    Detector(
        name="decay_on_norms_and_biases",
        severity=_INFO,
        source="Loshchilov & Hutter 2019, arXiv:1711.05101; Goyal et al. 2017, arXiv:1706.02677",
        look=learning.decay_on_norms_and_biases,
    ),
    Detector(
        name="bad_initialisation", severity=_WARNING, source=_HE, look=stepping.bad_initialisation
    ),
    Detector(
        name="batch_norm_tiny_batch",
        severity=_WARNING,
        source=_GROUP_NORM,
        look=stepping.batch_norm_tiny_batch,
    ),
    Detector(
        name="softmax_before_loss", severity=_ERROR, source=_TORCH, look=loss.softmax_before_loss
    ),
    Detector(
        name="nll_without_log_softmax",
        severity=_WARNING,
        source=_TORCH,
        look=loss.nll_without_log_softmax,
    ),
    Detector(
        name="softmax_wrong_dim", severity=_WARNING, source=_TORCH, look=loss.softmax_wrong_dim
    ),
    Detector(name="target_broadcast", severity=_WARNING, source=_TORCH, look=loss.target_broadcast),
    Detector(
        name="loss_reduction_mismatch",
        severity=_WARNING,
        source=_TORCH,
        look=loss.loss_reduction_mismatch,
    ),
    Detector(name="label_range", severity=_WARNING, source=_TORCH, look=loss.label_range),
    Detector(
        name="unnormalised_input",
        severity=_WARNING,
        source=_KARPATHY,
        look=inputs.unnormalised_input,
    ),
    Detector(
        name="double_normalisation",
        severity=_WARNING,
        source=_KARPATHY,
        look=inputs.double_normalisation,
    ),
    Detector(
        name="not_finite_data", severity=_WARNING, source=_CHECKER, look=inputs.not_finite_data
    ),
    Detector(
        name="duplicated_inputs", severity=_WARNING, source=_CHECKER, look=inputs.duplicated_inputs
    ),
    Detector(
        name="unmixed_batches", severity=_WARNING, source=_CHECKER, look=inputs.unmixed_batches
    ),
    Detector(name="no_shuffle", severity=_WARNING, source=_KARPATHY, look=inputs.no_shuffle),
    Detector(
        name="sampler_without_set_epoch",
        severity=_WARNING,
        source="PyTorch, DistributedSampler.set_epoch",
        look=inputs.sampler_without_set_epoch,
    ),
    Detector(
        name="same_draws_in_workers",
        severity=_WARNING,
        source=_WORKERS,
        look=inputs.same_draws_in_workers,
    ),
    Detector(
        name="input_too_large",
        severity=_WARNING,
        source="Tan & Le 2019, arXiv:1905.11946 (size and cost)",
        look=inputs.input_too_large,
    ),
    Detector(
        name="tokens_out_of_vocabulary",
        severity=_WARNING,
        source=_TORCH,
        look=loss.tokens_out_of_vocabulary,
    ),
    Detector(
        name="augmented_validation",
        severity=_WARNING,
        source=_KARPATHY,
        look=validation.augmented_validation,
    ),
    Detector(
        name="train_mode_in_validation",
        severity=_WARNING,
        source=_KARPATHY,
        look=validation.train_mode_in_validation,
    ),
    Detector(
        name="eval_mode_in_training",
        severity=_WARNING,
        source=_KARPATHY,
        look=validation.eval_mode_in_training,
    ),
    Detector(
        name="gradients_in_validation",
        severity=_WARNING,
        source=_TORCH,
        look=validation.gradients_in_validation,
    ),
    Detector(
        name="graph_retained",
        severity=_WARNING,
        source='PyTorch, "Frequently Asked Questions": memory',
        look=validation.graph_retained,
    ),
    Detector(
        name="checkpoint_incomplete",
        severity=_WARNING,
        source=_SAVING,
        look=validation.checkpoint_incomplete,
    ),
    Detector(
        name="seeds_wrong",
        severity=_INFO,
        source='PyTorch, "Reproducibility"',
        look=validation.seeds_wrong,
    ),
)
