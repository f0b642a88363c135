"""Later layers override earlier ones, and an error names the layer of the bad value."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.config.checks import BadValueError
from stepladder.config.choices import Encoding
from stepladder.config.load import settings_of_file
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.config.resolve import resolve, settings_of_call, settings_of_flags
from stepladder.config.schema import ALIASES, options
from stepladder.errors import UsageError


def test_flags_go_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("seed: 1\nbatch:\n  lr: 0.1\n")
    flags = settings_of_flags({"seed": ("--seed", 2)})
    resolved = resolve(settings_of_file(file), flags)
    assert resolved.job.recipe.seed == 2
    assert resolved.job.recipe.batch.lr == 0.1
    assert resolved.job.recipe.batch.lr_all == JobConfig().recipe.batch.lr_all
    assert resolved.origin("seed") == "--seed"
    assert resolved.origin("batch.lr") == f"{file}:3"
    assert resolved.origin("batch.lr_all") == "default"


def test_a_flag_may_replace_a_bad_value_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("batch:\n  lr: 0\n")
    with pytest.raises(BadValueError, match=r"a\.yaml:2: batch\.lr: 0\.0 is not above 0"):
        resolve(settings_of_file(file))
    mended = resolve(settings_of_file(file), settings_of_flags({"batch.lr": ("--batch.lr", 1.0)}))
    assert mended.job.recipe.batch.lr == 1.0


def test_a_bad_flag_names_the_flag_once() -> None:
    with pytest.raises(BadValueError) as caught:
        resolve(settings_of_flags({"batch.lr": ("--batch.lr", -1.0)}))
    assert str(caught.value).splitlines()[0] == "--batch.lr: -1.0 is not above 0"


def test_options_of_an_object_count_as_said_by_the_call() -> None:
    resolved = resolve(base=JobConfig(recipe=Recipe(seed=5)))
    assert resolved.origin("seed") == "call"
    assert resolved.origin("train") == "default"


def test_a_call_takes_plain_values_and_members() -> None:
    for encoding in ("jpeg", Encoding.JPEG):
        job = resolve(settings_of_call({"prepare.encoding": encoding, "prepare.size": 96})).job
        assert (job.prepare.encoding, job.prepare.size) == (Encoding.JPEG, 96)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("batch.lrr", 1, "Did you mean batch.lr?"),
        ("patience", 1, "Did you mean stopping.patience or population.patience?"),
        ("seed", True, "True is not a whole number"),
        ("seed", 1.0, "1.0 is not a whole number"),
        ("seed", "1", "1 is not a whole number"),
        ("batch.lr", True, "True is not a number"),
        ("batch.lr", float("nan"), "finite"),
        ("batch.lr", float("inf"), "finite"),
        ("deterministic", 1, "1 is not true or false"),
        ("train", "hed", "Did you mean head?"),
        ("train", None, "None is not one of"),
        ("model.weights", "packagd", "Did you mean packaged?"),
        ("model.name", Path("x"), "is not text"),
        ("data.store", "", "Write a path"),
        ("data.store", 3, "3 is not a path"),
        ("run.mlflow_uri", "http://me:canary@host", "password"),
    ],
)
def test_a_call_is_refused_with_a_remedy(key: str, value: object, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(settings_of_call({key: value}))
    assert words in str(caught.value)
    assert key in str(caught.value)


@pytest.mark.parametrize(("name", "key"), ALIASES.items())
def test_a_short_name_sets_its_option_in_a_call(name: str, key: str) -> None:
    known = {"data": "shop", "model": "resnet18", "launch": "ray", "lr": 0.25}
    value = {**known, "all_reduce": "ring", "buckets": "layer"}.get(name, 3)
    resolved = resolve(settings_of_call({name: value}))
    assert str(options()[key].value(resolved.job)) == str(value)
    with pytest.raises(UsageError, match="set twice"):
        settings_of_call({name: value, key: value})


@pytest.mark.parametrize(("name", "key"), ALIASES.items())
def test_a_short_name_in_a_file_suggests_the_option(name: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"{name}: 3\n")
    with pytest.raises(UsageError) as caught:
        settings_of_file(file)
    assert key in str(caught.value) or key.partition(".")[2] in str(caught.value)
