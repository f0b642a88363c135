"""Keys: equal for the same inputs, different if anything relevant differs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stepladder
from stepladder.checks.contract import Tier
from stepladder.checks.examples import Example
from stepladder.checks.job import open_job
from stepladder.checks.order import CHECKS
from stepladder.checks.run import run_checks
from stepladder.config.choices import BaselineAt, ClimbAim, MemoryFormat, Precision, Where
from stepladder.config.options import JobConfig, LadderConfig, PrepareConfig, RunConfig
from stepladder.config.recipe import BatchConfig, DataConfig, FeaturesConfig, ModelConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.ladder.keys import (
    code_key,
    execution_key,
    findings_key,
    instrument_recipe,
    job_key,
    learning_key,
    loose_code,
    machine_key,
    options_key,
    recipe_key,
    recipe_values,
    task_facts,
)
from stepladder.task import Task
from stepladder.task.image_classification import ImageClassification

DATA = {"train": "a", "val": "b", "test": None}


def test_a_recipe_has_one_key_wherever_its_store_is() -> None:
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


def test_a_users_file_counts_by_its_content(tmp_path: Path) -> None:
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
        ({"devices": 2}, False),
        ({"network_gbit_s": 10.0}, False),
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
    others = {"budget_s", "try_all", "max_cache_bytes", "prices", "devices", "network_gbit_s"}
    assert {field.name for field in fields(LadderConfig)} == told | others, (
        "does a new option decide a verdict? list it in `told`, and in `_DECIDING` of "
        "src/stepladder/ladder/keys.py, or in `others`"
    )


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
    assert key() != before, "a file that is not Python has no imports, but it counts"


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
    assert code_key(package) == commit, "verdicts depend on code only"

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


def test_code_outside_a_repository_is_its_version_whatever_is_around_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")  # an environment inside a user's own project
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


BASE = Recipe()
FAST = {
    "threads": replace(BASE, loader=replace(BASE.loader, threads=3)),
    "where": replace(BASE, data=replace(BASE.data, where=Where.STREAM)),
    "decoded once": replace(BASE, data=replace(BASE.data, decode_once=True)),
    "layout": replace(BASE, device=replace(BASE.device, memory_format=MemoryFormat.CHANNELS_LAST)),
    "compiled": replace(BASE, device=replace(BASE.device, compile=True)),
    "fused": replace(BASE, optimizer=replace(BASE.optimizer, fused=True)),
    "folded": replace(BASE, model=replace(BASE.model, fold_batchnorm=True)),
    "features": replace(BASE, features=FeaturesConfig(cached=True)),
}
LEARNT = {
    "precision": replace(BASE, device=replace(BASE.device, precision=Precision.BF16)),
    "decoding": replace(BASE, loader=replace(BASE.loader, scaled_decode=False)),
    "batch": replace(BASE, batch=replace(BASE.batch, global_batch_size=32)),
    "views": replace(BASE, features=FeaturesConfig(cached=True, cached_views=2)),
    "model": replace(BASE, model=replace(BASE.model, name="resnet18")),
    "seed": replace(BASE, seed=1),
    "epochs": replace(BASE, schedule=replace(BASE.schedule, max_epochs=3)),
    "stopping": replace(BASE, stopping=replace(BASE.stopping, patience=9)),
}


@pytest.mark.parametrize("recipe", FAST.values(), ids=FAST.keys())
def test_what_only_speeds_up_is_not_learnt_again(recipe: Recipe) -> None:
    assert recipe != BASE
    assert learning_key(recipe) == learning_key(BASE)
    assert execution_key(recipe) != execution_key(BASE)


@pytest.mark.parametrize("recipe", LEARNT.values(), ids=LEARNT.keys())
def test_what_changes_learning_is(recipe: Recipe) -> None:
    assert learning_key(recipe) != learning_key(BASE)


@pytest.mark.parametrize("name", ["epochs", "stopping"])
def test_the_length_of_a_training_changes_no_step(name: str) -> None:
    assert execution_key(LEARNT[name]) == execution_key(BASE)


def test_the_instrument_keeps_the_precision_and_takes_the_fast_layout() -> None:
    wanted = instrument_recipe(LEARNT["precision"])
    assert wanted.device.precision is Precision.BF16
    assert wanted.device.memory_format is MemoryFormat.CHANNELS_LAST
    assert not instrument_recipe(FAST["compiled"]).device.compile


Cells = Callable[..., Any]
NOTEBOOK = """
import torch
from torch import nn
from stepladder.task import Task

WIDTH = 8
WEIGHTS = [1.0, 5.0]
seed = 0

def scaled(x, kinds={"a", "b", "c"}):
    return x * 2

twice = lambda x: x + x
thrice = lambda x: x + x + x

class Net(nn.Module):
    slope = 0.1

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, WIDTH)

    def forward(self, x):
        return nn.functional.leaky_relu(self.layer(scaled(x)), self.slope)

class Digits(Task):
    def build_model(self, recipe):
        torch.manual_seed(recipe.seed)
        return Net()

    def data(self, split):
        return None

    @torch.no_grad()
    def metrics(self, model, batch):
        return twice(thrice(batch)), WEIGHTS[0]

    @property
    def width(self):
        return 7

    def loss(self, model, batch):
        return [value for value in (model(batch.inputs),) if value in {"a", "b", "c"}]

def not_called(x):
    return x - 1
"""


@pytest.fixture(name="cells")
def _cells() -> Iterator[Cells]:
    """Run notebook cells: code of a module without a file."""
    name = "a_notebook"

    def run(text: str) -> Any:
        module = ModuleType(name)
        sys.modules[name] = module
        exec(compile(text, "<cell>", "exec"), module.__dict__)
        return module

    yield run
    del sys.modules[name]


class Wide(Task):
    """A model whose width is an option."""

    def __init__(
        self,
        width: int = 8,
        *,
        drop: float = 0.0,
        weights: object = None,
        store: Path | None = None,
    ) -> None:
        self.width, self.drop, self.weights, self.store = width, drop, weights, store
        self.num_built = 0

    def build_model(self, recipe: Recipe) -> nn.Module:
        self.num_built += 1
        return nn.Sequential(nn.Linear(2, self.width), nn.Dropout(self.drop))

    def data(self, split: object) -> None:
        return None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch.inputs).sum(dim=1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * 2", "x * 3"),
        ("WIDTH = 8", "WIDTH = 9"),
        ("slope = 0.1", "slope = 0.2"),
        ("leaky_relu", "celu"),
        ("return Net()", "return Net().double()"),
        ("WEIGHTS[0]", "WEIGHTS[1]"),
        ("[1.0, 5.0]", "[1.0, 6.0]"),
        ("x + x\n", "x - x\n"),
        ("x + x + x", "x + x - x"),
        ("return 7", "return 8"),
        ('{"a", "b", "c"}):\n    return', '{"a", "b"}):\n    return'),
    ],
    ids=[
        "a function",
        "a constant",
        "of the class",
        "a call",
        "of the task",
        "decorated",
        "a list",
        "a lambda",
        "another lambda",
        "a property",
        "a default",
    ],
)
def test_another_cell_of_a_notebook_is_another_job(cells: Cells, old: str, new: str) -> None:
    assert old in NOTEBOOK
    before = task_facts(cells(NOTEBOOK).Digits(), Recipe())
    after = task_facts(cells(NOTEBOOK.replace(old, new)).Digits(), Recipe())
    assert after["loose_code"] != before["loose_code"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("x - 1", "x - 2"),
        ("\ndef scaled", "\n\n# said once more\ndef scaled"),
        ("seed = 0", "seed = 1"),
    ],
    ids=["run again", "not called", "a comment", "a value of an attribute's name"],
)
def test_the_same_cells_are_the_same_job(cells: Cells, old: str, new: str) -> None:
    before = task_facts(cells(NOTEBOOK).Digits(), Recipe())
    assert task_facts(cells(NOTEBOOK.replace(old, new)).Digits(), Recipe()) == before


def test_the_same_cells_are_the_same_job_in_another_process(cells: Cells) -> None:
    code = (
        "import sys, types; from stepladder.ladder.keys import loose_code;"
        "module = types.ModuleType('a_notebook'); sys.modules['a_notebook'] = module;"
        "exec(sys.stdin.read(), module.__dict__); print(loose_code(module.Digits))"
    )
    is_in_order = list({"a", "b", "c"}) == ["a", "b", "c"]  # as with a hash seed of 1
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=NOTEBOOK,
        env=os.environ | {"PYTHONHASHSEED": "2" if is_in_order else "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    here = loose_code(cells(NOTEBOOK).Digits)
    assert done.stdout == f"{here}\n"
    assert len(done.stdout) > 100


def test_code_of_a_file_is_counted_with_the_file() -> None:
    assert loose_code(Wide) == []


@pytest.mark.parametrize(
    "other",
    [
        Wide(16),
        Wide(drop=0.5),
        Wide(weights=torch.ones(3)),
        Wide(weights={"classes": [1, 2]}),
        Wide(weights=np.ones(3)),
        Wide(weights=torch.eye(2).to_sparse()),
        Wide(weights=torch.ones(2, device="meta")),
    ],
    ids=["a width", "a rate", "a tensor", "a mapping", "an array", "sparse", "without numbers"],
)
def test_other_arguments_are_another_job(other: Wide) -> None:
    assert task_facts(other, Recipe()) != task_facts(Wide(), Recipe())


def test_equal_arguments_are_the_same_job_wherever_files_are_and_whatever_was_counted() -> None:
    one, other = (
        Wide(weights=torch.ones(3), store=Path("here")),
        Wide(weights=torch.ones(3), store=Path("there")),
    )
    before = task_facts(one, Recipe())
    other.build_model(Recipe())
    assert task_facts(other, Recipe()) == before


def test_nothing_of_the_task_is_touched() -> None:
    task, state = Wide(), torch.get_rng_state()
    task_facts(task, Recipe())
    assert task.num_built == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_another_model_by_the_same_arguments_is_another_job() -> None:
    class Deeper(Wide):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return nn.Sequential(super().build_model(recipe), nn.ReLU())

    Deeper.__qualname__ = Wide.__qualname__
    assert task_facts(Deeper(), Recipe())["model"] != task_facts(Wide(), Recipe())["model"]


def test_a_model_that_cannot_be_built_is_left_to_whoever_trains_it() -> None:
    class Broken(Wide):
        def build_model(self, recipe: Recipe) -> nn.Module:
            raise ValueError("no such layer")

    assert task_facts(Broken(), Recipe())["model"] is None


def test_the_built_in_task_is_identified_by_its_recipe(build_store, tmp_path: Path) -> None:
    build_store(tmp_path / "store", num_rows={"train": 8})
    task = ImageClassification(tmp_path / "store")
    assert task_facts(task, replace(Recipe(), seed=1)) == {}


GROUPS = {"prepare": PrepareConfig, "run": RunConfig, "ladder": LadderConfig}
READ: dict[str, Any] = {
    "ladder.max_accuracy_loss": 0.1,
    "run.dir": Path("elsewhere"),
    "run.keep_last": 5,
    "run.mirror": Path("s3://bucket/run"),
    "run.save_top_k": 3,
    "run.checkpoint_every_s": 0.0,
    "run.baseline": Path("before"),
    "run.baseline_at": BaselineAt.WALL_TIME,
    "run.baseline_patience": 7,
}
NOT_READ: dict[str, Any] = {
    "ladder.budget_s": 60.0,
    "ladder.num_seeds": 9,
    "run.system_every_s": 9.0,
    "run.tensorboard": True,
}
SET_BY_CHECKS = {"run.log_every"}  # the few steps that are saved and resumed log each one
COPIES = {"replace", "_replace", "__init__", "__post_init__", "dump_job", "values_of"}


@pytest.fixture(name="key_of", scope="module")
def _key_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[JobConfig], str]:
    """Return the key of a job's check findings; all use the same data."""
    config = Example().config(tmp_path_factory.mktemp("mine"))
    sources = open_job(config, Example().task, task_name="mine").sources
    return lambda job: findings_key("mine", job, sources, {})


def changed(job: JobConfig, name: str, value: object) -> JobConfig:
    group, _, option = name.partition(".")
    return replace(job, **{group: replace(getattr(job, group), **{option: value})})


@pytest.mark.parametrize("name", READ)
def test_findings_do_not_hold_where_an_option_that_a_check_reads_is_another(
    name: str, key_of: Callable[[JobConfig], str], tmp_path: Path
) -> None:
    job = Example().config(tmp_path)
    assert key_of(changed(job, name, READ[name])) != key_of(job)


@pytest.mark.parametrize("name", NOT_READ)
def test_findings_hold_where_another_option_is_another(
    name: str, key_of: Callable[[JobConfig], str], tmp_path: Path
) -> None:
    job = Example().config(tmp_path)
    assert key_of(changed(job, name, NOT_READ[name])) == key_of(job)


def test_a_folder_is_the_same_however_it_is_named(
    key_of: Callable[[JobConfig], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = Example().config(tmp_path)
    assert key_of(changed(job, "run.dir", Path("run"))) == key_of(job)


@pytest.mark.slow
def test_checks_read_no_option_that_the_key_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, task = Example().config(tmp_path), Example().task
    read: set[str] = set()

    def watch(group: str, kind: type) -> None:
        names = {field.name for field in fields(kind)}

        def get(self: object, name: str) -> object:
            if name in names and COPIES.isdisjoint(_callers()):
                read.add(f"{group}.{name}")
            return object.__getattribute__(self, name)

        monkeypatch.setattr(kind, "__getattribute__", get)

    for group, kind in GROUPS.items():
        watch(group, kind)
    run_checks(open_job(job, task, task_name="mine"), CHECKS, tier=Tier.FULL, key="")
    monkeypatch.undo()
    assert "ladder.max_accuracy_loss" in read
    assert "run.baseline" in read
    assert read - SET_BY_CHECKS <= set(READ)


def _callers() -> Iterator[str]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]
