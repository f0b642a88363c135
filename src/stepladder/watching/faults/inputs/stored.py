"""Datasets that change the examples that they store."""

from __future__ import annotations

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.seen import Seen

_MIN_LOOKED = 8  # examples after the first whole pass
_MOST = 0.8  # of them


def stored_data_changes(seen: Seen) -> Answer:
    """Compares examples that a dataset stores before and after it returns them.

    This is done in the training process after the first whole pass, when what is computed once has
    been computed. Examples that no longer resemble themselves were replaced on purpose.
    """
    is_trained = any(one.training for one in seen.loaders)
    looked = [one for one in seen.stored if one.num_looked >= _MIN_LOOKED]
    if not looked or not is_trained:
        return Unseen("no dataset with examples in memory was read again after a whole pass")
    for one in looked:
        if one.num_changed >= _MOST * one.num_looked:
            return Found(
                evidence=f"{one.num_changed} of {one.num_looked} inspected examples in "
                f"{one.attribute} of {one.dataset} were changed in place when they were read "
                f"again: changes add up from epoch to epoch (std {one.first_std:.3g} at first, "
                f"{one.last_std:.3g} at last)",
                fix="Copy an example before changing it: img = self.x[i].copy(), or .clone() for "
                "a tensor.",
                where=one.where,
                numbers={"num_looked": one.num_looked, "num_changed": one.num_changed},
            )
    return Sound("datasets did not change the examples that they store")
