"""Keys: equal for what is the same, another for what matters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stepladder.config.recipe import BatchConfig, DataConfig, Recipe
from stepladder.ladder.keys import job_key, machine_key, recipe_key, recipe_values

DATA = {"train": "a", "val": "b", "test": None}


def test_a_recipe_has_one_key_wherever_its_store_lies() -> None:
    moved = replace(Recipe(), data=DataConfig(store=Path("elsewhere")))
    assert recipe_key(moved) == recipe_key(Recipe())
    assert recipe_key(replace(Recipe(), batch=BatchConfig(lr=0.5))) != recipe_key(Recipe())


def test_recipe_values_hold_the_recipe_and_nothing_else() -> None:
    values = recipe_values(Recipe())
    assert values["batch.lr"] == 1e-3
    assert not [key for key in values if key.startswith(("run.", "prepare.", "ladder."))]


def test_a_job_is_its_task_its_data_and_its_recipe() -> None:
    base = job_key("image_classification", Recipe(), num_train=5, fingerprints=DATA)
    assert base == job_key("image_classification", Recipe(), num_train=5, fingerprints=dict(DATA))
    others = [
        job_key("image_classification", Recipe(seed=1), num_train=5, fingerprints=DATA),
        job_key("image_classification", Recipe(), num_train=6, fingerprints=DATA),
        job_key("image_classification", Recipe(), num_train=5, fingerprints=DATA | {"val": "c"}),
    ]
    assert len({base, *others}) == 4


def test_a_file_of_ones_own_counts_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    keys = []
    for text in ("x = 1\n", "x = 2\n", "x = 1\n"):
        file.write_text(text)
        keys.append(job_key(f"{file}:Mine", Recipe(), num_train=1, fingerprints=DATA))
    assert keys[0] == keys[2] != keys[1]


def test_a_machine_has_one_key() -> None:
    assert machine_key() == machine_key()
