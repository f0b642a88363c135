"""Let Ray Tune's scheduler of populations train and select the members, on a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepladder.config.choices import Perturbed, Selection
from stepladder.config.options import JobConfig, PopulationConfig
from stepladder.errors import ResourceError, UsageError
from stepladder.parallel.launch.ray import using_ray
from stepladder.populations.genes import Gene, Scale, Values
from stepladder.records.from_json import from_json
from stepladder.records.population import Moment, Score

RAY_STORAGE: Final = "ray"


@dataclass(frozen=True, kw_only=True)
class RayRun:
    """What Ray Tune has trained.

    Attributes:
        moments: of all members in all intervals.
        checkpoints: names by (interval, member).
    """

    moments: tuple[Moment, ...]
    checkpoints: Mapping[tuple[int, int], str]


def train_on_ray(
    job: JobConfig,
    genes: Sequence[Gene],
    *,
    config: Path,
    task: str,
    folder: Path,
    interval: int,
    num_intervals: int,
    is_cuda: bool = False,
) -> RayRun:
    """Train a population by Ray Tune.

    Checkpoints are in the run folder, which all nodes of the cluster have to see. A run that ends
    early begins again.

    Args:
        config: YAML file of the job, with all choices made.
        task: name of the Task, for `load_task`.
        folder: of the checkpoints.
        interval: examples between two selections.
        is_cuda: each member trains on a GPU.

    Raises:
        UsageError: if Ray is not installed, or an option is not one of Tune's scheduler.
        ResourceError: if the cluster cannot be used, or a member failed.
    """
    _require_options(job)
    with using_ray(1):
        from ray import tune
        from ray.tune.schedulers import PopulationBasedTraining

        from stepladder.populations.ray_member import JOB, RayMember

        options = job.population
        spec = {
            "config": str(config.absolute()),
            "task": task,
            "folder": str(folder.absolute()),
            "interval": interval,
            "threads": 1,
            "seeds": {f"{idx:05d}": idx for idx in range(options.members)},
        }
        scheduler = PopulationBasedTraining(
            time_attr="training_iteration",
            metric="loss",
            mode="min",
            perturbation_interval=1,
            hyperparam_mutations={gene.key: _drawn(gene) for gene in genes},
            quantile_fraction=options.top_frac,
            resample_probability=options.redraw_frac,
            perturbation_factors=(options.factor, 1 / options.factor),
            synch=True,
        )
        stop: dict[str, Any] = {"training_iteration": num_intervals}
        if job.recipe.schedule.max_time_s is not None:
            stop["time_total_s"] = job.recipe.schedule.max_time_s
        tuner = tune.Tuner(
            tune.with_resources(RayMember, {"cpu": 1, "gpu": int(is_cuda)}),
            param_space={JOB: spec, **{gene.key: _space(gene) for gene in genes}},
            tune_config=tune.TuneConfig(
                scheduler=scheduler, num_samples=options.members, reuse_actors=True
            ),
            run_config=tune.RunConfig(
                name="population",
                storage_path=str((job.run.dir / RAY_STORAGE).absolute()),
                stop=stop,
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_frequency=1, checkpoint_at_end=True
                ),
                log_to_file=True,
            ),
        )
        found = tuner.fit()
        if found.errors:
            raise ResourceError(
                f"a member failed on Ray ({str(found.errors[0]).strip().splitlines()[-1]})",
                where=str(job.run.dir / RAY_STORAGE),
                fix="Look at the files error.txt in that folder.",
            )
        return _moments(found, genes)


def _require_options(job: JobConfig) -> None:
    """Raise UsageError for what Tune's scheduler does not do."""
    options = job.population
    others = {
        "population.selection": options.selection is not Selection.TRUNCATION,
        "population.perturbed": options.perturbed is not Perturbed.COPIES,
        "population.target": options.target is not None,
        "population.patience": options.patience != PopulationConfig.patience,
    }
    other = next((name for name, is_set in others.items() if is_set), None)
    if other is not None:
        raise UsageError(
            f"{other} is not an option of Ray Tune's scheduler",
            where="population.engine",
            fix=f"Leave out {other}, or use --population.engine slices.",
        )


def _space(gene: Gene) -> Any:
    """Return Tune's distribution of first values."""
    from ray import tune

    if gene.choices:
        return tune.choice(list(gene.choices))
    if gene.levels:
        return tune.choice([gene.fitted(level) for level in gene.levels])
    if gene.is_whole:
        return tune.randint(round(gene.low), round(gene.high) + 1)
    is_log = gene.scale is Scale.LOG
    return (tune.loguniform if is_log else tune.uniform)(gene.low, gene.high)


def _drawn(gene: Gene) -> Any:
    """Return what the scheduler draws new values by: a list of choices, or a distribution."""
    if gene.levels:  # of which Ray takes the next
        return [gene.fitted(level) for level in gene.levels]
    return list(gene.choices) if gene.choices else _space(gene)


def _moments(found: Any, genes: Sequence[Gene]) -> RayRun:
    """Return moments from the results of all trials."""
    ids = {result.metrics["trial_id"]: idx for idx, result in enumerate(found)}
    moments, checkpoints = [], {}
    for idx, result in enumerate(found):
        frame = result.metrics_dataframe.drop_duplicates("training_iteration", keep="last")
        for _, row in frame.iterrows():
            told = json.loads(row["moment"])
            generation = int(row["training_iteration"]) - 1
            score: Score = from_json(Score, told["score"])
            values: Values = tuple(told["genes"])
            moments.append(
                Moment(
                    generation=generation,
                    member=idx,
                    parent=ids[told["parent"]],
                    genes={gene.key: v for gene, v in zip(genes, values, strict=True)},
                    score=score,
                )
            )
            if score.is_finite:
                checkpoints[generation, idx] = str(row["checkpoint"])
    moments.sort(key=lambda moment: (moment.generation, moment.member))
    return RayRun(moments=tuple(moments), checkpoints=checkpoints)
