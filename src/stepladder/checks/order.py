"""All checks, in the order in which they run.

First those of tier FAST, which do not train. Within a tier, those that find errors come before
those that warn, so that a short time limit leaves out the least important ones.
"""

from __future__ import annotations

from stepladder.checks.contract import Check
from stepladder.checks.data import (
    batch_mixing,
    channels,
    colour_order,
    dataset_random,
    distribution,
    duplicates,
    input_range,
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
    batch_mixing.CHECK,
    stopping_rule.CHECK,
    not_finite.CHECK,
    tokens.CHECK,
    module_state.CHECK,
    pretrained.CHECK,
    loss_inputs.CHECK,
    loss_targets.CHECK,
    loss_reduction.CHECK,
    loss_sign.CHECK,
    gradients_reach.CHECK,
    initialisation.CHECK,
    independent_samples.CHECK,
    nonlinearity.CHECK,
    checkpoint_room.CHECK,
    missing_classes.CHECK,  # from here on, warnings
    validation_size.CHECK,
    channels.CHECK,
    colour_order.CHECK,
    input_scale.CHECK,
    input_range.CHECK,
    input_size.CHECK,
    chance_level.CHECK,
    batch_norm.CHECK,
    weight_decay_groups.CHECK,
    checkpoint_keeping.CHECK,
    machine_limits.CHECK,
    not_finite_all.CHECK,  # from here on, tier FULL
    metric_recomputed.CHECK,
    parameters_move.CHECK,
    gradients_cleared.CHECK,
    duplicates.CHECK,
    label_alignment.CHECK,
    distribution.CHECK,
    seeds.CHECK,
    overfit_one_batch.CHECK,
    input_independent.CHECK,
    learning_rate.CHECK,
    validation_pass.CHECK,
    checkpoint_round_trip.CHECK,
    validation_repeats.CHECK,  # from here on, warnings
    worker_draws.CHECK,
    dataset_random.CHECK,
    reproducible.CHECK,
    ranks_differ.CHECK,
    baselines.CHECK,
    beats_baseline.CHECK,
)
