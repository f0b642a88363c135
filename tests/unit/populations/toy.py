"""The toy of the paper on population based training: two weights, two genes, a known optimum.

The score 1.2 - a² - b² is to be maximised, but members only see 1.2 - h0 a² - h1 b². Two members
with the genes (1, 0) and (0, 1) that never take from each other end at 0.39.

Source: Jaderberg et al. 2017, arXiv:1711.09846, figure 2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepladder.config.options import PopulationConfig
from stepladder.populations.genes import Gene, Values
from stepladder.populations.population import Limits, Population
from stepladder.records.population import Score

BEST = 1.2
STALLED = 1.2 - 0.9**2
GENES = (Gene(key="h0"), Gene(key="h1"))


class ToyMembers:
    """Members with two weights each; an example is a step."""

    def __init__(self, num: int = 2, lr: float = 0.01) -> None:
        self.weights = np.full((num, 2), 0.9)
        self.kept = np.zeros(2)
        self.lr = lr
        self.calls: list[str] = []

    def train(self, values: Sequence[Values], num_examples: int) -> None:
        self.calls.append("train")
        rates = np.array(values, dtype=float)
        for _ in range(num_examples):
            self.weights -= self.lr * 2 * rates * self.weights

    def scores(self) -> list[Score]:
        return [Score(loss=-self.quality(weights)) for weights in self.weights]

    def quality(self, weights) -> float:
        return float(BEST - (weights**2).sum())

    def inherit(self, parents: Sequence[int]) -> None:
        self.calls.append("inherit")
        self.weights = self.weights[list(parents)]

    def keep(self, member: int) -> None:
        self.kept = self.weights[member].copy()

    def judge(self) -> tuple[Score, Score] | None:
        return None

    def kept_weights(self):
        return {}

    def save(self, folder: Path, name: str) -> None:
        self.calls.append("save")
        state = {"weights": self.weights.tolist(), "kept": self.kept.tolist()}
        (folder / name).write_text(json.dumps(state))

    def load(self, folder: Path, name: str) -> None:
        state = json.loads((folder / name).read_text())
        self.weights, self.kept = np.array(state["weights"]), np.array(state["kept"])

    def close(self) -> None:
        pass


def toy(folder: Path, members: ToyMembers, *, steps: int = 200, **options) -> Population:
    """Return the population of the toy, which selects every ten steps."""
    settings = {"members": len(members.weights), "top_frac": 0.5, "patience": 1000, **options}
    return Population(
        members=members,
        genes=GENES,
        config=PopulationConfig(**settings),
        seed=0,
        limits=Limits(examples=steps),
        interval=10,
        folder=folder,
        key="toy",
        own=(1.0, 0.0),
    )
