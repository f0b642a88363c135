"""A population against random search and successive halving, at the same budget.

    python -m bench.populations.against_search [STORE] [--seeds N] [--log FILE]

Linear heads on the demo's features. All three spend as many epochs of heads: 16 members for 24
epochs; 16 random settings for 24 epochs; and 32 settings of which the better half trains on after
4, then 8 more, then 16 more epochs. Each keeps the best head that it has seen on the validation
split, after any epoch, and that one is judged on the test split, which chose nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.log import Log
from bench.populations.features import Features, arguments, features_of, genes_for
from bench.rows import write_rows
from stepladder.config.choices import Perturbed, Selection
from stepladder.config.options import PopulationConfig
from stepladder.populations.heads import HeadMembers
from stepladder.populations.population import Limits, Population
from stepladder.populations.selection import first_values, ranked
from stepladder.records.population import Score
from stepladder.stats.estimates import mean_estimate
from stepladder.stats.student import t_quantile

MEMBERS: Final = 16
EPOCHS: Final = 24
HALVING: Final = ((32, 4), (16, 8), (8, 16))
BATCH: Final = 16


def population(features: Features, seed: int, **options: Any) -> tuple[Score, Score]:
    """Return the winner's scores on validation and test."""
    genes = genes_for(features.recipe)
    members = features.members(MEMBERS, genes=genes, seed=1000 * seed)
    with tempfile.TemporaryDirectory() as folder:
        state = Population(
            members=members,
            genes=genes,
            config=PopulationConfig(members=MEMBERS, patience=10_000, **options),
            seed=seed,
            limits=Limits(examples=EPOCHS * features.num_train),
            interval=features.num_train,
            folder=Path(folder),
            key="",
        ).run()
    assert state.best is not None
    return state.best.score, _judged(members)


def random_search(features: Features, seed: int) -> tuple[Score, Score]:
    """Train settings drawn at random to the end."""
    genes = genes_for(features.recipe)
    members = features.members(MEMBERS, genes=genes, seed=1000 * seed)
    values = first_values(genes, MEMBERS, seed=seed)
    best: Score | None = None
    for _ in range(EPOCHS):
        members.train(values, features.num_train)
        best = _better(members, best)
    assert best is not None
    return best, _judged(members)


def successive_halving(features: Features, seed: int) -> tuple[Score, Score]:
    """Train many settings for a short time, and the better half of them for longer."""
    genes = genes_for(features.recipe)
    num = HALVING[0][0]
    members = features.members(num, genes=genes, seed=1000 * seed)
    values = list(first_values(genes, num, seed=seed))
    best: Score | None = None
    for rung, (left, epochs) in enumerate(HALVING):
        if rung:
            # the better ones are moved to the front; the others are trained on, and not counted
            order = ranked([score.loss for score in members.scores()[: HALVING[rung - 1][0]]])
            parents = [*order[:left], *order[:left] * num][:num]
            members.inherit(parents)
            members._orders = [members._orders[idx] for idx in parents]
            members._rows = None
            values = [values[idx] for idx in parents]
        for _ in range(epochs):
            members.train(values, features.num_train)
            best = _better(members, best, left)
    assert best is not None
    return best, _judged(members)


def _better(members: HeadMembers, best: Score | None, left: int | None = None) -> Score:
    """Keep the best head, if it is better than the one before."""
    scores = members.scores()[:left]
    first = ranked([score.loss for score in scores])[0]
    if best is None or scores[first].loss < best.loss:
        members.keep(first)
        return scores[first]
    return best


def _judged(members: HeadMembers) -> Score:
    judged = members.judge()
    assert judged is not None
    return judged[0]


ARMS: Final[dict[str, Callable[[Features, int], tuple[Score, Score]]]] = {
    "random search": random_search,
    "successive halving": successive_halving,
    "population, truncation": population,
    "population, top_k, copies": lambda features, seed: population(
        features, seed, selection=Selection.TOP_K
    ),
    "population, top_k, winners": lambda features, seed: population(
        features, seed, selection=Selection.TOP_K, perturbed=Perturbed.WINNERS
    ),
}


def main() -> None:
    """Run all arms from several seeds, and write the results."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    log = Log(args.log or Path(tempfile.mkdtemp()) / "log.jsonl")
    features = features_of(args.store).with_batch(BATCH)
    for seed in range(args.seeds):
        for name, arm in ARMS.items():
            if log.find(seed=seed, arm=name) is None:
                val, test = arm(features, seed)
                log.add(
                    {
                        "seed": seed,
                        "arm": name,
                        "val_loss": val.loss,
                        "val_accuracy": val.accuracy,
                        "test_loss": test.loss,
                        "test_accuracy": test.accuracy,
                    }
                )
                print(seed, name, f"{val.loss:.4f} {test.loss:.4f} {test.accuracy}", flush=True)
    rows = [_row(log, name) for name in ARMS]
    note = (
        f"Linear heads on the demo's features, {MEMBERS * EPOCHS} epochs of heads in each search; "
        "the best head on validation, after any epoch, is judged on test. Means of "
        f"{args.seeds} seeds; against random search with the same seeds, with 95 % intervals "
        "(Student's t); a lower loss and a higher accuracy are better."
    )
    write_rows("against_search", rows, note=note, rounds=log.records, place=log.environment)


def _row(log: Log, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"search": name}
    for key, unit in (("val_loss", 1.0), ("test_loss", 1.0), ("test_accuracy", 100.0)):
        own, base = (
            np.array([unit * r[key] for r in log.records if r.get("arm") == arm])
            for arm in (name, "random search")
        )
        digits = 1 if unit > 1 else 4
        row[key] = f"{own.mean():.{digits}f}"
        if name != "random search":
            found = mean_estimate(own - base)
            half = t_quantile(0.975, len(own) - 1) * found.sem
            row[f"{key}, difference"] = (
                f"{found.mean:+.{digits}f} [{found.mean - half:+.{digits}f}, "
                f"{found.mean + half:+.{digits}f}]"
            )
        else:
            row[f"{key}, difference"] = "–"
    return row


if __name__ == "__main__":
    main()
