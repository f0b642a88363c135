"""Keys: equal for what is the same, another for what matters."""

from __future__ import annotations

import subprocess
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import stepladder
from stepladder.config.choices import ClimbAim
from stepladder.config.options import LadderConfig
from stepladder.config.recipe import BatchConfig, DataConfig, ModelConfig, Recipe
from stepladder.ladder.keys import (
    code_key,
    job_key,
    machine_key,
    options_key,
    recipe_key,
    recipe_values,
)

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


@pytest.mark.parametrize(
    ("option", "decides"),
    [
        ({"min_gain": 0.1}, True),
        ({"max_accuracy_loss": 0.03}, True),
        ({"time_per_point": 2.0}, True),
        ({"num_blocks": 9}, True),
        ({"num_seeds": 6}, True),
        ({"block_s": 1.0}, True),
        ({"aim": ClimbAim.ACCURACY}, True),
        ({"aim": ClimbAim.FIT}, True),
        ({"target_error": 0.1}, False),
        ({"budget_s": 60.0}, False),
        ({"try_all": True}, False),
        ({"max_cache_bytes": 1}, False),
        ({"prices": Path("prices.csv")}, False),
    ],
    ids=str,
)
def test_options_that_decide_a_verdict_count_and_others_do_not(
    option: dict[str, Any], decides: bool
) -> None:
    now = options_key(LadderConfig())
    assert (options_key(replace(LadderConfig(), **option)) != now) == decides


def test_what_nobody_gets_right_counts_where_accuracy_is_the_aim() -> None:
    accuracy = replace(LadderConfig(), aim=ClimbAim.ACCURACY)
    assert options_key(replace(accuracy, target_error=0.1)) != options_key(accuracy)


def test_every_option_of_the_ladder_is_known_to_decide_or_not() -> None:
    told = {"min_gain", "max_accuracy_loss", "time_per_point", "num_blocks", "num_seeds", "block_s"}
    told |= {"aim", "target_error"}
    others = {"budget_s", "try_all", "max_cache_bytes", "prices"}
    assert {field.name for field in fields(LadderConfig)} == told | others


def test_modules_that_a_file_imports_from_its_folder_count_and_others_do_not(
    tmp_path: Path,
) -> None:
    file = tmp_path / "job.py"
    file.write_text(
        "import json\nfrom my_model import Net\n\ndef data():\n    import pack.images\n"
    )
    imported = ("my_model.py", "deep.py", "pack/__init__.py", "pack/images.py", "pack/side.py")
    (tmp_path / "pack").mkdir()
    for name in (*imported, "other.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "my_model.py").write_text("import deep\nimport my_model\n")
    (tmp_path / "pack" / "images.py").write_text("from . import side\n")

    def key() -> str:
        return job_key(f"{file}:Mine", Recipe(), num_train=1, fingerprints=DATA)

    before = key()
    for name in imported:
        path = tmp_path / name
        text = path.read_text()
        path.write_text(f"{text}x = 1\n")
        assert key() != before, name
        path.write_text(text)
    (tmp_path / "other.py").write_text("x = 1\n")
    assert key() == before
    (tmp_path / "deep.py").write_text("not python")
    assert key() != before, "what cannot be read as Python has no imports, but it counts"


def git(folder: Path, *words: str) -> str:
    name = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *name, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_code_is_its_commit_and_what_differs_from_it(tmp_path: Path) -> None:
    package = tmp_path / "src" / "package"
    (package / "rungs").mkdir(parents=True)
    rung = package / "rungs" / "it.py"
    rung.write_text("gain = 1\n")
    (tmp_path / "notes.md").write_text("one")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert code_key(package) == commit

    (tmp_path / "notes.md").write_text("two")
    (tmp_path / "job.py").write_text("")
    assert code_key(package) == commit, "no verdict depends on what is not the code"

    found = set()
    for text in ("gain = 2\n", "gain = 3\n"):
        rung.write_text(text)
        assert code_key(package) == code_key(package)
        found.add(code_key(package))
    rung.write_text("gain = 1\n")
    assert code_key(package) == commit
    rung.with_name("new.py").write_text("")
    found.add(code_key(package))
    assert len(found) == 3
    assert all(key.startswith(f"{commit}+") for key in found)


def test_code_outside_a_repository_is_its_version_whatever_lies_around_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")  # an environment inside somebody's own project
    package = tmp_path / "env" / "lib" / "site-packages" / "package"
    package.mkdir(parents=True)
    assert code_key(package) == stepladder.__version__


def test_code_that_git_says_nothing_of_counts_by_its_content(tmp_path: Path) -> None:
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    keys = []
    for text in ("x = 1\n", "x = 2\n", "x = 1\n"):
        (package / "it.py").write_text(text)
        keys.append(code_key(package))
    assert keys[0] == keys[2] != keys[1]


def test_a_file_of_weights_counts_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    recipe = Recipe(model=ModelConfig(weights=file))
    keys = []
    for content in (b"one", b"two", b"one"):
        file.write_bytes(content)
        keys.append(job_key("image_classification", recipe, num_train=1, fingerprints=DATA))
    assert keys[0] == keys[2] != keys[1]
