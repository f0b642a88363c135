"""Confidence intervals and paired comparisons."""

from stepladder.stats.change import Pairs, paired_change, resolvable_margin
from stepladder.stats.estimates import Estimate, binomial_sem, mean_estimate, paired_improvement
from stepladder.stats.next_draw import MIN_DRAWS, next_draw_bounds
from stepladder.stats.speed import (
    MIN_BLOCKS,
    autocorrelation_length,
    choose_num_blocks,
    combined_speedup,
    speedup_interval,
)
from stepladder.stats.student import t_quantile

__all__ = [
    "MIN_BLOCKS",
    "MIN_DRAWS",
    "Estimate",
    "Pairs",
    "autocorrelation_length",
    "binomial_sem",
    "choose_num_blocks",
    "combined_speedup",
    "mean_estimate",
    "next_draw_bounds",
    "paired_change",
    "paired_improvement",
    "resolvable_margin",
    "speedup_interval",
    "t_quantile",
]
