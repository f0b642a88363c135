"""Readable titles of identifiers, such as those of rungs, checks, metrics and options."""

from __future__ import annotations

from typing import Final

_WORDS: Final = {
    "batchnorm": "batch norm",
    "cpu": "CPU",
    "csv": "CSV",
    "flop": "FLOP",
    "flops": "FLOPs",
    "gpu": "GPU",
    "gpus": "GPUs",
    "grad": "gradient",
    "jpeg": "JPEG",
    "keras": "Keras",
    "lightning": "Lightning",
    "lr": "learning rate",
    "mlflow": "MLflow",
    "nll": "NLL",
    "num": "number of",
    "params": "parameters",
    "sem": "standard error",
    "tensorboard": "TensorBoard",
    "val": "validation",
}
_NAMES: Final = {  # names whose words are not a title
    "all_data": "All training data",
    "beats_baseline": "Better than baselines",
    "compile": "Compilation",
    "dataset_random": "Randomness in the dataset",
    "resumption": "Resumed from a checkpoint",
    "epochs_differ": "Differences between epochs",
    "stuck_loss": "Constant validation loss",
    "gradients_cleared": "Clearing of gradients",
    "gradients_reach": "Gradients of all weights",
    "held_out": "Held-out data",
    "input_independent": "Use of the inputs",
    "label_in_inputs": "Label among the inputs",
    "learning_rate_higher": "Higher learning rate",
    "learning_rate_lower": "Lower learning rate",
    "loader_left_early": "Data that are never seen",
    "missing_zero_grad": "Gradients not cleared",
    "nll_without_log_softmax": "NLL loss without log-softmax",
    "no_shuffle": "Data not shuffled",
    "not_finite": "Values that are not finite",
    "not_finite_all": "Values that are not finite, in all data",
    "not_finite_data": "Data that are not finite",
    "overfit_one_batch": "Overfitting of one batch",
    "parameters_move": "Updates of all weights",
    "parameters_never_step": "Parameters never updated",
    "pretrained": "Pretrained weights",
    "ranks_differ": "Differences between ranks",
    "reproducible": "Reproducibility",
    "sampler_without_set_epoch": "Sampler without set_epoch()",
    "scaled_decode": "Scaled decoding",
    "softmax_wrong_dim": "Softmax over the wrong dimension",
    "train_longer": "Longer training",
    "validation_repeats": "Repeatability of validation",
    "worker_draws": "Random draws of workers",
    "zero_grad_before_step": "Gradients cleared before the step",
}


def titled(name: str) -> str:
    """Return the title of an identifier.

    `Cached features` for `cached_features`; for an option, its group comes first:
    `Batch: learning rate` for `batch.lr`.
    """
    if name in _NAMES:
        return _NAMES[name]
    title = ": ".join(_spelled(part) for part in name.split("."))
    return title[:1].upper() + title[1:]


def in_words(name: str) -> str:
    """Return an identifier as words within a sentence: `validation accuracy` for `val_accuracy`."""
    return _spelled(name)


def _spelled(name: str) -> str:
    return " ".join(_WORDS.get(word, word) for word in name.split("_"))
