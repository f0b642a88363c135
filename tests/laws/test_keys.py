"""Each option of a recipe is known to change what is learned, and how long a step takes, or not."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.config.schema import Option, build, options
from stepladder.ladder.keys import execution_key, learning_key

OPTIONS = tuple(option for option in options().values() if option.path[0] == "recipe")
LEARNS_THE_SAME = {
    "deterministic",
    "data.where",
    "data.verify_pages",
    "data.decode_once",
    "data.cache_dir",
    "data.max_cache_bytes",
    "data.table_version",  # fixed when a run starts; other data is another job
    "loader.threads",
    "loader.prefetch_batches",
    "device.count",  # the batch and its order are global
    "device.replicas",  # likewise
    "device.all_reduce",
    "device.all_reduce_fit",
    "device.buckets",
    "device.sharded",
    "device.tensor_parallel",
    "device.pipeline_stages",
    "device.pipeline_schedule",
    "device.micro_batches",
    "device.sync_batchnorm",  # a climb measures learning on one device
    "model.fold_batchnorm",
    "features.cached",
    "features.cached_views",  # without features.cached
    "optimizer.fused",
    "device.kind",
    "device.memory_format",
    "device.keep_freed_memory",
    "device.compile",
    "device.gradient_checkpointing",
    "device.threads",
}
"""Options that change nothing but rounding in what is learned."""
STEPS_TAKE_AS_LONG = {
    "batch.lr",
    "batch.lr_all",
    "batch.lr_rule",
    "batch.base_batch_size",
    "schedule.max_epochs",
    "schedule.max_steps",
    "schedule.max_time_s",
    "schedule.kind",
    "schedule.horizon_epochs",
    "schedule.warmup_steps",
    "schedule.min_lr_frac",
    "stopping.early",
    "stopping.monitor",
    "stopping.patience",
    "stopping.min_improvement_frac",
    "stopping.allow_noise",
    "stopping.restore_best",
    "stopping.validate_every_epochs",
    "stopping.validate_every_steps",
}
"""Options that do not change the time of a step or of a validation."""
OTHERS: dict[type, Any] = {bool: (True, False), float: (0.5,), str: ("other",)}
each_option = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)


def recipe_with(option: Option) -> Recipe:
    """Return a recipe in which only this option differs from its default."""
    kind = option.wanted.kinds[0]
    if issubclass(kind, StrEnum):
        values = tuple(kind)
    elif kind is int:
        values = (option.default + 1 if isinstance(option.default, int) else 1,)
    else:
        values = OTHERS.get(kind, (Path("other"),))
    other = next(value for value in values if value != option.default)
    return build({option.key: other}, JobConfig()).recipe


@each_option
def test_what_an_option_learns_is_known(option: Option) -> None:
    learns_the_same = learning_key(recipe_with(option)) == learning_key(Recipe())
    assert learns_the_same == (option.key in LEARNS_THE_SAME), (
        f"{option.key}: if it may change what is learned, keep it in `learning_key` "
        "(src/stepladder/ladder/keys.py); else reset it there and list it in LEARNS_THE_SAME"
    )


@each_option
def test_how_long_a_step_takes_with_an_option_is_known(option: Option) -> None:
    takes_as_long = execution_key(recipe_with(option)) == execution_key(Recipe())
    assert takes_as_long == (option.key in STEPS_TAKE_AS_LONG), (
        f"{option.key}: if it may change the time of a step, keep it in `execution_key` "
        "(src/stepladder/ladder/keys.py); else reset it there and list it in STEPS_TAKE_AS_LONG"
    )
