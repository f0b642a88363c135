"""Why a rung cannot be tried here: its own reason, nothing that it enables, or too little disk."""

from __future__ import annotations

from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.ladder.together import why_nothing_enabled
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung


def why_not_here(rung: Rung, profile: Profile, recipe: Recipe, options: LadderConfig) -> str | None:
    """Say in words why a rung cannot be tried, or None."""
    refusal = rung.why_not(profile, recipe) or why_nothing_enabled(rung, profile, recipe)
    if refusal is not None:
        return refusal
    needed, allowed = rung.disk_bytes(profile, recipe), options.max_cache_bytes
    if needed <= allowed:
        return None
    return f"takes {_size(needed)} of disk, and ladder.max_cache_bytes allows {_size(allowed)}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
