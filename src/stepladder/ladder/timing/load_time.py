"""What it takes to fill memory with the examples, of two recipes that read them otherwise."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Final

from stepladder.config.choices import Where
from stepladder.config.recipe import Recipe
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import Watchdog
from stepladder.records.profile import Profile
from stepladder.training.setup.build import make_train_reader

_LOOKS: Final = 8  # at each side, and one before that meets cold pages
_LOOK_S: Final = 0.2
_MIN_ROWS: Final = 32

Looks = tuple[float, ...]


def loading_s(
    lab: Lab, profile: Profile, before: Recipe, after: Recipe, *, watchdog: Watchdog
) -> tuple[Looks, Looks]:
    """Give looks at the seconds to fill memory before and after; empty where nothing is loaded.

    What the profile found where both read alike, or `after` loads nothing. Elsewhere memory is
    filled in turn with a sample of the examples, as each recipe reads them.
    """
    known_s = profile.time.one_time_s.get("load")
    sides = (before, after)
    if known_s is None or not any(_is_loaded(recipe) for recipe in sides):
        return (), ()
    if _reading(before) == _reading(after) or not _is_loaded(after):
        first, second = ((known_s,) if _is_loaded(recipe) else () for recipe in sides)
        return first, second
    num_known = profile.num_train + profile.num_val
    num_rows = max(_MIN_ROWS, math.ceil(_LOOK_S * num_known / max(known_s, 1e-9)))
    num_val = 0 if lab.sources.val is None else len(lab.sources.val)
    looks: tuple[list[float], list[float]] = ([], [])
    for at in range(1 + _LOOKS):
        for side in (0, 1) if at % 2 == 0 else (1, 0):
            if _is_loaded(sides[side]):
                watchdog.expect(_LOOK_S)
                example_s = _example_s(lab, sides[side], num_rows)
                looks[side].append(example_s * (lab.num_train(sides[side]) + num_val))
    return tuple(looks[0][1:]), tuple(looks[1][1:])


def _is_loaded(recipe: Recipe) -> bool:
    return recipe.data.where is Where.MEMORY and not recipe.features.cached


def _reading(recipe: Recipe) -> object:
    """Give what decides how long it takes to load."""
    return recipe.loader, recipe.data


def _example_s(lab: Lab, recipe: Recipe, num_rows: int) -> float:
    """Fill memory with so many training examples, or all; gives the seconds of one."""
    source = lab.material(recipe).sources.train
    data = replace(recipe.data, fraction=min(1.0, num_rows / len(source)), where=Where.MEMORY)
    reader = make_train_reader(replace(recipe, data=data), source)
    batches = reader.endless()
    try:
        started = time.perf_counter()
        next(batches)
        return (time.perf_counter() - started) / reader.num_examples
    finally:
        batches.close()
        reader.close()
