"""Use reading threads on all cores."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import (
    loader_threads,
    predict_time,
    scale_loading,
    why_no_data_advice,
)
from stepladder.rungs.reading_time import fetch_and_decode_s, from_store_s, still_from_the_store


class LoaderThreads(Rung):
    """Read and decode with one thread per core.

    The order of the examples does not depend on the threads that read them.

    Trades: memory for a few more pictures in flight; on a CPU, cores that the step could use.
    Source: Mohan et al. 2021, "Analyzing and Mitigating Data Stalls in DNN Training", 3,
    arXiv:2007.06775.
    """

    name: ClassVar[str] = "loader_threads"
    level: ClassVar[int] = 8
    exactness: ClassVar[Exactness] = Exactness.BITWISE

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if all cores read already, or a Dataset may not be thread-safe."""
        threads = recipe.loader.num_threads
        if profile.default_threads == 0:
            return "the data is read in the main thread, in order"
        if threads == 0 and profile.store_encoding is None:
            return "a Dataset may not be thread-safe; use --loader.threads N if this one is"
        if threads == 0 or threads >= profile.num_cores:
            return "already on: one thread per core"
        if profile.loader_cpu_s is None:
            return "not measured: the cost of reading"
        return why_no_data_advice(profile, recipe)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict reading as fast as the cores, the disk and the link allow."""
        (fetch_s, decode_s), cores = fetch_and_decode_s(profile), max(1, profile.num_cores)
        cpu_s = fetch_s + decode_s
        after = scale_loading(profile, recipe, threads=cores, cpu_s=cpu_s, cpu_s_after=cpu_s)
        after = still_from_the_store(after, profile, recipe)
        num_examples = profile.num_train + profile.num_val
        inputs = {
            "threads": float(loader_threads(profile, recipe.loader)),
            "num_cores": float(cores),
            "loader_fetch_s": fetch_s,
            "loader_decode_s": decode_s,
            "store_s": from_store_s(profile, recipe, num_examples=num_examples),
        }
        return predict_time(self.name, profile, after, inputs=inputs)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Set one thread per core."""
        return replace(recipe, loader=replace(recipe.loader, threads=profile.num_cores))
