"""The YAML loader rejects ambiguous input and names its line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepladder.config.choices import TrainMode, WeightsSource
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig
from stepladder.config.yaml_file import MAX_BYTES
from stepladder.errors import UsageError


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str | bytes) -> JobConfig:
    file = Path("run.yaml")
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_job(file)


def refused(text: str | bytes) -> str:
    with pytest.raises(UsageError) as caught:
        load(text)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "batch:\n", "\ufeffseed: 0\n"])
def test_a_file_that_says_nothing_gives_the_defaults(text: str) -> None:
    assert load(text) == JobConfig()


def test_every_kind_of_value_is_read() -> None:
    job = load(
        "seed: 3\ntrain: head_then_all\ndeterministic: yes\n"
        "data:\n  store: some/place\n  fraction: .5\n"
        "batch: {lr: 1e-2, micro-batch-size: 8}\n"
        "model:\n  weights: ./mine.safetensors\n"
        "optimizer:\n  clip_norm: 1\n"
        "run:\n  mlflow_uri: sqlite:///a.db\n"
    )
    recipe = job.recipe
    assert (recipe.seed, recipe.train, recipe.deterministic) == (3, TrainMode.HEAD_THEN_ALL, True)
    assert (recipe.data.store, recipe.data.fraction) == (Path("some/place"), 0.5)
    assert (recipe.batch.lr, recipe.batch.micro_batch_size) == (0.01, 8)
    assert recipe.model.weights == Path("mine.safetensors")
    assert recipe.optimizer.clip_norm == 1.0
    assert isinstance(recipe.optimizer.clip_norm, float)
    assert job.run.mlflow_uri == "sqlite:///a.db"


@pytest.mark.parametrize("number", ["1e-3", "1.e-3", "0.001", ".001", "1E-3", "+0.001"])
def test_a_number_is_read_in_every_usual_form(number: str) -> None:
    assert load(f"batch:\n  lr: {number}\n").recipe.batch.lr == 0.001


@pytest.mark.parametrize("word", ["none", "None", "null", "~", ""])
def test_none_is_written_in_words_or_left_empty(word: str) -> None:
    assert load(f"optimizer:\n  clip_norm: {word}\n").recipe.optimizer.clip_norm is None
    assert load(f"run:\n  mlflow_uri: {word}\n").run.mlflow_uri is None


def test_none_of_an_enum_is_its_member() -> None:
    assert load("model:\n  weights: none\n").recipe.model.weights is WeightsSource.NONE


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("batch:\n  lr: 0\n", 2, ["batch.lr", "above 0"]),
        ("seed: 1\nbatch:\n  global_batch_size: 0\n", 3, ["0 is not 1 or more"]),
        ("batch:\n  global_batchsize: 4\n", 2, ["Did you mean batch.global_batch_size?"]),
        ("\nglobal_batch_size: 4", 2, ["Did you mean batch.global_batch_size?"]),
        ("modl:\n  name: x", 1, ["Did you mean model?"]),
        ("model.name: x", 1, ["`model:`", "`name:`"]),
        ("recipe:\n  seed: 1", 1, ["top level"]),
        ("task: a.py:B", 1, ["--task FILE.py:NAME"]),
        ("_target_: os.system", 1, ["there is no such option"]),
        ("class_path: os.system", 1, ["there is no such option"]),
        ("model:\n  weights: packagd", 2, ["Did you mean packaged?"]),
        ("train: heads", 1, ["Did you mean head?"]),
        ("train: head-then-all", 1, ["Did you mean head_then_all?"]),
        ("train: off", 1, ["off is not one of head, all, head_then_all"]),
        ("data:\n  store: no", 2, ['write "no", in quotes']),
        ("data:\n  store: 12", 2, ['write "12", in quotes']),
        ("data:\n  store: 2024-01-01", 2, ["a date", "in quotes"]),
        ("data:\n  store: ~/photos", 2, ["without ~"]),
        ("data:\n  store:", 2, ["Write a value"]),
        ("seed: true", 1, ["true is not a whole number"]),
        ("seed: 1e3", 1, ["Write 1000."]),
        ("seed: 1.5", 1, ["1.5 is not a whole number"]),
        ("seed: 010", 1, ["without leading zeros"]),
        ("seed: 0x10", 1, ["in decimal"]),
        ("seed: 1:30", 1, ["1:30 is not a whole number"]),
        ("seed: '1'", 1, ["Remove the quotes"]),
        ("seed: [1]", 1, ["is a list; it must be a whole number"]),
        ("seed: {a: 1}", 1, ["is a group; it must be a whole number"]),
        ("batch:\n  lr: true", 2, ["true is not a number"]),
        ("batch:\n  lr: .inf", 2, [".inf is not a number"]),
        ("batch:\n  lr: .nan", 2, [".nan is not a number"]),
        ("batch:\n  lr: 1e999", 2, ["finite"]),
        ("stopping:\n  early: 1", 2, ["1 is not true or false"]),
        ("batch: 3", 1, ["group", "global_batch_size"]),
        ("batch: [3]", 1, ["group"]),
        ("- seed", 1, ["a list"]),
        ("seed", 1, ["a single value"]),
        ("seed: 1\ntrain: all\nseed: 2", 3, ["seed is set twice", "line 1"]),
        ("run:\n  log-every: 2\n  log_every: 3", 3, ["set twice"]),
        ("1: 2", 1, ["the key 1 is not a string"]),
        ("? [a]\n: 2", 1, ["the key is a list, not a string"]),
        ("seed: &x 1", 1, ["anchors"]),
        ("train: all\nseed: *x", 2, ["aliases"]),
        ("batch:\n  <<: *x", 2, ["aliases"]),
        ("seed: !!int 3", 1, ["tag"]),
        ("batch:\n\tlr: 1", 2, ["not with tabs"]),
        ("seed: 1\n x: 2", 2, ["not valid YAML"]),
        ("---\nseed: 1\n---\nseed: 2", 3, ["second YAML document"]),
        ("[" * 40, 1, ["nested more than"]),
        ("seed: 1\na: \x01", 2, ["U+0001"]),
        ("run:\n  mlflow_uri: https://me:canary@host/", 2, ["password"]),
    ],
)
def test_refusal_names_line_and_remedy(text: str, line: int, words: list[str]) -> None:
    message = refused(text)
    assert message.startswith(f"run.yaml:{line}: ")
    for word in words:
        assert word in message
    assert "canary" not in message
    assert len(message.splitlines()) <= 4


def test_a_tag_runs_no_code() -> None:
    sys.modules.pop("this", None)
    for text in (
        "seed: !!python/object/apply:os.mkdir [made]",
        "!!python/module:this seed: 1",
        "seed: !!python/name:this.s",
    ):
        assert "tag" in refused(text)
    assert not Path("made").exists()
    assert "this" not in sys.modules


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    levels = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    assert "anchors" in refused("\n".join(levels))


def test_a_huge_file_is_refused_unread() -> None:
    assert f"{MAX_BYTES:,}" in refused("#" * (MAX_BYTES + 1))
    assert load("#" * MAX_BYTES) == JobConfig()


def test_text_that_is_not_utf8_names_its_line() -> None:
    assert refused(b"seed: 1\nrun:\n  dir: \xff\n").startswith("run.yaml:3: the file is not UTF-8")


def test_a_missing_file_names_its_neighbour() -> None:
    load("seed: 1")
    with pytest.raises(UsageError, match=r"Did you mean run\.yaml\?"):
        load_job(Path("rnu.yaml"))
    with pytest.raises(UsageError, match="nowhere does not exist"):
        load_job(Path("nowhere/run.yaml"))
    with pytest.raises(UsageError, match="a folder"):
        load_job(Path())
