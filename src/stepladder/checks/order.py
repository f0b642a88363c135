"""All checks, in the order in which they run: cheap ones first, those that train last."""

from __future__ import annotations

from stepladder.checks.contract import Check
from stepladder.checks.data import (
    batch_mixing,
    channels,
    colour_order,
    dataset_random,
    distribution,
    duplicates,
    input_scale,
    input_size,
    label_alignment,
    labels,
    missing_classes,
    not_finite,
    not_finite_all,
    tokens,
    worker_draws,
)
from stepladder.checks.loss import (
    chance_level,
    loss_inputs,
    loss_reduction,
    loss_sign,
    loss_targets,
)
from stepladder.checks.machine import (
    checkpoint_room,
    checkpoint_round_trip,
    machine_limits,
    ranks_differ,
)
from stepladder.checks.model import (
    batch_norm,
    gradients_reach,
    independent_samples,
    initialisation,
    input_independent,
    module_state,
    nonlinearity,
    pretrained,
)
from stepladder.checks.optimisation import (
    gradients_cleared,
    learning_rate,
    overfit_one_batch,
    parameters_move,
    reproducible,
    seeds,
    weight_decay_groups,
)
from stepladder.checks.validation import (
    baselines,
    beats_baseline,
    checkpoint_keeping,
    metric_recomputed,
    stopping_rule,
    validation_pass,
    validation_repeats,
    validation_size,
)

CHECKS: tuple[Check, ...] = (
    labels.CHECK,  # first: the loss raises for a label out of range
    missing_classes.CHECK,
    validation_size.CHECK,
    batch_mixing.CHECK,
    stopping_rule.CHECK,
    not_finite.CHECK,
    tokens.CHECK,
    channels.CHECK,
    colour_order.CHECK,
    input_scale.CHECK,
    input_size.CHECK,
    chance_level.CHECK,
    module_state.CHECK,
    pretrained.CHECK,
    batch_norm.CHECK,
    weight_decay_groups.CHECK,
    loss_inputs.CHECK,
    loss_targets.CHECK,
    loss_reduction.CHECK,
    loss_sign.CHECK,
    gradients_reach.CHECK,
    initialisation.CHECK,
    independent_samples.CHECK,
    nonlinearity.CHECK,
    checkpoint_room.CHECK,
    checkpoint_keeping.CHECK,
    machine_limits.CHECK,
    validation_repeats.CHECK,
    not_finite_all.CHECK,
    worker_draws.CHECK,
    dataset_random.CHECK,
    metric_recomputed.CHECK,
    parameters_move.CHECK,
    gradients_cleared.CHECK,
    seeds.CHECK,
    reproducible.CHECK,
    ranks_differ.CHECK,
    overfit_one_batch.CHECK,
    input_independent.CHECK,
    learning_rate.CHECK,
    validation_pass.CHECK,  # from here on, seconds each: a short budget ends among them
    duplicates.CHECK,
    label_alignment.CHECK,
    baselines.CHECK,
    distribution.CHECK,
    beats_baseline.CHECK,
    checkpoint_round_trip.CHECK,
)
