"""A written config loads back equal, whatever it holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepladder.config.choices import LrRule, TrainMode, WeightsSource
from stepladder.config.load import load_job, settings_of_file
from stepladder.config.options import JobConfig, PrepareConfig, RunConfig
from stepladder.config.recipe import BatchConfig, ModelConfig, OptimizerConfig, Recipe
from stepladder.config.resolve import resolve, settings_of_call
from stepladder.config.schema import options
from stepladder.config.show import dump_job, show, show_json

texts = st.text(min_size=1, max_size=30).filter(lambda text: text.strip() and "\0" not in text)
paths = st.one_of(texts, st.sampled_from(["no", "1e-3", "010", "none", "2024-01-01", "a: b", "#x"]))
paths = paths.filter(lambda text: not text.startswith("~")).map(Path)
positive = st.floats(min_value=1e-300, max_value=1e300)
jobs = st.builds(
    JobConfig,
    prepare=st.builds(
        PrepareConfig,
        source=paths,
        group_by=st.one_of(st.none(), texts, st.sampled_from(["none", "NONE", "null", "~", "1"])),
        label_column=texts,
        val_frac=st.floats(0.001, 0.999),
    ),
    recipe=st.builds(
        Recipe,
        seed=st.integers(0, 2**70),
        train=st.sampled_from(TrainMode),
        deterministic=st.booleans(),
        model=st.builds(
            ModelConfig,
            name=texts,
            weights=st.one_of(
                st.sampled_from(WeightsSource),
                paths.map(lambda path: path / "w.safetensors"),
            ),
        ),
        batch=st.builds(
            BatchConfig,
            lr=positive,
            micro_batch_size=st.one_of(st.none(), st.integers(1, 10**6)),
            lr_rule=st.sampled_from(LrRule),
        ),
        optimizer=st.builds(OptimizerConfig, clip_norm=st.one_of(st.none(), positive)),
    ),
    run=st.builds(RunConfig, dir=paths, mlflow_uri=st.one_of(st.none(), st.just("sqlite:///a.db"))),
)


@given(job=jobs)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_written_loads_back_equal(job: JobConfig, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump_job(job), encoding="utf-8", errors="surrogatepass")
    assert load_job(file) == job


def test_the_defaults_say_every_option_in_order() -> None:
    text = dump_job(JobConfig())
    tree = yaml.safe_load(text)
    keys = [
        f"{group}.{name}" if isinstance(value, dict) else group
        for group, value in tree.items()
        for name in (value if isinstance(value, dict) else [""])
    ]
    assert keys == list(options())
    assert [*tree][:2] == ["prepare", "seed"]
    assert [*tree][-3:] == ["run", "ladder", "population"]


def test_show_gives_each_value_with_its_place_and_stays_yaml(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("seed: 1\nbatch:\n  lr: 0.5\n")
    resolved = resolve(settings_of_file(file), settings_of_call({"seed": 2}))
    lines = show(resolved).splitlines()
    shown_as = {line.split(":")[0]: line.partition("#")[2].strip() for line in lines}
    assert shown_as["seed"] == "call"
    assert shown_as["  lr"] == f"{file}:3"
    assert shown_as["  lr_all"] == "default"
    shown = tmp_path / "shown.yaml"
    shown.write_text(show(resolved))
    assert load_job(shown) == resolved.job
    assert show_json(resolved)["batch.lr"] == {"value": 0.5, "origin": f"{file}:3"}


def test_three_routes_give_byte_equal_configs(tmp_path: Path) -> None:
    from stepladder.cli.commands.train import read

    file = tmp_path / "a.yaml"
    file.write_text(
        "seed: 7\ntrain: all\nmodel:\n  name: resnet18\n  weights: none\n"
        "batch:\n  lr: 1e-2\nstopping:\n  early: no\noptimizer:\n  clip_norm: 1\n"
        f"data:\n  store: some place\nrun:\n  dir: {tmp_path.name}\n  mlflow_uri: none\n"
    )
    by_file = resolve(settings_of_file(file)).job
    values: dict[str, Any] = {
        "seed": 7,
        "train": "all",
        "model.name": "resnet18",
        "model.weights": WeightsSource.NONE,
        "batch.lr": 0.01,
        "stopping.early": False,
        "optimizer.clip_norm": 1,
        "data.store": "some place",
        "run.dir": Path(tmp_path.name),
        "run.mlflow_uri": None,
    }
    by_call = resolve(settings_of_call(values)).job
    flags = (
        "--seed 7 --train all --model.name resnet18 --model.weights none --batch.lr 1e-2 "
        f"--stopping.no-early --optimizer.clip-norm 1 --run.dir {tmp_path.name} "
        "--run.mlflow_uri none"
    )
    _, by_flags = read([*flags.split(), "--data.store", "some place"])
    assert dump_job(by_file) == dump_job(by_call) == dump_job(by_flags.job)
    assert by_file == by_call == by_flags.job
    objects = dataclasses.replace(JobConfig(), recipe=by_call.recipe, run=by_call.run)
    assert dump_job(objects) == dump_job(by_file)


@pytest.mark.parametrize("value", ["no", "none", "1e-3", "a\nb", "", "x # y", "é", "\x85", "- a"])
def test_awkward_text_keeps_to_one_line(value: str) -> None:
    job = JobConfig(prepare=PrepareConfig(label_column=value))
    assert len(dump_job(job).splitlines()) == len(dump_job(JobConfig()).splitlines())


def test_a_path_that_is_not_utf8_survives(tmp_path: Path) -> None:
    job = JobConfig(run=RunConfig(dir=Path("runs/\udcff")))
    (tmp_path / "a.yaml").write_text(dump_job(job), encoding="utf-8")
    assert load_job(tmp_path / "a.yaml") == job
