"""Several ranks give what one rank gives with the same global batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import stepladder
from tests.ranks.tasks import SIZES
from tests.ranks.together import TASKS, run_ranks

WORLDS = (2, pytest.param(3, marks=pytest.mark.distributed))
QUICK = ("full", "features", "accumulation", "early", "synced_norm", "mixup", "small_batch")
COMMON = {
    "run.checks": "off",
    "run.log_every": 2,
    "batch.global_batch_size": 8,
    "batch.lr": 0.05,
    "schedule.max_epochs": 3,
    "stopping.early": False,
    "optimizer.name": "sgd",
    "train": "all",
}
SCENARIOS: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "head": {"train": "head", "features.cached": False},
    "features": {"train": "head", "features.cached": True},
    "frozen_norm": {"train": "head", "task": "WithNorm", "features.cached": False},
    "two_stages": {"train": "head_then_all", "schedule.max_epochs": 2},
    "accumulation": {"batch.micro_batch_size": 2},
    "clipping": {"optimizer.clip_norm": 0.1},
    "adamw": {"optimizer.name": "adamw", "batch.lr": 0.01},
    "kfac": {
        "optimizer.name": "kfac",
        "optimizer.inverse_every": 3,
        "optimizer.damping": 0.1,
        "batch.lr": 0.01,
    },
    "kfac_passes": {
        "optimizer.name": "kfac",
        "optimizer.damping": 0.1,
        "batch.lr": 0.003,
        "batch.micro_batch_size": 2,
        "batch.global_batch_size": 3,
    },
    "early": {"stopping.early": True, "stopping.patience": 1, "schedule.max_epochs": 12},
    "idle": {"task": "WithIdle", "optimizer.weight_decay": 0.1},
    "bf16": {"device.precision": "bf16"},
    "synced_norm": {"task": "WithNorm", "device.sync_batchnorm": True},
    "synced_norm_small": {
        "task": "WithNorm",
        "device.sync_batchnorm": True,
        "batch.global_batch_size": 3,
        "schedule.max_epochs": 1,
    },
    "mixup": {"task": "Mixing", "augment.mixup_alpha": 0.4},
    "small_batch": {"batch.global_batch_size": 3},
    "one_held_out": {"task": "OneHeldOut", "schedule.max_epochs": 1},
}
TOLERANCE = {"bf16": 2e-2}


def calls(folder: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the calls of `train` for scenarios."""
    made = []
    for name in names:
        settings = {**COMMON, **SCENARIOS[name]}
        task = settings.pop("task", "Plain")
        made.append({"task": f"{TASKS}:{task}", "dir": str(folder / name), **settings})
    return made


class Runs(dict[tuple[int, bool], Path]):
    """The folders of scenarios by the size of the world and whether they are quick.

    They are trained when they are asked for.
    """

    def __init__(self, new_folder: Callable[[str], Path]) -> None:
        super().__init__()
        self._new_folder = new_folder

    def __missing__(self, key: tuple[int, bool]) -> Path:
        num, is_quick = key
        folder = self._new_folder(f"world-{num}")
        names = [name for name in SCENARIOS if (name in QUICK) is is_quick]
        if num == 1:
            for call in calls(folder, names):
                stepladder.train(**call)
        else:
            run_ranks(num, calls(folder, names), folder)
        self[key] = folder
        return folder

    def of(self, num: int, name: str) -> Path:
        """Return the folder of a scenario."""
        return self[num, name in QUICK] / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp)


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind."""
    rows = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [row for row in rows if row["event"] == kind]


def weights(run: Path) -> dict[str, np.ndarray]:
    """Return the trained weights of the last checkpoint."""
    last = max((run / "checkpoints").glob("step-*"))
    found = [load_file(path) for path in sorted(last.glob("model*.safetensors"))]
    assert found, sorted(path.name for path in last.iterdir())
    return {name: array for one in found for name, array in one.items()}


@pytest.mark.parametrize("num", WORLDS)
@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.distributed)
        for name in SCENARIOS
    ],
)
def test_ranks_give_what_one_rank_gives(runs: Runs, name: str, num: int) -> None:
    """Losses by step and by validation, weights and the end of training are equal to rounding."""
    one, several = runs.of(1, name), runs.of(num, name)
    close = {"rtol": TOLERANCE.get(name, 2e-4), "atol": TOLERANCE.get(name, 1e-5)}
    for kind, fields in (("train", ("step", "train_loss")), ("validation", ("step", "val_loss"))):
        for field in fields:
            before = [row[field] for row in events(one, kind)]
            after = [row[field] for row in events(several, kind)]
            np.testing.assert_allclose(after, before, **close)
    before, after = weights(one), weights(several)
    assert before.keys() == after.keys()
    for key in before:
        np.testing.assert_allclose(after[key], before[key], **close)
    summaries = [json.loads((run / "summary.json").read_text()) for run in (one, several)]
    for key in ("stop_reason", "epochs", "steps", "best_epoch", "num_val"):
        assert summaries[0][key] == summaries[1][key], key
    assert summaries[1]["devices"] == num


@pytest.mark.parametrize("num", WORLDS)
def test_every_held_out_example_is_counted_once(runs: Runs, num: int) -> None:
    rows = (runs.of(num, "full") / "predictions.csv").read_text().splitlines()[1:]
    found = [tuple(row.split(",")[:2]) for row in rows]
    wanted = [(split.value, str(idx)) for split, n in SIZES.items() for idx in range(n)]
    assert sorted(found) == sorted(one for one in wanted if one[0] != "train")


def test_ranks_that_do_not_write_have_a_log(runs: Runs) -> None:
    logs = {path.name for path in (runs.of(2, "full") / "logs").iterdir()}
    assert logs == {"rank-0.log", "rank-1.log"}
